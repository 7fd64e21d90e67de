//! Sequence numbers across restarts and deletions: no IV is used twice under a static key.
//!
//! A key that is used again, by a batch file after a restart or by a program that deletes a state and adds it anew, must go on above all
//! numbers that may have been used with it. A file keeps, for each state that sends, a number ahead of use; a state hands out none above
//! it ([`Sequence::reserve`](uxfrm_engine::Sequence::reserve)), and a new state none at all before its first reservation is on the disk.
//! An orderly end, and a state's deletion, write down the exact number; after a crash the rest of a reservation is lost, which peers see as
//! a gap.
//!
//! It is the key that must not meet an IV again. So numbers go on wherever the key is used, also under another SPI, and a state
//! that was given another key begins where its words say. The file names keys by their fingerprints and holds none. Keys of states that
//! are gone and sent something are remembered up to [`REMEMBERED`]; beyond, the one that went first is forgotten: key managers make new
//! keys all the time and never use one again.

mod claim;
mod journal;
mod name;
mod numbers;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::Path,
    sync::Arc,
    time::Duration,
};

use uxfrm_engine::{Direction, Moment, Sa, Sad};

pub(crate) use claim::Claim;
use journal::Journal;
use name::StateName;
use numbers::Numbers;

/// How many numbers are reserved at a time: a second's at four million packets per second, renewed when half are used. A
/// crash loses them, so without ESN a key lasts a thousand crashes.
const AHEAD: u64 = 1 << 22;

/// How many states are looked at in one go for numbers that run short. With so many or fewer, each is looked at every time; a million take
/// eight times as long, which leaves a state that suddenly sends two million packets a second with numbers to send.
const LOOKED_AT: usize = 1 << 17;

/// How long batches may be under way with a state that is no longer in the databases: longer than a worker that has to wait for its turn.
const UNDER_WAY: Duration = Duration::from_millis(500);

/// How many states that are gone are remembered, with their keys: about 100 bytes each, in memory and on the disk.
const REMEMBERED: usize = 1 << 20;

/// The file of reservations, and what it says.
#[derive(Debug)]
pub(crate) struct Reservations {
    journal: Journal,
    numbers: Numbers,
    /// States that went, and until when batches may be under way with them.
    leaving: BTreeMap<StateName, (Moment, Arc<Sa>)>,
    /// What is reserved once the journal is on the disk.
    pending: Vec<(Arc<Sa>, u64)>,
    /// States that send, the one first that was not looked at for longest. Those that are gone are let go at the next look.
    watched: VecDeque<Arc<Sa>>,
}

impl Reservations {
    /// Reads the file; none yet is an empty one. Nothing is written.
    ///
    /// # Errors
    /// A file that can't be read or has other lines than ours: starting without it could use an IV twice.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let (journal, read) = Journal::open(path)?;
        let mut reservations = Self {
            journal,
            numbers: Numbers::remembering(REMEMBERED),
            leaving: BTreeMap::new(),
            pending: Vec::new(),
            watched: VecDeque::new(),
        };
        for (state, highest) in read {
            reservations.numbers.remember(state, highest);
        }
        Ok(reservations)
    }

    /// Lets a new state, which has no numbers yet, begin above all that may have been used with its key before: at its last one, if those
    /// were all. It hands out the first after [`Reservations::commit`].
    pub(crate) fn admit(&mut self, sa: &Arc<Sa>) {
        if !sends(sa) {
            return;
        }
        let state = StateName::of(sa);
        self.settle_key(state);
        let used = self.numbers.used_with_key_of(state);
        if used >= sa.config().last_number() {
            let (destination, spi) = (sa.id().destination, sa.id().spi);
            tracing::warn!(%destination, %spi, "this key has used all its sequence numbers: nothing is sent until it is replaced");
        }
        sa.sequence().skip_to(used);
        self.reserve(sa, state, sa.sequence().last());
        self.watched.push_back(Arc::clone(sa));
    }

    /// Takes leave of a state that is no longer in the databases. Batches that are under way send with it yet; so it is settled by
    /// [`Reservations::settle_due`], or before, when its key is used again.
    pub(crate) fn dismiss(&mut self, sa: &Arc<Sa>, now: Moment) {
        if !sends(sa) {
            return;
        }
        let state = StateName::of(sa);
        if let Some((_, earlier)) =
            self.leaving.insert(state, (now.plus(UNDER_WAY), Arc::clone(sa)))
        {
            self.settle(&earlier);
        }
    }

    /// Settles the states with which no batch is under way any more.
    pub(crate) fn settle_due(&mut self, now: Moment) {
        let (due, leaving) = std::mem::take(&mut self.leaving)
            .into_iter()
            .partition(|(_, (until, _))| *until <= now);
        self.leaving = leaving;
        self.settle_all(due);
    }

    /// Ends a state that is no longer in the databases: it hands out no number any more, and its last one is remembered.
    pub(crate) fn settle(&mut self, sa: &Sa) {
        if !sends(sa) {
            return;
        }
        let state = StateName::of(sa);
        self.pending.retain(|(pending, _)| !pending.is_same(sa));
        let last = sa.sequence().close();
        let highest = last.max(self.numbers.begun(state));
        self.journal.note(&state, highest);
        self.numbers.remember(state, highest);
    }

    /// Reserves numbers for states that are running short of them: of [`LOOKED_AT`], the others' turn comes at the next times.
    ///
    /// # Errors
    /// As [`Reservations::commit`].
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        for _ in 0..self.watched.len().min(LOOKED_AT) {
            let Some(sa) = self.watched.pop_front() else { break };
            if sa.sequence().is_closed() {
                continue;
            }
            if is_short(&sa) {
                let state = StateName::of(&sa);
                let begun = self.numbers.begun(state);
                self.reserve(&sa, state, begun);
            }
            self.watched.push_back(sa);
        }
        self.commit()
    }

    /// Whether something was noted that is not on the disk.
    pub(crate) fn has_news(&self) -> bool {
        self.journal.has_news()
    }

    /// Brings all that was noted to the disk, and hands out the numbers that were reserved by it.
    ///
    /// # Errors
    /// When the file can't be written; nothing is reserved then, and those states stop when theirs end. [`Reservations::renew`] tries
    /// again.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.journal.commit(self.numbers.iter())?;
        pending.iter().for_each(|(sa, ceiling)| sa.sequence().reserve(*ceiling));
        Ok(())
    }

    /// Writes down the very numbers that were used. The states must be at rest.
    ///
    /// # Errors
    /// When the file can't be written; the reservations in it stand.
    pub(crate) fn close(mut self, sad: &Sad) -> io::Result<()> {
        let leaving = std::mem::take(&mut self.leaving);
        self.settle_all(leaving);
        sad.iter().for_each(|sa| self.settle(sa));
        self.commit()
    }

    /// Settles what went and has the same key as a state.
    fn settle_key(&mut self, state: StateName) {
        let same = self.leaving.range(state.first_with_key()..).map(|(name, _)| *name);
        let same: Vec<_> = same.take_while(|name| name.shares_key(&state)).collect();
        let leaving = same.iter().filter_map(|name| self.leaving.remove_entry(name)).collect();
        self.settle_all(leaving);
    }

    fn settle_all(&mut self, leaving: BTreeMap<StateName, (Moment, Arc<Sa>)>) {
        leaving.values().for_each(|(_, sa)| self.settle(sa));
    }

    fn reserve(&mut self, sa: &Arc<Sa>, state: StateName, begun: u64) {
        let highest = sa.sequence().last().saturating_add(AHEAD);
        self.numbers.reserve(state, highest, begun);
        self.journal.note(&state, highest);
        self.pending.push((Arc::clone(sa), highest));
    }
}

fn sends(sa: &Sa) -> bool {
    sa.config().direction != Some(Direction::In)
}

/// Whether less than half a reservation is left, and there are more numbers to reserve.
fn is_short(sa: &Sa) -> bool {
    let (reserved, last) = (sa.sequence().reserved(), sa.sequence().last());
    reserved < sa.config().last_number() && reserved.saturating_sub(last) < AHEAD / 2
}

#[cfg(test)]
mod tests;
