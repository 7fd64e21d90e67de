//! Number of policy changes, and which flows the latest ones can affect.

use std::sync::Arc;

use super::scope::InvalidationScope;

/// Number of changes, and the scopes of the latest.
#[derive(Clone, Debug)]
pub(crate) struct PolicyChangeLog {
    changes: u64,
    /// Ring buffer, indexed by change number.
    latest: Arc<[InvalidationScope; KEPT]>,
}

/// Scopes kept: some milliseconds of changes at 100,000 policies a second.
const KEPT: usize = 1024;

impl Default for PolicyChangeLog {
    fn default() -> Self {
        Self { changes: 0, latest: Arc::new([InvalidationScope::All; KEPT]) }
    }
}

impl PolicyChangeLog {
    /// Number of changes.
    #[inline]
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Records a change.
    pub(crate) fn record(&mut self, scope: InvalidationScope) {
        let at = place(self.changes);
        Arc::make_mut(&mut self.latest)[at] = scope;
        self.changes += 1;
    }

    /// Records many changes; as one that affects all flows if they are too many.
    pub(crate) fn record_all(&mut self, scopes: impl ExactSizeIterator<Item = InvalidationScope>) {
        if scopes.len() > KEPT {
            return self.record(InvalidationScope::All);
        }
        scopes.for_each(|scope| self.record(scope));
    }

    /// Scopes of the changes after the first `changes`; `None` if some are no longer kept.
    pub(crate) fn since(&self, changes: u64) -> Option<impl Iterator<Item = InvalidationScope>> {
        let missed = self.changes.checked_sub(changes)?;
        (missed <= KEPT as u64).then(|| (changes..self.changes).map(|at| self.latest[place(at)]))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
const fn place(change: u64) -> usize {
    (change % KEPT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::scope::PrefixGranularity;

    /// Number of scopes kept.
    const MANY: u32 = 1024;

    fn scope(number: u32) -> InvalidationScope {
        let [.., a, b] = number.to_be_bytes();
        InvalidationScope::Bucket(PrefixGranularity::Source(0), u16::from_be_bytes([a, b]))
    }

    #[test]
    fn change_log_keeps_latest_and_reports_overflow() {
        let mut log = PolicyChangeLog::default();
        (0..5000).for_each(|number| log.record(scope(number)));
        assert_eq!((log.changes(), KEPT), (5000, MANY as usize));
        for since in [5000, 4999, 4500, 5000 - MANY] {
            let expected: Vec<_> = (since..5000).map(scope).collect();
            assert_eq!(log.since(since.into()).map(Iterator::collect), Some(expected));
        }
        assert!(log.since(u64::from(4999 - MANY)).is_none(), "too many");
        assert!(log.since(5001).is_none(), "of some other policies");
    }

    #[test]
    fn change_log_clone_is_independent() {
        let mut log = PolicyChangeLog::default();
        log.record(scope(1));
        let before = log.clone();
        (2..2000).for_each(|number| log.record(scope(number)));
        assert_eq!(before.since(0).map(Iterator::collect), Some(vec![scope(1)]));
    }

    #[test]
    fn change_log_too_many_at_once_affect_all() {
        let mut log = PolicyChangeLog::default();
        let crowd = |len: u32| (0..len).map(scope).collect::<Vec<_>>().into_iter();
        log.record_all(crowd(MANY));
        assert_eq!(log.changes(), u64::from(MANY));
        log.record_all(crowd(MANY + 1));
        let latest = log.since(u64::from(MANY)).map(Iterator::collect);
        assert_eq!(latest, Some(vec![InvalidationScope::All]));
    }
}
