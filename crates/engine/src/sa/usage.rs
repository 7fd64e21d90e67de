//! Usage of an SA: counters, limits and failures.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use crate::{DropReason, LifetimeLimits, Moment, SoftHardLimit};

/// Lifecycle state of an SA (`km.state` and `km.dying` of the kernel). A deleted SA is in no
/// snapshot any more; batches in flight may still use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lifecycle {
    /// Larval: an acquire was sent.
    Acquire = 0,
    /// In use.
    Valid = 1,
    /// In use, past a soft limit: a younger SA is preferred.
    Dying = 2,
    /// Could not be made.
    Error = 3,
    /// Past a hard limit: carries nothing more.
    Expired = 4,
}

/// Result of [`Sa::charge`](crate::Sa::charge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// Counted.
    Ok,
    /// Counted, and a soft limit was passed for the first time: raise
    /// [`Event::SaSoftLimit`](crate::Event::SaSoftLimit).
    SoftLimit,
    /// A batch of several packets of which only some fit under a hard limit. Nothing was counted:
    /// charge one by one.
    NeedsPerPacket,
    /// Not counted, drop; a hard limit was passed for the first time: raise
    /// [`Event::SaHardLimit`](crate::Event::SaHardLimit).
    HardLimit,
    /// Not counted, drop: the SA is past a hard limit.
    Expired,
}

/// Counters of an SA (`struct xfrm_lifetime_cur`, `struct xfrm_stats`), shared by all workers.
#[derive(Debug)]
pub struct SaUsage {
    lifecycle: AtomicU8,
    _spare: Niche,
    bytes: AtomicU64,
    packets: AtomicU64,
    first_used: AtomicU64,
    last_used: AtomicU64,
    replay_window: AtomicU32,
    replay: AtomicU32,
    integrity_failed: AtomicU32,
}

/// A count that came after another SA took the counters over, and was not added here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LateCount {
    pub(super) packets: u32,
    pub(super) bytes: u64,
}

/// Flag in counters that were taken over. No limit is as high.
const CLOSED: u64 = 1 << 63;

/// An enum with one value, whose unused values tell variants of an enclosing enum apart without
/// another cache line.
#[derive(Debug)]
#[repr(u8)]
enum Niche {
    None,
}

/// Failures that `ip -s xfrm state` lists (`struct xfrm_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SaFailures {
    /// Numbers below the window.
    pub replay_window: u32,
    /// Numbers already received.
    pub replay: u32,
    /// Packets with a wrong ICV.
    pub integrity_failed: u32,
}

/// No time yet.
const NEVER: u64 = u64::MAX;

impl SaUsage {
    /// Counters of a new SA.
    #[must_use]
    pub const fn new(lifecycle: Lifecycle) -> Self {
        Self {
            lifecycle: AtomicU8::new(lifecycle as u8),
            _spare: Niche::None,
            bytes: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            first_used: AtomicU64::new(NEVER),
            last_used: AtomicU64::new(NEVER),
            replay_window: AtomicU32::new(0),
            replay: AtomicU32::new(0),
            integrity_failed: AtomicU32::new(0),
        }
    }

    /// Counts `packets` packets of `bytes` bytes together, or refuses them.
    ///
    /// As in `net/xfrm/xfrm_state.c: xfrm_state_check_expire`, limits are compared with the count
    /// *before* a packet: of a hard limit of N packets N pass, and the soft event comes with packet
    /// N + 1. No more ever pass, whatever the number of workers; a few less may while another
    /// worker takes back what [needs charging one by one](ChargeOutcome::NeedsPerPacket).
    ///
    /// # Errors
    /// [`LateCount`], for the SA that continues.
    #[inline]
    pub(super) fn charge(
        &self,
        limits: &LifetimeLimits,
        packets: u32,
        bytes: u64,
        now: Moment,
    ) -> Result<ChargeOutcome, LateCount> {
        self.touch(now);
        if self.lifecycle() >= Lifecycle::Error {
            return Ok(ChargeOutcome::Expired);
        }
        let before = self.add(packets, bytes);
        let after = before.plus(packets, bytes);
        if after.within(limits, |budget| budget.soft.min(budget.hard)) {
            return Ok(ChargeOutcome::Ok);
        }
        if before.has_ended() {
            return Err(self.late(before, packets, bytes));
        }
        let charge = self.charge_near_limit(limits, packets, before, after);
        if !matches!(charge, ChargeOutcome::Ok | ChargeOutcome::SoftLimit) {
            self.subtract(packets.into(), bytes);
        }
        Ok(charge)
    }

    /// Counts packets that have passed, up to the `latest`.
    ///
    /// # Errors
    /// [`LateCount`], for the SA that continues.
    pub(super) fn count(&self, packets: u32, bytes: u64, latest: Moment) -> Result<(), LateCount> {
        self.touch(latest);
        let before = self.add(packets, bytes);
        if before.has_ended() { Err(self.late(before, packets, bytes)) } else { Ok(()) }
    }

    /// Whether a packet was counted.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.first_used.load(Ordering::Relaxed) != NEVER
    }

    /// Counts packets of the SA that this one continues: the next packet meets the limits they
    /// reach. Past a hard limit the next one is refused, in a batch
    /// ([`ChargeOutcome::NeedsPerPacket`]) or alone.
    pub(super) fn charge_late(
        &self,
        limits: &LifetimeLimits,
        late: LateCount,
    ) -> Result<ChargeOutcome, LateCount> {
        let LateCount { packets, bytes } = late;
        let before = self.add(packets, bytes);
        if before.has_ended() {
            return Err(self.late(before, packets, bytes));
        }
        if !before.reaches(limits, |budget| budget.hard)
            && (packets <= 1 || before.plus(packets, bytes).within(limits, |budget| budget.hard))
        {
            return Ok(ChargeOutcome::Ok);
        }
        self.subtract(packets.into(), bytes);
        Ok(if packets > 1 { ChargeOutcome::NeedsPerPacket } else { ChargeOutcome::Expired })
    }

    /// Closes the counters and returns bytes and packets, so that another can continue: later
    /// counts are returned as late.
    pub(super) fn end(&self) -> (u64, u64) {
        let end = |count: &AtomicU64| count.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED;
        // In the order of `add`.
        let packets = end(&self.packets);
        (end(&self.bytes), packets)
    }

    /// Adds another's counters to what was counted here meanwhile.
    pub(super) fn go_on(&self, bytes: u64, packets: u64, first_used: Option<Moment>) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.first_used.store(first_used.map_or(NEVER, |moment| moment.0), Ordering::Relaxed);
    }

    /// Returns the values before.
    #[inline]
    fn add(&self, packets: u32, bytes: u64) -> UsageCount {
        UsageCount {
            packets: self.packets.fetch_add(u64::from(packets), Ordering::Relaxed),
            bytes: self.bytes.fetch_add(bytes, Ordering::Relaxed),
        }
    }

    fn subtract(&self, packets: u64, bytes: u64) {
        self.packets.fetch_sub(packets, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes back what was counted after the close, which may have come between packets and bytes.
    #[cold]
    fn late(&self, before: UsageCount, packets: u32, bytes: u64) -> LateCount {
        // The close publishes the SA that continues.
        fence(Ordering::Acquire);
        let late = LateCount {
            packets: if before.packets >= CLOSED { packets } else { 0 },
            bytes: if before.bytes >= CLOSED { bytes } else { 0 },
        };
        self.subtract(late.packets.into(), late.bytes);
        late
    }

    /// Sets counters and the first use to another's values.
    pub(super) fn set(&self, bytes: u64, packets: u64, first_used: Option<Moment>) {
        self.bytes.store(bytes.min(CLOSED - 1), Ordering::Relaxed);
        self.packets.store(packets.min(CLOSED - 1), Ordering::Relaxed);
        self.first_used.store(first_used.map_or(NEVER, |moment| moment.0), Ordering::Relaxed);
    }

    /// Takes over a device's counters. A device only counts up.
    pub(super) fn take_over(&self, counts: &DeviceSaCounters) {
        let DeviceSaCounters { packets, bytes, first_used, last_used, failures, .. } = *counts;
        self.set(bytes, packets, first_used);
        self.last_used.store(last_used.map_or(NEVER, |moment| moment.0), Ordering::Relaxed);
        self.replay_window.store(failures.replay_window, Ordering::Relaxed);
        self.replay.store(failures.replay, Ordering::Relaxed);
        self.integrity_failed.store(failures.integrity_failed, Ordering::Relaxed);
    }

    /// Compares a device's counters with limits, as
    /// `net/xfrm/xfrm_state.c: xfrm_state_check_expire` does: [`ChargeOutcome::HardLimit`] and
    /// [`ChargeOutcome::SoftLimit`] once each.
    pub(super) fn check(&self, limits: &LifetimeLimits) -> ChargeOutcome {
        let tally = UsageCount { packets: self.packets(), bytes: self.bytes() };
        if tally.reaches(limits, |budget| budget.hard) {
            return match self.advance(Lifecycle::Expired) {
                true => ChargeOutcome::HardLimit,
                false => ChargeOutcome::Expired,
            };
        }
        let soft = tally.reaches(limits, |budget| budget.soft);
        if soft && self.advance(Lifecycle::Dying) {
            ChargeOutcome::SoftLimit
        } else {
            ChargeOutcome::Ok
        }
    }

    /// Compares a device's counters with soft limits below the hard ones; returns true once.
    pub(super) fn check_soft(&self, limits: &LifetimeLimits) -> bool {
        let passed =
            |budget: SoftHardLimit, count| budget.soft < budget.hard && count >= budget.soft;
        let soft = passed(limits.packets, self.packets()) || passed(limits.bytes, self.bytes());
        soft && self.advance(Lifecycle::Dying)
    }

    /// The lifecycle state.
    #[must_use]
    #[inline]
    pub fn lifecycle(&self) -> Lifecycle {
        // Acquire pairs with the release in `advance`: a thread that sees `Expired` sees what was
        // counted before.
        match self.lifecycle.load(Ordering::Acquire) {
            0 => Lifecycle::Acquire,
            1 => Lifecycle::Valid,
            2 => Lifecycle::Dying,
            3 => Lifecycle::Error,
            // 4; the field is private and holds nothing else.
            _ => Lifecycle::Expired,
        }
    }

    /// Advances to `next`. Returns true for the one caller who did it; false if the SA was there
    /// already or beyond.
    pub(super) fn advance(&self, next: Lifecycle) -> bool {
        self.lifecycle.fetch_max(next as u8, Ordering::AcqRel) < next as u8
    }

    /// For new limits: a soft one may be passed again.
    pub(super) fn revive(&self) {
        let (dying, valid) = (Lifecycle::Dying as u8, Lifecycle::Valid as u8);
        // Not dying, nothing to revive.
        let _ = self.lifecycle.compare_exchange(dying, valid, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Counts a failure of an inbound packet; other drop reasons are ignored.
    #[cold]
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other reasons are not a state's own")]
    pub(super) fn count_failure(&self, reason: DropReason) {
        let counter = match reason {
            DropReason::InTooOld => &self.replay_window,
            DropReason::InReplay => &self.replay,
            DropReason::InForged => &self.integrity_failed,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes carried.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) & !CLOSED
    }

    /// Packets carried.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed) & !CLOSED
    }

    /// When the first packet was charged.
    #[must_use]
    pub fn first_used(&self) -> Option<Moment> {
        moment(&self.first_used)
    }

    /// When the latest packet was charged.
    #[must_use]
    pub fn last_used(&self) -> Option<Moment> {
        moment(&self.last_used)
    }

    /// Failures so far.
    #[must_use]
    pub fn failures(&self) -> SaFailures {
        SaFailures {
            replay_window: self.replay_window.load(Ordering::Relaxed),
            replay: self.replay.load(Ordering::Relaxed),
            integrity_failed: self.integrity_failed.load(Ordering::Relaxed),
        }
    }

    /// Continues with the failures and the latest use of another.
    pub(super) fn set_history(&self, failures: SaFailures, last_used: Option<Moment>) {
        self.replay_window.store(failures.replay_window, Ordering::Relaxed);
        self.replay.store(failures.replay, Ordering::Relaxed);
        self.integrity_failed.store(failures.integrity_failed, Ordering::Relaxed);
        self.last_used.store(last_used.map_or(NEVER, |moment| moment.0), Ordering::Relaxed);
    }

    #[inline]
    fn touch(&self, now: Moment) {
        if !self.is_used() {
            // The first one stays; a lost race means that another was first.
            let _ = self.first_used.compare_exchange(
                NEVER,
                now.0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        self.last_used.store(now.0, Ordering::Relaxed);
    }

    /// The charge is counted and reaches a limit, soft or hard.
    #[cold]
    fn charge_near_limit(
        &self,
        limits: &LifetimeLimits,
        packets: u32,
        before: UsageCount,
        after: UsageCount,
    ) -> ChargeOutcome {
        let warned = self.lifecycle() >= Lifecycle::Dying;
        if packets > 1 {
            let fits = warned && after.within(limits, |budget| budget.hard);
            return if fits { ChargeOutcome::Ok } else { ChargeOutcome::NeedsPerPacket };
        }
        if before.reaches(limits, |budget| budget.hard) {
            return if self.advance(Lifecycle::Expired) {
                ChargeOutcome::HardLimit
            } else {
                ChargeOutcome::Expired
            };
        }
        let warn = !warned && before.reaches(limits, |budget| budget.soft);
        if warn && self.advance(Lifecycle::Dying) {
            ChargeOutcome::SoftLimit
        } else {
            ChargeOutcome::Ok
        }
    }
}

/// Counters at one instant.
#[derive(Clone, Copy)]
struct UsageCount {
    packets: u64,
    bytes: u64,
}

impl UsageCount {
    #[inline]
    fn plus(self, packets: u32, bytes: u64) -> Self {
        Self { packets: self.packets + u64::from(packets), bytes: self.bytes.saturating_add(bytes) }
    }

    /// Not above, and not closed: then every packet of the batch was below when it was checked.
    #[inline]
    fn within(self, limits: &LifetimeLimits, limit: impl Fn(SoftHardLimit) -> u64) -> bool {
        self.packets <= limit(limits.packets).min(CLOSED - 1)
            && self.bytes <= limit(limits.bytes).min(CLOSED - 1)
    }

    fn has_ended(self) -> bool {
        self.packets >= CLOSED || self.bytes >= CLOSED
    }

    fn reaches(self, limits: &LifetimeLimits, limit: impl Fn(SoftHardLimit) -> u64) -> bool {
        self.packets >= limit(limits.packets) || self.bytes >= limit(limits.bytes)
    }
}

fn moment(at: &AtomicU64) -> Option<Moment> {
    match at.load(Ordering::Relaxed) {
        NEVER => None,
        nanos => Some(Moment(nanos)),
    }
}

/// A device's counters of an SA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSaCounters {
    /// Packets, counted as [`Sa::charge`](crate::Sa::charge) would.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The last number sent, 0 for none.
    pub sent: u64,
    /// The highest number received, 0 for none.
    pub received: u64,
    /// The highest authentic number refused for being above the [reserved
    /// edge](crate::OffloadDevices::reserve_received), 0 for none.
    pub wanted: u64,
    /// When the first packet was carried.
    pub first_used: Option<Moment>,
    /// When the latest packet was carried.
    pub last_used: Option<Moment>,
    /// Failures.
    pub failures: SaFailures,
}

#[cfg(test)]
mod tests;
