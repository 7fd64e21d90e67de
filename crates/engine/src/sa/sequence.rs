//! Outbound sequence numbers: handed out in blocks, one atomic operation per batch, no number
//! twice.

use uxfrm_packet::prefetch_far;

use crate::DropReason;
use crate::sync::{AtomicU64, Ordering};

/// The numbers of an outbound SA (RFC 4303 §2.2, §3.3.3). The IV contains the low half, so the
/// security of GCM rests on the promise "none twice"; it holds for any number of workers, also at
/// the end of the numbers.
///
/// ```
/// use uxfrm_engine::{DropReason, Sequence};
///
/// let sequence = Sequence::new(0, u32::MAX.into());
/// sequence.reserve(3); // after 3 was written down
/// assert_eq!(sequence.take(2).map(|block| block.first), Ok(1));
/// assert_eq!(sequence.take(2).map(|block| block.count), Ok(1));
/// assert_eq!(sequence.take(2), Err(DropReason::OutSequenceReserve));
/// ```
#[derive(Debug)]
pub struct Sequence {
    /// The last number handed out, or beyond it when workers asked for more than there was.
    last: AtomicU64,
    /// Numbers up to this may be handed out now; see [`Sequence::reserve`]. Never above `limit`.
    ceiling: AtomicU64,
    limit: u64,
}

/// Consecutive numbers that belong to the caller who took them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceBlock {
    /// The lowest, all 64 bits; the packet carries the low half.
    pub first: u64,
    /// How many: at least 1, at most as many as requested.
    pub count: u32,
}

impl Sequence {
    /// Numbers above `sent` up to `limit`.
    #[must_use]
    pub fn new(sent: u64, limit: u64) -> Self {
        Self { last: AtomicU64::new(sent), ceiling: AtomicU64::new(limit), limit }
    }

    /// Sets the ceiling: no number above it is handed out. An owner that keeps numbers across a
    /// restart (static keys) stores `ceiling` first and then calls this, so that stored numbers are
    /// always ahead of used ones.
    ///
    /// With a [`ReplayStore`](crate::ReplayStore), and for numbers from 2^32 on, the owner also
    /// [draws](crate::Sa::set_iv_prefix) their IV prefix first: a worker
    /// [panics](crate::Sa::iv_counter) at a number without one.
    pub fn reserve(&self, ceiling: u64) {
        // Release: a thread that takes one of these numbers finds the IV prefix drawn for it.
        self.ceiling.store(ceiling.min(self.limit), Ordering::Release);
    }

    /// The ceiling.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.ceiling.load(Ordering::Relaxed)
    }

    /// Begins above `used`, or at the end if all were used; never goes back. For an SA that has
    /// handed out none.
    pub fn skip_to(&self, used: u64) {
        self.last.fetch_max(used.min(self.limit), Ordering::Relaxed);
    }

    /// Closes the sequence. No number above the returned one was ever handed out, or will be.
    #[must_use]
    pub fn close(&self) -> u64 {
        let ceiling = self.reserved();
        self.ceiling.store(0, Ordering::Relaxed);
        if ceiling >= NEAR_WRAP {
            self.last.fetch_max(NEAR_WRAP, Ordering::Relaxed);
            return ceiling;
        }
        // A worker that still sees the old ceiling comes before this in the order of `last`, or
        // finds itself above that ceiling.
        self.last.swap(NEAR_WRAP, Ordering::Relaxed).min(ceiling)
    }

    /// Undoes [`Sequence::close`]: numbers above `last` up to `ceiling` may be handed out again.
    pub fn reopen(&self, last: u64, ceiling: u64) {
        // A request in between finds the closed counter, or nothing reserved.
        self.last.store(last.min(self.limit), Ordering::Relaxed);
        self.reserve(ceiling);
    }

    /// Whether it is closed by [`Sequence::close`].
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.reserved() == 0 && self.last.load(Ordering::Relaxed) >= NEAR_WRAP
    }

    /// Like [`Sequence::close`], for numbers without a reservation.
    pub(crate) fn end(&self) -> u64 {
        // So many numbers are never sent, and below this value closing knows how many were.
        let ceiling = self.ceiling.fetch_min(NEAR_WRAP - 1, Ordering::Relaxed);
        let last = self.last.load(Ordering::Relaxed);
        if last >= NEAR_WRAP { ceiling } else { self.close() }
    }

    /// Takes up to `count` (at least 1) numbers; fewer only at their end, and none after it.
    ///
    /// # Errors
    /// [`DropReason::OutSequenceOverflow`] when no number is left, for good.
    /// [`DropReason::OutSequenceReserve`] when none is reserved.
    #[inline]
    pub fn take(&self, count: u32) -> Result<SequenceBlock, DropReason> {
        // Relaxed for `last`: a read-modify-write always sees the latest value of its own variable,
        // and no other data depends on it. Acquire for `ceiling`: IV prefixes are drawn before it
        // rises.
        let wanted = u64::from(count.max(1));
        let last = self.last.load(Ordering::Relaxed);
        if last >= self.ceiling.load(Ordering::Relaxed) {
            return Err(self.shortage());
        }
        let taken = if last < NEAR_WRAP {
            self.last.fetch_add(wanted, Ordering::Relaxed)
        } else {
            self.take_near_wrap(wanted)
        };
        let left = self.ceiling.load(Ordering::Acquire).saturating_sub(taken).min(wanted);
        match u32::try_from(left) {
            Ok(0) | Err(_) if taken >= self.limit => Err(DropReason::OutSequenceOverflow),
            Ok(0) | Err(_) => Err(DropReason::OutSequenceReserve),
            Ok(count) => Ok(SequenceBlock { first: taken + 1, count }),
        }
    }

    /// Why [`Sequence::take`] gave fewer numbers than requested.
    #[cold]
    pub(crate) fn shortage(&self) -> DropReason {
        if self.last.load(Ordering::Relaxed) >= self.limit {
            DropReason::OutSequenceOverflow
        } else {
            DropReason::OutSequenceReserve
        }
    }

    /// Prefetches the end of what [`Sequence::take`] accesses, which may span two cache lines.
    #[inline]
    pub(crate) fn prefetch_limit(&self) {
        prefetch_far(&self.limit);
    }

    /// No number up to this is handed out any more: the last one, or the one to which
    /// [`Sequence::skip_to`] went (`replay_oseq`, `oseq` and `oseq_hi` of a dump). Above
    /// [`Sequence::reserved`] where workers asked for more than there was: a new reservation begins
    /// here, and what lies between is left out.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed).min(self.limit)
    }

    /// Here the counter stays at the end instead of wrapping.
    #[cold]
    fn take_near_wrap(&self, wanted: u64) -> u64 {
        let add = |last: u64| Some(last.saturating_add(wanted));
        match self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(before) | Err(before) => before,
        }
    }
}

impl SequenceBlock {
    /// The numbers, ascending.
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        (0..u64::from(self.count)).map(move |step| self.first + step)
    }
}

/// From here on the counter is moved by compare-and-swap. Far enough below the end that additions
/// which loaded a lower value before (one per thread, each below 2^32) cannot wrap it.
const NEAR_WRAP: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn drain(sequence: &Sequence, count: u32) -> Vec<u64> {
        let mut all = Vec::new();
        while let Ok(block) = sequence.take(count) {
            all.extend(block.numbers());
        }
        all
    }

    #[test]
    fn first_number_follows_last_sent() {
        assert_eq!(Sequence::new(0, 9).take(1), Ok(SequenceBlock { first: 1, count: 1 }));
        assert_eq!(Sequence::new(7, 9).take(1), Ok(SequenceBlock { first: 8, count: 1 }));
    }

    #[test]
    fn remaining_numbers_are_given_then_none() {
        for limit in [u64::from(u32::MAX), u64::MAX] {
            let sequence = Sequence::new(limit - 10, limit);
            assert_eq!(drain(&sequence, 4), (limit - 9..=limit).collect::<Vec<_>>());
            assert_eq!(sequence.take(1), Err(DropReason::OutSequenceOverflow));
            assert_eq!(sequence.last(), limit);
        }
    }

    #[test]
    fn nothing_above_the_reservation_is_handed_out() {
        let sequence = Sequence::new(0, 100);
        sequence.reserve(5);
        assert_eq!(drain(&sequence, 2), [1, 2, 3, 4, 5]);
        assert_eq!(sequence.take(1), Err(DropReason::OutSequenceReserve));
        sequence.reserve(1000);
        let rest = drain(&sequence, 10);
        assert!(rest[0] > 5 && rest.last() == Some(&100), "{rest:?}");
        assert_eq!(sequence.take(1), Err(DropReason::OutSequenceOverflow));
    }

    #[test]
    fn skip_to_never_goes_back() {
        let sequence = Sequence::new(7, 100);
        sequence.skip_to(3);
        assert_eq!(sequence.last(), 7);
        sequence.skip_to(20);
        assert_eq!(sequence.take(1), Ok(SequenceBlock { first: 21, count: 1 }));
        sequence.skip_to(1000);
        assert_eq!(sequence.take(1), Err(DropReason::OutSequenceOverflow));
    }

    #[test]
    fn reopened_sequence_continues() {
        let sequence = Sequence::new(0, 100);
        sequence.reserve(10);
        assert_eq!(sequence.take(4), Ok(SequenceBlock { first: 1, count: 4 }));
        let last = sequence.close();
        assert!(sequence.is_closed() && sequence.take(1).is_err());
        sequence.reopen(last, 10);
        assert!(!sequence.is_closed());
        assert_eq!(drain(&sequence, 3), (5..=10).collect::<Vec<_>>());
    }

    /// Threads take while it is closed: they get nothing above the returned number, and little
    /// less, which is what they requested in vain at that moment.
    #[test]
    fn closed_sequence_knows_last_number() {
        for limit in [u64::from(u32::MAX), u64::MAX] {
            let sequence = Sequence::new(0, limit);
            sequence.reserve(1 << 30);
            let (closed, highest) = std::thread::scope(|scope| {
                let take = || {
                    let mut highest = 0;
                    while let Ok(block) = sequence.take(3) {
                        highest = block.numbers().last().unwrap();
                    }
                    highest
                };
                let threads = [scope.spawn(take), scope.spawn(take)];
                std::thread::sleep(std::time::Duration::from_millis(5));
                let closed = sequence.close();
                (closed, threads.map(|thread| thread.join().unwrap()).into_iter().max().unwrap())
            });
            assert!((highest..=highest + 2 * 3).contains(&closed), "{closed} {highest}");
            assert!(sequence.take(1).is_err());
        }
        let near_the_end = Sequence::new(u64::MAX - 9, u64::MAX);
        assert_eq!(near_the_end.close(), u64::MAX, "then all that was reserved counts as used");
    }

    #[test]
    fn ended_sequence_ignores_reservation() {
        for limit in [u64::from(u32::MAX), u64::MAX] {
            let sequence = Sequence::new(7, limit);
            sequence.take(3).unwrap();
            assert_eq!(sequence.end(), 10);
            assert!(sequence.take(1).is_err());
        }
        assert_eq!(Sequence::new(NEAR_WRAP + 5, u64::MAX).end(), u64::MAX);
    }

    #[test]
    fn overflow_stays_refused() {
        let sequence = Sequence::new(u64::MAX, u64::MAX);
        assert!((0..1000).all(|_| sequence.take(u32::MAX).is_err()));
    }

    #[test]
    fn threads_share_every_number_up_to_the_end_and_none_twice() {
        for limit in [u64::from(u32::MAX), u64::MAX, NEAR_WRAP + 10_000] {
            let sequence = Sequence::new(limit - 20_000, limit);
            let parts: Vec<Vec<u64>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (1..=4).map(|id| (id, &sequence)).collect();
                let threads: Vec<_> = threads
                    .into_iter()
                    .map(|(id, s)| scope.spawn(move || drain(s, id * 7)))
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let total: usize = parts.iter().map(Vec::len).sum();
            let unique: HashSet<u64> = parts.into_iter().flatten().collect();
            assert_eq!((total, unique.len()), (20_000, 20_000));
        }
    }
}
