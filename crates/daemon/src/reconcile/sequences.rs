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
mod found;
mod iv_prefixes;
mod journal;
mod leaving;
pub(crate) mod memory;
mod pending_grants;
mod received;
mod reservation;
mod sa_name;
mod sent;
mod vm_snapshot;
mod witness;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::PathBuf,
    sync::Arc,
};

use uxfrm_engine::{Direction, Mark, Moment, ReplayKeeper, ReplayStore, Sa, SaId, Sad};

pub(crate) use adopt::Reserved;
use condition::Condition;
#[cfg(test)]
pub(crate) use found::WitnessPlace;
pub(crate) use found::{inspect, report, unwritten, witness_path};
use iv_prefixes::{Draw, IvPrefixes};
use journal::{Journal, Record};
use leaving::{ByName, EndedSa};
use pending_grants::PendingGrants;
use received::ReceivedBefore;
use reservation::{NumberGrant, WatchedSa, allow_to_receive};
use sa_name::SaName;
use sent::SentNumbers;
use witness::{ReceivedNumbers, Witness};

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
    settled: ByName<EndedSa>,
    /// And those that were before it.
    recallable: ByName<EndedSa>,
    /// States that went, whose numbers the witness is to forget once the journal has.
    forgotten: ByName<Arc<Sa>>,
    /// What is reserved once the journal is on the disk.
    pending: PendingGrants,
    /// States, the one first that was not looked at for longest. Those that are gone are let go at
    /// the next look.
    watched: VecDeque<WatchedSa>,
    /// Why no prefix could be drawn, since the last commit.
    no_prefix: Option<io::Error>,
}

impl SequenceStore {
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

    /// Whether a run that follows a crash knows exactly what was received.
    #[cfg(test)]
    pub(crate) const fn has_witness(&self) -> bool {
        self.is_settled
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
        for (sa, grant) in pending.into_all() {
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

    /// The journal is on the disk: the witness may know.
    fn note_commit(&mut self) {
        let Some(witness) = &self.received.witness else { return self.forgotten.clear() };
        witness.note(self.journal.identity().generation);
        self.forgotten.take_all().for_each(|sa| witness.forget(&sa));
        if !self.is_settled {
            match witness.settle() {
                Ok(()) => self.is_settled = true,
                Err(error) => tracing::debug!(%error, "no witness of sequence numbers in /run"),
            }
        }
    }
}

fn sends(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::In)
}

/// Whether its window is to be kept.
fn receives(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::Out) && sa.config().window > 0
}

#[cfg(any(test, fuzzing))]
pub use journal::fuzz::decode as decode_journal;
#[cfg(test)]
pub(crate) mod journal_view;
#[cfg(test)]
mod tests;
