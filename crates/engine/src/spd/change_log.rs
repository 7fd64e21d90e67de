//! How often policies have changed, and whom the latest changes may concern.

use std::sync::Arc;

use super::scope::Concern;

/// The number of changes so far, and the concerns of the last of them.
#[derive(Clone, Debug)]
pub(crate) struct News {
    changes: u64,
    /// In the place that a change's number says.
    latest: Arc<[Concern; KEPT]>,
}

/// Concerns that are kept: of what changes in some milliseconds when 100,000 policies come a second.
const KEPT: usize = 1024;

impl Default for News {
    fn default() -> Self {
        Self { changes: 0, latest: Arc::new([Concern::All; KEPT]) }
    }
}

impl News {
    /// How many changes there were.
    #[inline]
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Something has changed.
    pub(crate) fn note(&mut self, concern: Concern) {
        let at = place(self.changes);
        Arc::make_mut(&mut self.latest)[at] = concern;
        self.changes += 1;
    }

    /// Much has changed at once.
    pub(crate) fn note_each(&mut self, concerns: impl ExactSizeIterator<Item = Concern>) {
        if concerns.len() > KEPT {
            return self.note(Concern::All);
        }
        concerns.for_each(|concern| self.note(concern));
    }

    /// Whom the changes after so many of them may concern; `None` when they are too many to be known.
    pub(crate) fn since(&self, changes: u64) -> Option<impl Iterator<Item = Concern>> {
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
    use crate::spd::scope::Grain;

    /// As many as are kept.
    const MANY: u32 = 1024;

    fn concern(number: u32) -> Concern {
        let [.., a, b] = number.to_be_bytes();
        Concern::Cell(Grain::Source(0), u16::from_be_bytes([a, b]))
    }

    #[test]
    fn the_latest_are_known_and_more_are_said_to_be_too_many() {
        let mut news = News::default();
        (0..5000).for_each(|number| news.note(concern(number)));
        assert_eq!((news.changes(), KEPT), (5000, MANY as usize));
        for since in [5000, 4999, 4500, 5000 - MANY] {
            let expected: Vec<_> = (since..5000).map(concern).collect();
            assert_eq!(news.since(since.into()).map(Iterator::collect), Some(expected));
        }
        assert!(news.since(u64::from(4999 - MANY)).is_none(), "too many");
        assert!(news.since(5001).is_none(), "of some other policies");
    }

    #[test]
    fn a_copy_keeps_what_it_was() {
        let mut news = News::default();
        news.note(concern(1));
        let before = news.clone();
        (2..2000).for_each(|number| news.note(concern(number)));
        assert_eq!(before.since(0).map(Iterator::collect), Some(vec![concern(1)]));
    }

    #[test]
    fn a_crowd_at_once_concerns_all() {
        let mut news = News::default();
        let crowd = |len: u32| (0..len).map(concern).collect::<Vec<_>>().into_iter();
        news.note_each(crowd(MANY));
        assert_eq!(news.changes(), u64::from(MANY));
        news.note_each(crowd(MANY + 1));
        let latest = news.since(u64::from(MANY)).map(Iterator::collect);
        assert_eq!(latest, Some(vec![Concern::All]));
    }
}
