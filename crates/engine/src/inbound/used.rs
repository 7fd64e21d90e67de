//! The states that a batch's packets came by, each once however its packets are mixed with others'. The next batch finds them again, as long as
//! neither states nor policies change.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use uxfrm_packet::{BATCH, esp};

use super::{FEW, Name, narrow};
use crate::sa::config::SaFlags;
use crate::spd::flow_cache::Turn;
use crate::{AnswerId, Mark, Mode, Sa, Spi, UdpEncapKind};

/// A state and what it is to be charged for this round.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) sa: Arc<Sa>,
    pub(super) packets: u32,
    pub(super) bytes: u64,
    pub(super) standing: Standing,
    /// The policies under which packets that came through this state alone may pass, whatever their flow; not known yet without.
    pub(super) passes: Option<AnswerId>,
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
    /// The places of those that this batch met, in the order of their first packets.
    met: Vec<u32>,
    /// Batches so far.
    batch: u64,
    /// The generation of states and policies that all are of.
    generation: u64,
    /// By the last bits of a state's turn, where it may stand in `all`; to be believed only if that one is it.
    hints: Box<[u32; BATCH]>,
    /// The same, by the last bits of the SPI.
    names: Box<[u32; BATCH]>,
}

impl UsedStates {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            met: Vec::new(),
            batch: 0,
            generation: 0,
            hints: Box::new([0; BATCH]),
            names: Box::new([0; BATCH]),
        }
    }

    /// To be called before a batch: forgets what is of another generation of states and policies.
    pub(super) fn begin(&mut self, generation: u64) {
        self.batch += 1;
        self.let_go(generation);
    }

    /// To be called after a batch: keeps few for the next one.
    pub(super) fn finish(&mut self) {
        self.met.clear();
        if self.all.len() > FEW {
            self.all.clear();
        }
    }

    /// Forgets what is of another generation of states and policies.
    pub(super) fn let_go(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.all.clear();
        }
    }

    /// The place of a state, which takes one if it has none. Each batch asks first whether it [receives](Sa::receives).
    #[inline]
    pub(super) fn place(&mut self, sa: &Arc<Sa>) -> u32 {
        let hint = &mut self.hints[Turn::of(sa).slot(BATCH)];
        let there = self.all.get(*hint as usize);
        if !there.is_some_and(|there| Arc::ptr_eq(&there.sa, sa)) {
            *hint = narrow(self.all.len());
            self.all.push(Used::of(sa));
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
            (used.met_in, used.standing) = (self.batch, Standing::Good);
            self.met.push(place);
        }
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

    /// The place of the state that this name found, if it is remembered.
    #[inline]
    pub(super) fn named(&self, name: Name) -> Option<u32> {
        let place = self.names[slot(name)];
        let there = self.all.get(place as usize)?;
        (there.name == Some(name)).then_some(place)
    }

    /// Remembers what a state was found by.
    pub(super) fn note_name(&mut self, place: u32, name: Name) {
        self.names[slot(name)] = place;
        self.all[place as usize].name = Some(name);
    }
}

fn slot((spi, ..): Name) -> usize {
    spi.0 as usize % BATCH
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
            passes: None,
            turn: Turn::of(sa),
            name: None,
            met_in: 0,
            encap: config.encap.as_ref().map(|encap| encap.kind),
            offloaded: config.offload.is_some(),
            extended: sa.extended(),
            around: Around::of(sa),
        }
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

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Backend;

    use super::*;
    use crate::Moment;
    use crate::sa::{sample, words::SaWords};

    #[test]
    fn a_state_stays_for_the_next_batch_until_states_or_policies_change() {
        let config = sample("10.0.0.2", 7);
        let sa = Sa::new(&config, Arc::new(SaWords::of(&config, Backend::Portable)), Moment(0));
        let name = (Spi(7), config.id.destination, 0);
        let mut used = UsedStates::new();
        used.begin(1);
        let place = used.place(&sa);
        used.note_name(place, name);
        used[place as usize].standing = Standing::Expired;
        used.finish();
        used.begin(1);
        assert_eq!((used.named(name), used.has_met(place)), (Some(place), false));
        used.meet(place);
        assert!(used.has_met(place) && used[place as usize].standing == Standing::Good);
        used.finish();
        used.begin(2);
        assert_eq!((used.named(name), Arc::strong_count(&sa)), (None, 1));
    }

    #[test]
    fn many_states_are_let_go_after_their_batch() {
        let mut used = UsedStates::new();
        for spi in 1..=u32::try_from(FEW).unwrap() + 1 {
            let config = sample("10.0.0.2", spi);
            let words = Arc::new(SaWords::of(&config, Backend::Portable));
            let sa = Sa::new(&config, words, Moment(0));
            sa.set_turn(spi.into());
            used.begin(0);
            assert_eq!(used.place(&sa), spi - 1);
            used.finish();
        }
        assert!(used.is_empty());
    }
}
