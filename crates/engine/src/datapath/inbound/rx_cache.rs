//! The states that a batch's packets came by, each once however its packets are mixed with others'. The next batch finds them again. A change of states
//! lets those go that have the SPI of one that came, went or changed; a change of policies has those asked once more whether their packets pass whom it may concern. Where they are more than there is room for, any of them go after a batch, and the others stay.

#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use foldhash::fast::RandomState;
use uxfrm_packet::{BATCH, esp, prefetch_far_whole};

use super::inner_template::Inner;
use super::outer_template::Outer;
use super::rx_record::Regular;
use super::spi_index::Names;
use super::{FEW, Name, narrow};
use crate::flow_cache::validity::Concerned;
use crate::flow_cache::{Known, Turn};
use crate::sa::config::SaFlags;
use crate::{AnswerId, Host, Mark, Mode, Sa, Snapshot, Spi, UdpEncapKind};

/// A state and what it is to be charged for this round.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) sa: Arc<Sa>,
    pub(super) packets: u32,
    pub(super) bytes: u64,
    pub(super) standing: Standing,
    /// Where what it is yet to count of packets that came alone is likely to be.
    pub(super) debt: u32,
    /// The policies under which packets that came through this state alone may pass, whatever their flow; not known yet without.
    pub(super) passes: Option<AnswerId>,
    /// The policies of which epoch say so.
    epoch: u16,
    pub(super) turn: Turn,
    /// By what the latest of its packets that was looked up found it.
    name: Option<Name>,
    /// The latest batch that met it.
    met_in: u64,
    pub(super) encap: Option<UdpEncapKind>,
    /// A device has to do with it.
    pub(super) offloaded: bool,
    pub(super) extended: bool,
    pub(super) around: Around,
    /// The question of its latest plain packet that was looked at itself in this batch.
    pub(super) asked: Option<u32>,
    seen: Seen,
}

/// Whether there was a packet of a state before that could have told how they look: outside, inside. Only the second one does, as of many states
/// there is but one at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    outside: bool,
    inside: bool,
}

/// How a state's packets look, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Looks {
    pub(super) outer: Option<Outer>,
    pub(super) inner: Option<Inner>,
}

/// What a state has around each of its packets, and does when that is stripped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around {
    pub(super) spi: Spi,
    /// Bytes of SPI, sequence number and IV; and of ICV.
    pub(super) lead: u32,
    pub(super) icv: u32,
    pub(super) mode: Mode,
    pub(super) flags: SaFlags,
    pub(super) output_mark: Mark,
}

/// What neighbours of one state carried that is not noted yet, and what they had around them.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) used: u32,
    pub(super) around: Around,
    pub(super) packets: u32,
    pub(super) bytes: u64,
}

/// What charging a state's packets together gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// All pass.
    Good,
    /// Only some fit under a hard limit: each is charged on its own.
    OneByOne,
    /// None passes.
    Expired,
}

/// Those of this batch and of some before it. A place says which.
#[derive(Debug)]
pub(super) struct UsedStates {
    all: Vec<Used>,
    /// In the same places, as far as any is known.
    looks: Vec<Looks>,
    /// The same, of those whose packets need not be looked at closely.
    regulars: Vec<Option<Regular>>,
    /// The places of those that this batch met, in the order of their first packets.
    met: Vec<u32>,
    /// Batches so far.
    batch: u64,
    /// By SPI, in the same places.
    spis: Vec<u32>,
    /// The generation of states and policies that all are of, how often each had changed by then, and the host.
    generation: u64,
    states: u64,
    policies: u64,
    host: Option<Arc<Host>>,
    /// Rises when policies change, and when that concerned whom.
    epoch: u16,
    concerned: Concerned,
    /// The place of the state that was looked for last.
    latest: Option<u32>,
    /// States that are kept for the next batch at the most.
    most: usize,
    /// By the last bits of a state's turn, where it may stand in `all`; to be believed only if that one is it.
    hints: Vec<u32>,
    names: Names,
    /// Chooses who goes.
    hasher: RandomState,
}

impl UsedStates {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            looks: Vec::new(),
            regulars: Vec::new(),
            met: Vec::new(),
            batch: 0,
            spis: Vec::new(),
            generation: 0,
            states: 0,
            policies: 0,
            host: None,
            epoch: 0,
            concerned: Concerned::default(),
            latest: None,
            most: FEW,
            hints: vec![0; BATCH],
            names: Names::new(),
            hasher: RandomState::default(),
        }
    }

    /// To be called before a batch: forgets what states and policies that have changed since may have made untrue, and all on another host.
    pub(super) fn begin(&mut self, snapshot: &Snapshot) {
        self.batch += 1;
        self.let_go(snapshot);
    }

    /// Whether they are so few that a piece of a batch has many packets of each.
    pub(super) fn are_few(&self) -> bool {
        self.all.len() <= HANDFUL
    }

    /// Whether they are so many that what packets need of them is far away.
    pub(super) fn are_far(&self) -> bool {
        self.all.len() > FEW
    }

    /// To be called after a batch: keeps no more for the next one than are worth it.
    pub(super) fn finish(&mut self) {
        self.met.clear();
        if self.all.len() > self.most {
            self.make_room();
        }
    }

    /// Forgets what states and policies that have changed since may have made untrue, and all on another host.
    #[inline]
    pub(super) fn let_go(&mut self, snapshot: &Snapshot) {
        let host = (snapshot.host.as_ref().map(Arc::as_ptr), self.host.as_ref().map(Arc::as_ptr));
        if self.generation != snapshot.generation || host.0 != host.1 {
            self.catch_up(snapshot, host.0 == host.1);
        }
    }

    #[inline(never)]
    fn catch_up(&mut self, snapshot: &Snapshot, on_same_host: bool) {
        debug_assert!(self.met.is_empty(), "between batches");
        self.generation = snapshot.generation;
        self.host.clone_from(&snapshot.host);
        self.most = most_among(snapshot.sad.len());
        let states = std::mem::replace(&mut self.states, snapshot.states);
        if !on_same_host || !self.let_changed_go(snapshot, states) {
            self.forget();
        }
        let policies = std::mem::replace(&mut self.policies, snapshot.spd.generation());
        if policies != self.policies {
            if self.epoch == u16::MAX {
                (self.epoch, self.concerned) = (0, Concerned::default());
                self.forget();
            }
            self.epoch += 1;
            self.concerned.note(snapshot.spd.concerned_since(policies), self.epoch);
        }
    }

    /// Lets those go that have the SPI of a state that has changed. False where nobody knows which these are, or looking for them takes too long.
    fn let_changed_go(&mut self, snapshot: &Snapshot, since: u64) -> bool {
        let Some(changed) = snapshot.changed_since(since) else { return false };
        if changed.len() * self.spis.len() > FAR {
            return false;
        }
        for Spi(spi) in changed {
            while let Some(at) = place_in(&self.spis, spi) {
                self.let_one_go(at);
            }
        }
        true
    }

    /// Lets as many go as are too many; all where few are kept.
    #[inline(never)]
    fn make_room(&mut self) {
        if self.most == FEW {
            return self.forget();
        }
        while self.all.len() > self.most {
            let random = self.hasher.hash_one((self.batch, self.all.len()));
            self.let_one_go((random >> 32) as usize % self.all.len());
        }
    }

    /// The last one takes its place.
    fn let_one_go(&mut self, at: usize) {
        let last = self.all.len() - 1;
        let gone = self.all.swap_remove(at);
        self.spis.swap_remove(at);
        fill(&mut self.looks, at, last);
        fill(&mut self.regulars, at, last);
        if let Some((spi, ..)) = gone.name {
            self.names.forget(spi.0, narrow(at));
        }
        if at < last {
            self.note_move(narrow(last), narrow(at));
        }
        self.latest = match self.latest {
            Some(place) if place as usize == at => None,
            Some(place) if place as usize == last => Some(narrow(at)),
            latest => latest,
        };
    }

    /// Lets hints lead to where a state is now.
    fn note_move(&mut self, from: u32, to: u32) {
        let Self { all, hints, names, .. } = self;
        let moved = &all[to as usize];
        let slots = hints.len();
        let hint = &mut hints[moved.turn.slot(slots)];
        if *hint == from {
            *hint = to;
        }
        if let Some((spi, ..)) = moved.name
            && names.place(spi.0) == Some(from)
        {
            names.note(spi.0, to);
        }
    }

    fn forget(&mut self) {
        self.drop_all();
        self.spis.clear();
        self.looks.clear();
        self.names.clear();
        self.latest = None;
    }

    /// Letting go of a state writes to it, which may be far away.
    fn drop_all(&mut self) {
        self.regulars.clear();
        self.all.iter().rev().take(AHEAD).for_each(|used| used.sa.fetch());
        while let Some(used) = self.all.pop() {
            let ahead = self.all.len().checked_sub(AHEAD);
            ahead.and_then(|at| self.all.get(at)).inspect(|ahead| ahead.sa.fetch());
            drop(used);
        }
    }

    /// The place of the state that was looked for last, in this batch or before.
    pub(super) fn latest(&self) -> Option<u32> {
        self.latest
    }

    /// Remembers which state was looked for last.
    pub(super) fn note_latest(&mut self, latest: Option<u32>) {
        self.latest = latest;
    }

    /// The place of a state, which takes one if it has none. Each batch asks first whether it [receives](Sa::receives).
    #[inline]
    pub(super) fn place(&mut self, sa: &Arc<Sa>) -> u32 {
        if self.all.len() >= self.hints.len() {
            // Those that were are found by their names, or take another place.
            self.hints.resize(2 * self.hints.len(), 0);
        }
        let slots = self.hints.len();
        let hint = &mut self.hints[Turn::of(sa).slot(slots)];
        let there = self.all.get(*hint as usize);
        if !there.is_some_and(|there| Arc::ptr_eq(&there.sa, sa)) {
            *hint = narrow(self.all.len());
            self.all.push(Used::of(sa));
            self.spis.push(sa.id().spi.0);
        }
        let place = *hint;
        self.meet(place);
        place
    }

    /// Whether this batch has met the state in a place.
    #[inline]
    pub(super) fn has_met(&self, place: u32) -> bool {
        self.all[place as usize].met_in == self.batch
    }

    /// Notes that this batch met the state in a place.
    #[inline]
    pub(super) fn meet(&mut self, place: u32) {
        let used = &mut self.all[place as usize];
        if used.met_in != self.batch {
            used.doubt(self.epoch);
            (used.met_in, used.standing, used.asked) = (self.batch, Standing::Good, None);
            let inner = self.looks.get_mut(place as usize).and_then(|looks| looks.inner.as_mut());
            inner.into_iter().for_each(|inner| inner.question = None);
            self.met.push(place);
        }
    }

    /// Forgets under which policies packets of the state in a place pass, if others may decide by now. Each batch does when it meets it.
    pub(super) fn doubt(&mut self, place: u32) {
        self.all[place as usize].doubt(self.epoch);
    }

    /// How packets of the state in a place look.
    #[inline(always)]
    pub(super) fn looks(&self, place: u32) -> Option<&Looks> {
        self.looks.get(place as usize)
    }

    #[inline(always)]
    pub(super) fn looks_mut(&mut self, place: u32) -> Option<&mut Looks> {
        self.looks.get_mut(place as usize)
    }

    /// Remembers how a packet of the state in a place looks outside.
    #[inline]
    pub(super) fn note_outer(&mut self, place: u32, look: impl FnOnce() -> Option<Outer>) {
        if std::mem::replace(&mut self.all[place as usize].seen.outside, true) {
            self.room_for_looks(place).outer = look();
            self.forget_regular(place);
        }
    }

    /// Remembers how one looks inside.
    #[inline]
    pub(super) fn note_inner(&mut self, place: u32, look: impl FnOnce() -> Option<Inner>) {
        if std::mem::replace(&mut self.all[place as usize].seen.inside, true) {
            self.room_for_looks(place).inner = look();
            self.forget_regular(place);
        }
    }

    /// What the next packets of the state in a place are held against, if these need not be looked at closely.
    #[inline(always)]
    pub(super) fn regular(&self, place: u32) -> Option<&Regular> {
        self.regulars.get(place as usize)?.as_ref()
    }

    #[inline(always)]
    pub(super) fn regular_mut(&mut self, place: u32) -> Option<&mut Regular> {
        self.regulars.get_mut(place as usize)?.as_mut()
    }

    /// Whether there is that, and the policies are those that said so.
    #[inline(always)]
    pub(super) fn is_regular(&self, place: u32) -> bool {
        self.regular(place).is_some_and(|regular| regular.epoch == self.epoch)
    }

    /// Whether there is that, of a flow whom no change of policies since may concern.
    pub(super) fn is_regular_still(&mut self, place: u32) -> bool {
        let looks = self.looks.get(place as usize);
        let Some(Inner { flow, direction, .. }) = looks.and_then(|looks| looks.inner.as_ref())
        else {
            return false;
        };
        let Some(Some(regular)) = self.regulars.get_mut(place as usize) else { return false };
        let holds_on = !self.concerned.is(*direction, flow, regular.epoch);
        if holds_on {
            regular.epoch = self.epoch;
        }
        holds_on
    }

    /// Whether there is that, as these policies decide now, and did before.
    pub(super) fn is_regular_again(&mut self, place: u32, answer: AnswerId) -> bool {
        let epoch = self.epoch;
        let regular = self.regular_mut(place).filter(|regular| regular.answer == answer);
        regular.map(|regular| regular.epoch = epoch).is_some()
    }

    /// Remembers it.
    pub(super) fn note_regular(&mut self, place: u32, mut regular: Regular) {
        regular.epoch = self.epoch;
        let place = place as usize;
        if self.regulars.len() <= place {
            self.regulars.resize_with(place + 1, || None);
        }
        self.regulars[place] = Some(regular);
    }

    fn forget_regular(&mut self, place: u32) {
        if let Some(regular) = self.regulars.get_mut(place as usize) {
            *regular = None;
        }
    }

    /// Asks for what [`UsedStates::regular`] reads.
    #[inline(always)]
    pub(super) fn prefetch_regular(&self, place: u32) {
        self.regulars.get(place as usize).inspect(|regular| prefetch_far_whole(*regular));
    }

    fn room_for_looks(&mut self, place: u32) -> &mut Looks {
        let place = place as usize;
        if self.looks.len() <= place {
            self.looks.resize_with(place + 1, Looks::default);
        }
        &mut self.looks[place]
    }

    /// Nothing yet, of the state in a place.
    #[inline]
    pub(super) fn load(&self, place: u32) -> Load {
        Load { used: place, around: self.all[place as usize].around, packets: 0, bytes: 0 }
    }

    /// Notes what a state is to be charged for.
    #[inline]
    pub(super) fn note(&mut self, load: &Load) {
        let used = &mut self.all[load.used as usize];
        used.packets += load.packets;
        used.bytes += load.bytes;
    }

    /// Shows each state that this batch met.
    #[inline]
    pub(super) fn each_met(&mut self, visit: &mut impl FnMut(&mut Used)) {
        self.met.iter().for_each(|place| visit(&mut self.all[*place as usize]));
    }

    /// The place of a state that a name with this SPI may have found; this batch has met it.
    #[inline(always)]
    pub(super) fn of_spi(&self, spi: u32) -> Option<u32> {
        self.once_of_spi(spi).filter(|place| self.has_met(*place))
    }

    /// Asks for what [`UsedStates::once_of_spi`] reads.
    #[inline(always)]
    pub(super) fn prefetch_name(&self, spi: u32) {
        self.names.prefetch(spi);
    }

    /// As [`UsedStates::of_spi`], in this batch or before.
    #[inline(always)]
    pub(super) fn once_of_spi(&self, spi: u32) -> Option<u32> {
        self.names.place(spi).filter(|place| (*place as usize) < self.all.len())
    }

    /// The place of the state that this name found, if it is remembered.
    #[inline]
    pub(super) fn named(&self, name: Name) -> Option<u32> {
        let place = self.names.place(name.0.0)?;
        let there = self.all.get(place as usize)?;
        there.is_named(&name).then_some(place)
    }

    /// Remembers what a state was found by.
    pub(super) fn note_name(&mut self, place: u32, name: Name) {
        self.names.note(name.0.0, place);
        self.all[place as usize].name = Some(name);
    }
}

/// States that are kept at the most: each takes half a kilobyte.
const MOST: usize = 1 << 16;
/// Among more states of both directions, packets hardly find theirs again before it has to go.
const MANY: usize = 4 * MOST;
/// With no more states, a piece of a batch has many packets of each.
const HANDFUL: usize = 4;
/// SPIs that are looked through for those of states that changed: more take longer than finding all states again.
const FAR: usize = 1 << 20;
/// How many states ahead one that is let go is fetched.
const AHEAD: usize = 16;

/// How many are worth keeping among so many.
const fn most_among(states: usize) -> usize {
    if states <= MANY { MOST } else { FEW }
}

/// Where an SPI stands. Without branches in pieces, as hardly any has it.
fn place_in(spis: &[u32], spi: u32) -> Option<usize> {
    const PIECE: usize = 64;
    let has = |piece: &[u32]| piece.iter().fold(false, |has, other| has | (*other == spi));
    let piece = spis.chunks(PIECE).position(has)?;
    let within = spis[piece * PIECE..].iter().position(|other| *other == spi)?;
    Some(piece * PIECE + within)
}

/// Puts what is in the last place into another. What lies behind the end is nothing.
fn fill<T: Default>(all: &mut Vec<T>, at: usize, last: usize) {
    let moved = if all.len() > last { all.pop() } else { None };
    if let Some(there) = all.get_mut(at) {
        *there = moved.unwrap_or_default();
    }
}

impl Deref for UsedStates {
    type Target = [Used];

    #[inline]
    fn deref(&self) -> &[Used] {
        &self.all
    }
}

impl DerefMut for UsedStates {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Used] {
        &mut self.all
    }
}

impl Used {
    fn of(sa: &Arc<Sa>) -> Self {
        let config = sa.config();
        Self {
            sa: Arc::clone(sa),
            packets: 0,
            bytes: 0,
            standing: Standing::Good,
            debt: 0,
            passes: None,
            epoch: 0,
            turn: Turn::of(sa),
            name: None,
            met_in: 0,
            encap: config.encap.as_ref().map(|encap| encap.kind),
            offloaded: config.offload.is_some(),
            extended: sa.extended(),
            around: Around::of(sa),
            asked: None,
            seen: Seen::default(),
        }
    }

    fn doubt(&mut self, epoch: u16) {
        if self.epoch != epoch {
            (self.epoch, self.passes) = (epoch, None);
        }
    }

    /// Whether packets that came by it alone may pass under what is known of their flow.
    #[inline(always)]
    pub(super) fn lets_pass(&self, known: Known) -> bool {
        self.passes == Some(known.answer) || known.passes_by(self.turn)
    }

    /// Whether it was found by this name.
    #[inline(always)]
    pub(super) fn is_named(&self, name: &Name) -> bool {
        self.name.as_ref() == Some(name)
    }
}

impl Around {
    fn of(sa: &Sa) -> Self {
        let (config, transform) = (sa.config(), sa.transform());
        Self {
            spi: sa.id().spi,
            lead: narrow(esp::HEADER_LEN + transform.iv_len()),
            icv: narrow(transform.icv_len()),
            mode: config.mode,
            flags: config.flags,
            output_mark: config.output_mark,
        }
    }
}
