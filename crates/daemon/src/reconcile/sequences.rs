//! Sequence numbers across restarts and deletions: no IV is sent twice under a key, and no packet
//! is accepted twice.
//!
//! A key that is used again, by a batch file after a restart or by a program that deletes a state
//! and adds it anew, must go on above all numbers that may have been sent with it, and accept none
//! that may have been received. So a journal on the disk keeps, for each state, numbers ahead of
//! use: it hands out none above what is reserved
//! ([`Sequence::reserve`](uxfrm_engine::Sequence::reserve)), and accepts none above its edge
//! ([`ReplayWindow::reserve`](uxfrm_engine::ReplayWindow::reserve)). A new state is not in force
//! before its first reservation is on the disk. An orderly end writes down the exact numbers; after
//! a crash of the machine the rest of a reservation is lost, which peers see as a gap, or which
//! drops. After a crash of the process alone windows go on where they were ([`witness`]).
//!
//! A journal may be lost, or an old copy of it put back. Then numbers repeat, so IVs must not hang
//! on numbers alone: their upper half is an [IV prefix](uxfrm_engine::IvPrefix) that is drawn at
//! random for each state and start, and never one that is known for the key.
//!
//! It is the key that must not meet an IV again. So numbers go on wherever the key is used, also
//! under another SPI, and a state that was given another key begins where its words say. The
//! journal names keys by their fingerprints and holds none. Keys of states that are gone and sent
//! something are remembered up to [`REMEMBERED`]; beyond, the one that went first is forgotten: key
//! managers make new keys all the time and never use one again. `docs/sequence-numbers.md` tells
//! all this to who runs a gateway.

mod adopt;
pub(crate) mod condition;
pub(crate) mod disk;
mod iv_prefixes;
mod journal;
pub(crate) mod memory;
mod received;
mod sa_name;
mod sent;
mod vm_snapshot;
mod witness;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use uxfrm_engine::{
    Direction, EndedAt, FIRST_RESERVED, IvPrefix, Mark, Moment, ReplayKeeper, ReplayStore, Sa,
    SaId, Sad,
};
use uxfrm_io::{poll::Waker, random};

use crate::descriptor_store::DescriptorStore;
pub(crate) use adopt::Reserved;
use condition::Condition;
use disk::{Disk, LocalDisk};
use iv_prefixes::{Draw, IvPrefixes};
use journal::{Contents, Journal, Record, StoreId};
use memory::{RunFile, WitnessStorage};
use received::{EdgeMove, NumberRate, ReceivedBefore};
use sa_name::SaName;
use sent::SentNumbers;
use witness::{Left, ReceivedNumbers, Witness};

/// How many numbers to send are reserved at a time: a second's at four million packets per second,
/// renewed when half are used. A crash loses them, so without ESN a key lasts a thousand crashes.
const AHEAD: u64 = 1 << 22;

/// How many states are looked at in one go for numbers that run short. With so many or fewer, each
/// is looked at every time; a million take eight times as long, which leaves a state that suddenly
/// sends two million packets a second with numbers to send.
const LOOKED_AT: usize = 1 << 17;

/// How long batches may be under way with a state that is no longer in the databases: longer than a
/// worker that has to wait for its turn.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// What the lock of the directory is called in the descriptor store.
const LOCK: &str = "sequences";

/// How many states that are gone are remembered, with their keys: about 100 bytes each, in memory
/// and on the disk.
const REMEMBERED: usize = 1 << 20;

/// The store of sequence numbers.
#[derive(Debug)]
pub(crate) struct SequenceStore {
    journal: Journal,
    condition: Condition,
    /// Where it lies, for people.
    directory: PathBuf,
    /// Whether it was removed or replaced while in use.
    was_replaced: bool,
    received: Arc<ReceivedNumbers>,
    is_settled: bool,
    sent: SentNumbers,
    prefixes: IvPrefixes,
    draw: Draw,
    /// What states may have received that are not there again.
    before: BTreeMap<SaName, ReceivedBefore>,
    /// What the journal says of what states receive that are there.
    edges: BTreeMap<SaName, ReceivedBefore>,
    /// The highest rate at which a state receives, in numbers a second: a state that comes may be
    /// about to take over another's traffic.
    fastest: u64,
    /// States that went, and until when batches may be under way with them.
    leaving: BTreeMap<SaName, (Moment, Arc<Sa>)>,
    /// States that were settled since the last commit, so that they can be
    /// [recalled](SequenceStore::recall).
    settled: Vec<EndedSa>,
    /// And those that were before it.
    recallable: Vec<EndedSa>,
    /// States that went, whose numbers the witness is to forget once the journal has.
    forgotten: Vec<Arc<Sa>>,
    /// What is reserved once the journal is on the disk.
    pending: Vec<(Arc<Sa>, NumberGrant)>,
    /// States, the one first that was not looked at for longest. Those that are gone are let go at
    /// the next look.
    watched: VecDeque<WatchedSa>,
    /// Why no prefix could be drawn, since the last commit.
    no_prefix: Option<io::Error>,
}

/// Numbers that a state may use once the journal is on the disk.
#[derive(Clone, Copy, Debug)]
enum NumberGrant {
    Sent(u64),
    Received(u64),
}

/// A state that hands out no more numbers, with its last ones.
#[derive(Debug)]
struct EndedSa {
    sa: Arc<Sa>,
    last: u64,
    reserved: u64,
    begun: u64,
}

#[derive(Debug)]
struct WatchedSa {
    sa: Arc<Sa>,
    /// Of one that received something.
    pace: Option<Box<NumberRate>>,
}

/// A directory's store, as one finds it who only looks.
///
/// # Errors
/// The kernel's; a store of a newer release.
pub(crate) fn inspect(path: &Path) -> io::Result<Condition> {
    let bytes = LocalDisk::peek(path)?;
    let contents = read(bytes.as_deref())?;
    let left = Left::read(&witness::place_of(path));
    Ok(condition_of(bytes.is_some(), &contents, left.identity))
}

/// What it means that nothing can be written to a directory.
pub(crate) fn unwritten(path: &Path, fault: &io::Error) -> String {
    condition::unwritten(fault, path)
}

/// The directory of what a store's gateway leaves in `/run`.
pub(crate) fn witness_path(path: &Path) -> Option<PathBuf> {
    let RunFile(file) = witness::place_of(path);
    file.parent().map(Path::to_owned)
}

/// Tells the log how a store was found.
pub(crate) fn report(condition: Condition, path: &Path) {
    let directory = path.display();
    match condition {
        Condition::Intact => {}
        Condition::New => tracing::info!(
            "the store of sequence numbers in {directory} is new; if static keys of this gateway were used before, give them new keys"
        ),
        Condition::Lost
        | Condition::RolledBack { .. }
        | Condition::Foreign
        | Condition::Damaged { .. } => {
            tracing::error!("{}", condition.told(path));
        }
    }
}

impl SequenceStore {
    /// Reads a directory's store, whose states wake a waiting gateway by `waker` when numbers to
    /// receive run short. Nothing is written but the witness.
    ///
    /// # Errors
    /// When the directory can't be this gateway's or can't be read, and for a store of a newer
    /// release.
    pub(crate) fn open(
        path: &Path,
        waker: Waker,
        descriptors: &mut DescriptorStore,
    ) -> io::Result<Self> {
        let disk = match descriptors.take(LOCK) {
            Some(lock) => LocalDisk::of_lock(path, lock)?,
            None => LocalDisk::open(path)?,
        };
        descriptors.keep(LOCK, disk.lock())?;
        let disk = Box::new(disk);
        let shelf = Box::new(witness::place_of(path));
        let mut store = Self::on(disk, Some(WitnessPlace { shelf, waker }), random_bits)?;
        path.clone_into(&mut store.directory);
        Ok(store)
    }

    /// Reads the store on a disk, with a witness or without, which draws random bits by `draw`.
    ///
    /// # Errors
    /// As [`SequenceStore::open`].
    pub(crate) fn on(
        mut disk: Box<dyn Disk>,
        remembered: Option<WitnessPlace>,
        draw: Draw,
    ) -> io::Result<Self> {
        let bytes = disk.read()?;
        let contents = read(bytes.as_deref())?;
        let left = remembered.as_ref().map_or_else(Left::default, |kept| Left::read(&*kept.shelf));
        let condition = condition_of(bytes.is_some(), &contents, left.identity);
        let identity = match contents.identity.filter(|identity| identity.id != 0) {
            Some(StoreId { id, generation }) => {
                let known = left.identity.filter(|left| left.id == id);
                let generation = known.map_or(generation, |known| known.generation.max(generation));
                StoreId { id, generation }
            }
            None => StoreId { id: new_id(draw)?, generation: 0 },
        };
        let received = remembered
            .map_or_else(|| ReceivedNumbers::new(None, None), |kept| kept.create(identity));
        let mut store = Self {
            journal: Journal::new(disk, identity),
            condition,
            directory: PathBuf::new(),
            was_replaced: false,
            received: Arc::new(received),
            is_settled: false,
            sent: SentNumbers::remembering(REMEMBERED),
            prefixes: IvPrefixes::default(),
            draw,
            before: BTreeMap::new(),
            edges: BTreeMap::new(),
            fastest: 0,
            leaving: BTreeMap::new(),
            settled: Vec::new(),
            recallable: Vec::new(),
            forgotten: Vec::new(),
            pending: Vec::new(),
            watched: VecDeque::new(),
            no_prefix: None,
        };
        store.learn(contents, left);
        Ok(store)
    }

    fn learn(&mut self, contents: Contents, left: Left) {
        let mut before = BTreeMap::new();
        let left = if is_from_last_run(&contents, &left) { left } else { Left::default() };
        for record in contents.records {
            match record {
                Record::Sent(state, highest) => self.sent.remember(state, highest),
                Record::Prefix(key, bits) => self.prefixes.learn(key, bits),
                Record::Received(state, from, edge) => {
                    before.insert(state, ReceivedBefore { from, edge });
                }
                Record::Forgotten(state) => {
                    before.remove(&state);
                }
            }
        }
        // The first commit writes all of it down, before the witness of this run takes the other's
        // place.
        self.before = before
            .into_iter()
            .map(|(state, before)| (state, before.settled(state, &left)))
            .collect();
    }

    /// How the store was found at the start.
    #[cfg(test)]
    pub(crate) const fn condition(&self) -> Condition {
        self.condition
    }

    /// Tells the log how the store was found.
    pub(crate) fn report(&self) {
        report(self.condition, &self.directory);
    }

    /// What whoever runs the gateway is to know of the store, a line each: as the log has said it.
    /// `fault` keeps numbers from being written down.
    pub(crate) fn notices(&self, fault: Option<&io::Error>) -> String {
        let found = self.condition.is_incomplete().then(|| self.condition.told(&self.directory));
        let replaced = self.was_replaced.then(|| condition::replaced(&self.directory));
        let unwritten = fault.map(|fault| self.unwritten(fault));
        let lines = found.into_iter().chain(replaced).chain(unwritten);
        lines.map(|line| line + "\n").collect()
    }

    /// What it means that numbers can't be written down, and the remedy.
    pub(crate) fn unwritten(&self, fault: &io::Error) -> String {
        condition::unwritten(fault, &self.directory)
    }

    /// States that received packets when the last run ended, and were not put in again.
    pub(crate) fn lost(&self) -> Vec<(SaId, Mark)> {
        self.before.keys().map(SaName::sa).collect()
    }

    /// Who keeps what states receive, for the databases.
    pub(crate) fn keeper(&self) -> ReplayKeeper {
        ReplayKeeper::new(Arc::clone(&self.received) as Arc<dyn ReplayStore>)
    }

    /// Lets a new state, which has no numbers yet, begin above all that may have been used with its
    /// key before: at its last one, if those were all. It hands out the first after
    /// [`SequenceStore::commit`].
    pub(crate) fn admit(&mut self, sa: &Arc<Sa>, now: Moment) {
        let state = SaName::of(sa);
        self.settle_key(state);
        if sends(sa) {
            self.admit_sender(sa, state);
        }
        if receives(sa) {
            self.admit_receiver(sa, state);
        }
        self.watch(sa, now);
    }

    /// Takes leave of a state that is no longer in the databases. Batches that are under way send
    /// with it yet; so it is settled by [`SequenceStore::settle_due`], or before, when its key is
    /// used again. What it received counts no more, as in the kernel.
    pub(crate) fn dismiss(&mut self, sa: &Arc<Sa>, now: Moment) {
        let state = SaName::of(sa);
        if self.edges.remove(&state).is_some() {
            self.journal.note(Record::Forgotten(state));
            self.forgotten.push(Arc::clone(sa));
        }
        if let Some((_, earlier)) =
            self.leaving.insert(state, (now.plus(UNDER_WAY), Arc::clone(sa)))
        {
            self.settle(&earlier);
        }
    }

    /// A state that came is taken back, as if it had never come: what was known of it is known
    /// still.
    pub(crate) fn withdraw(&mut self, sa: &Sa) {
        let state = SaName::of(sa);
        if let Some(before) = self.edges.remove(&state) {
            self.before.insert(state, before.unused());
        }
        self.settle(sa);
    }

    /// A state that went is about to be there again, as if it had never gone. Another with its key
    /// may have ended it meanwhile, which was never in force.
    pub(crate) fn recall(&mut self, sa: &Arc<Sa>) {
        let state = SaName::of(sa);
        self.leaving.remove(&state);
        self.before.remove(&state);
        self.forgotten.retain(|other| !other.is_same(sa));
        let mut ended = self.recallable.iter().chain(&self.settled);
        let ended = ended.find(|settled| settled.sa.is_same(sa));
        let reserved = match (sa.ended_at(), ended) {
            // Others went on in its place, from where it ended.
            (Some(EndedAt { reserved, .. }), ended) => {
                Some((reserved, ended.map_or_else(|| self.sent.begun(state), |ended| ended.begun)))
            }
            (None, Some(EndedSa { last, reserved, begun, .. })) => {
                sa.sequence().reopen(*last, *reserved);
                Some((*reserved, *begun))
            }
            (None, None) => None,
        };
        if let Some((reserved, begun)) = reserved.filter(|_| sends(sa)) {
            self.sent.reserve(state, reserved, begun);
            self.journal.note(Record::Sent(state, reserved));
        }
        if receives(sa) {
            let before =
                ReceivedBefore { from: sa.highest_received(), edge: sa.reserved_to_receive() };
            self.note_received(state, before);
        }
    }

    /// Another is there again in the place of a state that was [recalled](SequenceStore::recall).
    pub(crate) fn watch(&mut self, sa: &Arc<Sa>, now: Moment) {
        let pace = (sa.highest_received() > 0).then(|| Box::new(NumberRate::new(sa, now)));
        self.watched.push_back(WatchedSa { sa: Arc::clone(sa), pace });
    }

    /// Whether a run that follows a crash knows exactly what was received.
    #[cfg(test)]
    pub(crate) const fn has_witness(&self) -> bool {
        self.is_settled
    }

    /// Settles the states with which no batch is under way any more.
    pub(crate) fn settle_due(&mut self, now: Moment) {
        let (due, leaving) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|(_, (until, _))| *until <= now);
        self.leaving = leaving;
        self.settle_all(due);
    }

    /// Ends a state that is no longer in the databases: it hands out no number any more, and its
    /// last one is remembered.
    fn settle(&mut self, sa: &Sa) -> u64 {
        self.pending.retain(|(pending, _)| !pending.is_same(sa));
        let last = sa.sequence().close();
        if !sends(sa) {
            return last;
        }
        let state = SaName::of(sa);
        let highest = last.max(self.sent.begun(state));
        self.journal.note(Record::Sent(state, highest));
        self.sent.remember(state, highest);
        last
    }

    /// Reserves numbers for states that are running short of them: of [`LOOKED_AT`], the others'
    /// turn comes at the next times.
    ///
    /// # Errors
    /// As [`SequenceStore::commit`].
    pub(crate) fn renew(&mut self, now: Moment) -> io::Result<()> {
        self.fastest /= 2;
        for _ in 0..self.watched.len().min(LOOKED_AT) {
            let Some(mut watched) = self.watched.pop_front() else { break };
            if watched.sa.sequence().is_closed() {
                continue;
            }
            self.renew_sent(&watched.sa);
            self.renew_received(&mut watched, now);
            self.watched.push_back(watched);
        }
        if let Some(witness) = &self.received.witness
            && let Err(error) = witness.make_room()
        {
            tracing::debug!(%error, "no room for what states receive in /run");
        }
        self.commit()
    }

    /// Whether a state's numbers to receive run short, since this was asked last:
    /// [`SequenceStore::renew`] should not wait for its time.
    pub(crate) fn is_urgent(&self) -> bool {
        self.received.take_wanted()
    }

    /// Writes all anew if the store was removed or replaced while it is in use.
    ///
    /// # Errors
    /// As [`SequenceStore::commit`].
    pub(crate) fn check_place(&mut self) -> io::Result<()> {
        if !self.journal.check_place()? {
            tracing::error!("{}", condition::replaced(&self.directory));
            self.was_replaced = true;
            self.write_down()?;
        }
        Ok(())
    }

    /// Whether something was noted that is not on the disk.
    pub(crate) fn has_news(&self) -> bool {
        self.journal.has_news()
    }

    /// Brings all that was noted to the disk, and hands out the numbers that were reserved by it.
    ///
    /// # Errors
    /// When the journal can't be written; nothing is reserved then, and those states stop when
    /// theirs end. [`SequenceStore::renew`] tries again.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        if self.journal.has_news() {
            self.check_place().inspect_err(|_| self.pending.clear())?;
        }
        self.write_down()
    }

    fn write_down(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if let Some(error) = self.no_prefix.take() {
            return Err(error);
        }
        self.recallable = std::mem::take(&mut self.settled);
        self.forget_prefixes();
        let count =
            self.sent.iter().len() + self.prefixes.len() + self.before.len() + self.edges.len();
        let sent = self.sent.iter().map(|(state, highest)| Record::Sent(*state, highest));
        let prefixes = self.prefixes.iter().map(|(key, bits)| Record::Prefix(key, bits));
        let received = self.before.iter().chain(&self.edges);
        let received =
            received.map(|(state, before)| Record::Received(*state, before.from, before.edge));
        self.journal.commit(count, sent.chain(prefixes).chain(received))?;
        self.recallable.clear();
        self.note_commit();
        for (sa, grant) in pending {
            match grant {
                NumberGrant::Sent(ceiling) => sa.sequence().reserve(ceiling),
                NumberGrant::Received(edge) => allow_to_receive(&sa, edge),
            }
        }
        Ok(())
    }

    /// Writes down the very numbers that were used. The states must be at rest.
    ///
    /// # Errors
    /// When the journal can't be written; the reservations in it stand.
    pub(crate) fn close(&mut self, sad: &Sad) -> io::Result<()> {
        let leaving = std::mem::take(&mut self.leaving);
        self.settle_all(leaving);
        for sa in sad.iter() {
            self.settle(sa);
            self.settle_received(sa);
        }
        self.commit()?;
        // Workers are at rest, and nobody sends a state another packet.
        self.received.witness.as_ref().map_or(Ok(()), Witness::shrink)
    }

    fn admit_sender(&mut self, sa: &Arc<Sa>, state: SaName) {
        let used = self.sent.used_with_key_of(state);
        if used >= sa.config().last_number() {
            let (destination, spi) = (sa.id().destination, sa.id().spi);
            tracing::warn!(%destination, %spi, "this key has used all its sequence numbers: nothing is sent until it is replaced");
        }
        sa.sequence().skip_to(used);
        self.draw_iv_prefix(sa, state, upper_half(sa.sequence().last().saturating_add(1)));
        self.reserve_sent(sa, state, sa.sequence().last());
    }

    fn admit_receiver(&mut self, sa: &Arc<Sa>, state: SaName) {
        let own = sa.highest_received();
        let start = self.before.remove(&state).map_or(0, |before| before.edge).max(own);
        if start > own {
            sa.restart_at(start);
        }
        let edge = start.saturating_add(self.fastest.max(FIRST_RESERVED));
        self.note_received(state, ReceivedBefore { from: start, edge });
        // A state that has received nothing counts on so many, and needs no memory for it; but its
        // device has to be told.
        if (start, edge) != (0, FIRST_RESERVED) || sa.counts_elsewhere() {
            self.pending.push((Arc::clone(sa), NumberGrant::Received(edge)));
        }
    }

    fn renew_sent(&mut self, sa: &Arc<Sa>) {
        if sends(sa) && is_short(sa) {
            let state = SaName::of(sa);
            let begun = self.sent.begun(state);
            self.reserve_sent(sa, state, begun);
        }
    }

    fn renew_received(&mut self, watched: &mut WatchedSa, now: Moment) {
        let sa = &watched.sa;
        if !receives(sa) || sa.reserved_to_receive() == u64::MAX {
            return;
        }
        let edges = &self.edges;
        let pace = watched.pace.get_or_insert_with(|| {
            let start = edges.get(&SaName::of(sa)).map_or(0, |before| before.from);
            Box::new(NumberRate::new(sa, now).since(start))
        });
        let moved = pace.look(sa.replay(), now);
        // A peer that restarted leaves out many at once, which is no rate.
        self.fastest = self.fastest.max(pace.rate().min(received::MOST_AHEAD));
        let (from, edge) = match moved {
            None => return,
            Some(EdgeMove::Ahead(edge)) => {
                self.pending.push((Arc::clone(sa), NumberGrant::Received(edge)));
                (sa.highest_received(), edge)
            }
            Some(EdgeMove::Back(edge)) => {
                self.pending.push((Arc::clone(sa), NumberGrant::Received(edge)));
                (sa.highest_received(), edge)
            }
        };
        self.note_received(SaName::of(sa), ReceivedBefore { from, edge });
    }

    /// An orderly end: there is nothing between the highest number and the edge.
    fn settle_received(&mut self, sa: &Sa) {
        let state = SaName::of(sa);
        if let Some(before) = self.edges.get(&state).copied() {
            let exact = sa.highest_received().max(before.from);
            let settled = ReceivedBefore { from: exact, edge: exact };
            if before != settled {
                self.note_received(state, settled);
            }
        }
    }

    fn note_received(&mut self, state: SaName, before: ReceivedBefore) {
        self.edges.insert(state, before);
        self.journal.note(Record::Received(state, before.from, before.edge));
    }

    /// Settles what went and has the same key as a state.
    fn settle_key(&mut self, state: SaName) {
        let same = self.leaving.range(state.first_with_key()..).map(|(name, _)| *name);
        let same: Vec<_> = same.take_while(|name| name.shares_key(&state)).collect();
        let leaving = same.iter().filter_map(|name| self.leaving.remove_entry(name)).collect();
        self.settle_all(leaving);
    }

    fn settle_all(&mut self, leaving: BTreeMap<SaName, (Moment, Arc<Sa>)>) {
        for (state, (_, sa)) in leaving {
            let (reserved, begun) = (sa.sequence().reserved(), self.sent.begun(state));
            let last = self.settle(&sa);
            self.settled.push(EndedSa { sa, last, reserved, begun });
        }
    }

    fn reserve_sent(&mut self, sa: &Arc<Sa>, state: SaName, begun: u64) {
        let highest = sa.sequence().last().saturating_add(AHEAD);
        let upper = upper_half(highest.min(sa.config().last_number()));
        if sa.iv_prefix(upper).is_none() {
            self.draw_iv_prefix(sa, state, upper);
        }
        self.sent.reserve(state, highest, begun);
        self.journal.note(Record::Sent(state, highest));
        self.pending.push((Arc::clone(sa), NumberGrant::Sent(highest)));
    }

    /// Draws the prefix of numbers with an upper half, none of which is reserved yet.
    fn draw_iv_prefix(&mut self, sa: &Sa, state: SaName, upper: u32) {
        match self.prefixes.draw(state.key(), self.draw) {
            Ok(bits) => {
                self.journal.note(Record::Prefix(state.key(), bits.get()));
                sa.set_iv_prefix(IvPrefix::new(upper, bits));
            }
            Err(error) => self.no_prefix = Some(error),
        }
    }

    /// IvPrefixes of keys of which nothing is remembered, once there are many.
    fn forget_prefixes(&mut self) {
        if self.prefixes.len() <= 2 * self.sent.iter().len() + self.sent.remembered {
            return;
        }
        let keys: Vec<_> = self.prefixes.keys().filter(|key| !self.sent.has_key(*key)).collect();
        keys.into_iter().for_each(|key| self.prefixes.forget(key));
    }

    /// The journal is on the disk: the witness may know.
    fn note_commit(&mut self) {
        let Some(witness) = &self.received.witness else { return self.forgotten.clear() };
        witness.note(self.journal.identity().generation);
        self.forgotten.drain(..).for_each(|sa| witness.forget(&sa));
        if !self.is_settled {
            match witness.settle() {
                Ok(()) => self.is_settled = true,
                Err(error) => tracing::debug!(%error, "no witness of sequence numbers in /run"),
            }
        }
    }
}

/// Where the witness lies, and the poller to wake when numbers run short.
pub(crate) struct WitnessPlace {
    pub(crate) shelf: Box<dyn WitnessStorage>,
    pub(crate) waker: Waker,
}

impl WitnessPlace {
    fn create(self, identity: StoreId) -> ReceivedNumbers {
        let created = Witness::create(&*self.shelf, identity);
        let told = created.inspect_err(|error| {
            let name = self.shelf.name();
            tracing::info!(
                "{name} can't be written ({error}): after a crash windows begin at their reserved edges, and a store that was rolled back is not found out"
            );
        });
        ReceivedNumbers::new(told.ok(), Some(self.waker))
    }
}

fn read(bytes: Option<&[u8]>) -> io::Result<Contents> {
    bytes.map_or_else(|| Ok(Contents::default()), journal::read)
}

fn condition_of(is_there: bool, contents: &Contents, left: Option<StoreId>) -> Condition {
    match (contents.identity, left) {
        (None, None) if !is_there => Condition::New,
        (None, _) if contents.records.is_empty() && contents.damaged == 0 && !contents.has_text => {
            Condition::Lost
        }
        (None, _) => Condition::Damaged { groups: contents.damaged },
        (Some(found), Some(left)) if found.id != left.id => Condition::Foreign,
        (Some(found), Some(left)) if found.generation < left.generation => {
            Condition::RolledBack { found: found.generation, expected: left.generation }
        }
        (Some(_), _) if contents.damaged > 0 => Condition::Damaged { groups: contents.damaged },
        (Some(_), _) => Condition::Intact,
    }
}

/// Whether a witness is of the run that wrote a journal last: it is told right after each commit.
fn is_from_last_run(contents: &Contents, left: &Left) -> bool {
    match (contents.identity, left.identity) {
        (Some(found), Some(left)) => {
            found.id == left.id && found.generation <= left.generation.saturating_add(1)
        }
        (Some(_) | None, _) => false,
    }
}

fn random_bits() -> io::Result<u32> {
    let mut bits = [0; 4];
    random::fill(&mut bits)?;
    Ok(u32::from_ne_bytes(bits))
}

fn new_id(draw: Draw) -> io::Result<u128> {
    (0..4).try_fold(0, |id, _| Ok(id << 32 | u128::from(draw()?)))
}

fn sends(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::In)
}

/// Whether its window is to be kept.
fn receives(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::Out) && sa.config().window > 0
}

/// A state may receive up to there. What a device receives nobody sees at once: all that it may
/// receive counts as received where the process ends.
fn allow_to_receive(sa: &Sa, edge: u64) {
    sa.replay().reserve(edge);
    if let Some(cell) = sa.received_cell().filter(|_| sa.counts_elsewhere()) {
        cell.store(edge.max(sa.highest_received()), Ordering::Release);
    }
}

/// Whether less than half a reservation is left, and there are more numbers to reserve.
fn is_short(sa: &Sa) -> bool {
    let (reserved, last) = (sa.sequence().reserved(), sa.sequence().last());
    reserved < sa.config().last_number() && reserved.saturating_sub(last) < AHEAD / 2
}

const fn upper_half(number: u64) -> u32 {
    (number >> 32) as u32
}

#[cfg(any(test, fuzzing))]
pub use journal::fuzz::decode as decode_journal;
#[cfg(test)]
pub(crate) mod journal_view;
#[cfg(test)]
mod tests;
