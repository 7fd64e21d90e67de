//! Deferred counters: packets that a worker has passed and their SAs have yet to count.
//!
//! If consecutive packets belong to different SAs, or batches have one packet, counting on counters
//! that all workers share costs more than all other work for the SA. So a worker defers such
//! counts, for SAs that [allow it](Sa::counts_whenever). None is lost, none is deferred for longer
//! than ten milliseconds of traffic, and sparse packets are counted at once: three packets sent
//! show as three.

use std::sync::Arc;

use super::Sa;
use crate::Moment;

/// A worker's deferred counts.
#[derive(Debug, Default)]
pub(crate) struct DeferredCounters {
    pending: Vec<PendingCount>,
    /// Packets of all SAs.
    packets: usize,
    /// Time of the latest batch, and of the latest flush.
    latest: Moment,
    flushed: Moment,
}

/// Deferred count of one SA.
#[derive(Debug)]
struct PendingCount {
    sa: Arc<Sa>,
    packets: u32,
    bytes: u64,
}

/// Flush after so many nanoseconds or packets: then each SA has many packets per count, or there
/// are few SAs.
const FLUSH_INTERVAL: u64 = 10_000_000;
const MAX_PACKETS: usize = 1 << 16;
/// Gap between batches in nanoseconds that leaves time to count.
const IDLE_GAP: u64 = 100_000;
/// SAs prefetched together.
const PREFETCH_GROUP: usize = 32;

impl DeferredCounters {
    /// Defers packets of an SA, if it allows that. `place` is the likely index of its count, and is
    /// updated. An SA with a pending count is not read, as it may be out of the cache.
    #[inline(always)]
    pub(crate) fn add(&mut self, place: &mut u32, sa: &Arc<Sa>, packets: u32, bytes: u64) -> bool {
        match self.pending.get_mut(*place as usize) {
            Some(count) if Arc::ptr_eq(&count.sa, sa) => {
                count.packets += packets;
                count.bytes += bytes;
                self.packets += packets as usize;
                true
            }
            Some(_) | None => self.begin(place, sa, packets, bytes),
        }
    }

    /// Whether any count is pending.
    pub(crate) const fn has_pending(&self) -> bool {
        self.packets > 0
    }

    /// To be called after a batch.
    #[inline]
    pub(crate) fn flush_due(&mut self, now: Moment) {
        let before = std::mem::replace(&mut self.latest, now);
        let passed = |since: Moment, nanoseconds| now.0.saturating_sub(since.0) >= nanoseconds;
        let is_due = self.packets >= MAX_PACKETS
            || passed(self.flushed, FLUSH_INTERVAL)
            || passed(before, IDLE_GAP);
        if self.packets > 0 && is_due {
            self.flush();
        }
    }

    /// Counts everything.
    #[inline(never)]
    pub(crate) fn flush(&mut self) {
        for pending in self.pending.chunks(PREFETCH_GROUP) {
            pending.iter().for_each(|count| count.sa.fetch_active());
            pending.iter().for_each(|count| count.sa.fetch_usage());
            pending
                .iter()
                .for_each(|count| count.sa.count(count.packets, count.bytes, self.latest));
        }
        self.pending.clear();
        (self.packets, self.flushed) = (0, self.latest);
    }

    #[inline(never)]
    fn begin(&mut self, place: &mut u32, sa: &Arc<Sa>, packets: u32, bytes: u64) -> bool {
        if !sa.counts_whenever() {
            return false;
        }
        *place = u32::try_from(self.pending.len()).unwrap_or(u32::MAX);
        self.pending.push(PendingCount { sa: Arc::clone(sa), packets, bytes });
        self.packets += packets as usize;
        true
    }
}

/// No count is lost when a worker ends.
impl Drop for DeferredCounters {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::Backend;

    use super::*;
    use crate::sa::sample;
    use crate::sa::shared_config::SharedSaConfig;
    use crate::sa::usage::Lifecycle;
    use crate::{LifetimeLimits, SaConfig};

    /// An SA with time limits only that was used.
    fn state(spi: u32) -> Arc<Sa> {
        let sa = new(&sample("10.0.0.2", spi));
        sa.charge(1, 10, Moment(4));
        sa
    }

    fn new(config: &SaConfig) -> Arc<Sa> {
        Sa::new(config, Arc::new(SharedSaConfig::of(config, Backend::Portable)), Moment(0))
    }

    fn counted(sa: &Sa) -> (u64, u64) {
        (sa.usage().packets(), sa.usage().bytes())
    }

    #[test]
    fn deferred_counts_are_flushed_per_sa() {
        let states = [1, 2, 3].map(state);
        let mut places = [7, 0, 0];
        let mut deferred = DeferredCounters::default();
        let often = FLUSH_INTERVAL * 2 / IDLE_GAP;
        for round in 1..=often {
            for (sa, place) in states.iter().zip(&mut places) {
                assert!(deferred.add(place, sa, sa.id().spi.0, 100));
            }
            deferred.flush_due(Moment(FLUSH_INTERVAL * round / often));
            let expected = if round < often { (1, 10) } else { (1 + often, 10 + 100 * often) };
            assert_eq!(counted(&states[0]), expected);
        }
        assert_eq!(places, [0, 1, 2]);
        assert_eq!(
            [&states[1], &states[2]].map(|sa| counted(sa).0),
            [1 + 2 * often, 1 + 3 * often]
        );
        assert_eq!(states[0].usage().last_used(), Some(Moment(FLUSH_INTERVAL)));
        assert!(states.iter().all(|sa| Arc::strong_count(sa) == 1), "states are let go of");
    }

    #[test]
    fn sparse_packets_are_counted_at_once() {
        let sa = state(1);
        let mut deferred = DeferredCounters::default();
        for (moment, expected) in
            [(IDLE_GAP, 2), (2 * IDLE_GAP, 3), (3 * IDLE_GAP - 1, 3), (4 * IDLE_GAP - 1, 5)]
        {
            assert!(deferred.add(&mut 0, &sa, 1, 10));
            deferred.flush_due(Moment(moment));
            assert_eq!(counted(&sa).0, expected);
        }
    }

    #[test]
    fn many_packets_and_drop_flush_counts() {
        let sa = state(1);
        let mut deferred = DeferredCounters::default();
        let most = u32::try_from(MAX_PACKETS).unwrap();
        deferred.add(&mut 0, &sa, most - 2, 5);
        deferred.flush_due(Moment(5));
        assert_eq!(counted(&sa), (1, 10));
        deferred.add(&mut 0, &sa, 2, 5);
        deferred.flush_due(Moment(5));
        assert_eq!(counted(&sa), (MAX_PACKETS as u64 + 1, 20));
        deferred.add(&mut 0, &sa, 3, 7);
        drop(deferred);
        assert_eq!(counted(&sa), (MAX_PACKETS as u64 + 4, 27));
    }

    /// The first use starts its ageing, and no packet may pass a limit.
    #[test]
    fn first_use_and_limited_sas_are_not_deferred() {
        let limited = |limit: fn(&mut LifetimeLimits)| {
            let mut config = sample("10.0.0.2", 1);
            limit(&mut config.limits);
            let sa = new(&config);
            sa.charge(1, 10, Moment(4));
            sa
        };
        let states = [
            new(&sample("10.0.0.2", 1)),
            limited(|limits| limits.packets.hard = 100),
            limited(|limits| limits.packets.soft = 100),
            limited(|limits| limits.bytes.hard = 100),
            limited(|limits| limits.bytes.soft = u64::MAX - 1),
        ];
        for sa in states {
            assert!(!DeferredCounters::default().add(&mut 0, &sa, 1, 7));
        }
        let aged = limited(|limits| limits.used_seconds.hard = 100);
        assert!(DeferredCounters::default().add(&mut 0, &aged, 1, 7));
    }

    /// They passed before it expired.
    #[test]
    fn expired_sa_counts_passed_packets() {
        let sa = state(1);
        let mut deferred = DeferredCounters::default();
        deferred.add(&mut 0, &sa, 3, 7);
        sa.advance(Lifecycle::Expired);
        deferred.flush();
        assert_eq!(counted(&sa), (4, 17));
    }

    #[test]
    fn continuing_sa_takes_deferred_counts() {
        let sa = state(1);
        let mut deferred = DeferredCounters::default();
        deferred.add(&mut 0, &sa, 3, 7);
        let config = sample("10.0.0.3", 1);
        let heir = Sa::continuing(&sa, config, Arc::clone(&sa.shared), None);
        assert_eq!(counted(&heir), (1, 10));
        deferred.flush();
        assert_eq!((counted(&heir), counted(&sa)), ((4, 17), (1, 10)));
    }
}
