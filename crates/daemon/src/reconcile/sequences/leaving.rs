//! States that go: batches under way still send with them, and a change that fails brings them
//! back.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use uxfrm_engine::{EndedAt, Moment, Sa};

use super::{
    SequenceStore, journal::Record, received::ReceivedBefore, receives, sa_name::SaName, sends,
};

/// How long batches may be under way with a state that is no longer in the databases: longer than a
/// worker that has to wait for its turn.
pub(super) const UNDER_WAY: Duration = Duration::from_millis(500);

/// A state that hands out no more numbers, with its last ones.
#[derive(Debug)]
pub(super) struct EndedSa {
    pub(super) sa: Arc<Sa>,
    pub(super) last: u64,
    pub(super) reserved: u64,
    pub(super) begun: u64,
}

/// States by their names, which they keep: one that comes back is found among very many that went
/// with it.
#[derive(Debug)]
pub(super) struct ByName<T>(BTreeMap<SaName, Vec<T>>);

impl<T> Default for ByName<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> ByName<T> {
    pub(super) fn push(&mut self, state: SaName, one: T) {
        self.0.entry(state).or_default().push(one);
    }

    /// The first of this name that is wanted.
    fn find(&self, state: SaName, is_wanted: impl Fn(&T) -> bool) -> Option<&T> {
        self.0.get(&state)?.iter().find(|one| is_wanted(one))
    }

    /// Keeps those of this name that are wanted, and all others.
    fn retain(&mut self, state: SaName, is_wanted: impl Fn(&T) -> bool) {
        if let Some(of_name) = self.0.get_mut(&state) {
            of_name.retain(is_wanted);
        }
    }

    /// How many each name has.
    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = usize> {
        self.0.values().map(Vec::len)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// All of them, of which nothing is left.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.0).into_values().flatten()
    }
}

impl SequenceStore {
    /// Takes leave of a state that is no longer in the databases. Batches that are under way send
    /// with it yet; so it is settled by [`SequenceStore::settle_due`], or before, when its key is
    /// used again. What it received counts no more, as in the kernel.
    pub(crate) fn dismiss(&mut self, sa: &Arc<Sa>, now: Moment) {
        let state = SaName::of(sa);
        if self.edges.remove(&state).is_some() {
            self.journal.note(Record::Forgotten(state));
            self.forgotten.push(state, Arc::clone(sa));
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
        self.forgotten.retain(state, |other| !other.is_same(sa));
        let is_this = |settled: &EndedSa| settled.sa.is_same(sa);
        let ended = self.recallable.find(state, is_this);
        let ended = ended.or_else(|| self.settled.find(state, is_this));
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
    pub(super) fn settle(&mut self, sa: &Sa) -> u64 {
        self.pending.withdraw(sa);
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

    /// An orderly end: there is nothing between the highest number and the edge.
    pub(super) fn settle_received(&mut self, sa: &Sa) {
        let state = SaName::of(sa);
        if let Some(before) = self.edges.get(&state).copied() {
            let exact = sa.highest_received().max(before.from);
            let settled = ReceivedBefore { from: exact, edge: exact };
            if before != settled {
                self.note_received(state, settled);
            }
        }
    }

    /// Settles what went and has the same key as a state.
    pub(super) fn settle_key(&mut self, state: SaName) {
        let same = self.leaving.range(state.first_with_key()..).map(|(name, _)| *name);
        let same: Vec<_> = same.take_while(|name| name.shares_key(&state)).collect();
        let leaving = same.iter().filter_map(|name| self.leaving.remove_entry(name)).collect();
        self.settle_all(leaving);
    }

    pub(super) fn settle_all(&mut self, leaving: BTreeMap<SaName, (Moment, Arc<Sa>)>) {
        for (state, (_, sa)) in leaving {
            let (reserved, begun) = (sa.sequence().reserved(), self.sent.begun(state));
            let last = self.settle(&sa);
            self.settled.push(state, EndedSa { sa, last, reserved, begun });
        }
    }
}
