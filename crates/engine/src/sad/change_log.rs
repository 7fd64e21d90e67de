//! SPIs of the latest SA changes: what is known of packets with other SPIs stays valid.

use std::sync::Arc;

use crate::Spi;

/// SPIs of the SAs that were inserted, removed or changed last.
#[derive(Clone, Debug)]
pub(crate) struct SaChangeLog {
    /// Ring buffer, indexed by change number.
    latest: Arc<[Spi; KEPT]>,
}

/// Changes kept: far more than come between two batches, unless many come at once.
const KEPT: usize = 256;

impl Default for SaChangeLog {
    fn default() -> Self {
        Self { latest: Arc::new([Spi(0); KEPT]) }
    }
}

impl SaChangeLog {
    /// Records a change.
    pub(crate) fn note(&mut self, change: u64, spi: Spi) {
        Arc::make_mut(&mut self.latest)[place(change)] = spi;
    }

    /// SPIs of these changes, up to the latest; `None` if some are no longer kept.
    pub(crate) fn of(
        &self,
        changes: std::ops::Range<u64>,
    ) -> Option<impl ExactSizeIterator<Item = Spi>> {
        let missed = usize::try_from(changes.end.checked_sub(changes.start)?).ok()?;
        (missed <= KEPT)
            .then(|| (0..missed).map(move |at| self.latest[place(changes.start + at as u64)]))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
const fn place(change: u64) -> usize {
    (change % KEPT as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_log_keeps_latest_and_reports_overflow() {
        let mut news = SaChangeLog::default();
        (0..1000).for_each(|change| news.note(change, Spi(u32::try_from(change).unwrap())));
        let of = |since| news.of(since..1000).map(Iterator::collect::<Vec<_>>);
        for since in [1000, 999, 900, 1000 - KEPT as u64] {
            let expected = (since..1000).map(|change| Spi(u32::try_from(change).unwrap()));
            assert_eq!(of(since), Some(expected.collect()));
        }
        assert_eq!(of(999 - KEPT as u64), None, "too many");
        assert_eq!(of(1001), None, "of other states");
    }
}
