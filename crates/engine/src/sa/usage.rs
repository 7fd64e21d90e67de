//! What a state has carried, whether it may carry more, and what went wrong on it.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::{Budget, DeviceCounts, DropReason, Limits, Moment};

/// How far a state is in its life (`km.state` and `km.dying` of the kernel). A deleted state is in no snapshot any more; batches under way
/// may still use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Lifecycle {
    /// Larval: a key manager was asked for it.
    Acquire = 0,
    /// In use.
    Valid = 1,
    /// In use, past a soft limit: a younger state is preferred.
    Dying = 2,
    /// Could not be made.
    Error = 3,
    /// Past a hard limit: carries nothing more.
    Expired = 4,
}

/// The answer to [`Sa::charge`](crate::Sa::charge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Counted.
    Ok,
    /// Counted, and a soft limit was passed for the first time: send [`Event::SaSoftLimit`](crate::Event::SaSoftLimit).
    SoftLimit,
    /// A batch of several packets of which only some fit under a hard limit. Nothing was counted: charge one by one.
    Crossing,
    /// Not counted, drop; a hard limit was passed for the first time: send [`Event::SaHardLimit`](crate::Event::SaHardLimit).
    HardLimit,
    /// Not counted, drop: the state is past a hard limit.
    Expired,
}

/// Counts of a state (`struct xfrm_lifetime_cur`, `struct xfrm_stats`), shared by all workers.
#[derive(Debug)]
pub struct Usage {
    lifecycle: AtomicU8,
    _spare: Spare,
    bytes: AtomicU64,
    packets: AtomicU64,
    first_used: AtomicU64,
    last_used: AtomicU64,
    replay_window: AtomicU32,
    replay: AtomicU32,
    integrity_failed: AtomicU32,
}

/// The values that it has not tell what else may stand in a state's place, so that who asks need not read another cache line.
#[derive(Debug)]
#[repr(u8)]
enum Spare {
    None,
}

/// What of a state's failures `ip -s xfrm state` lists (`struct xfrm_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Numbers below the window.
    pub replay_window: u32,
    /// Numbers already received.
    pub replay: u32,
    /// Packets with a wrong ICV.
    pub integrity_failed: u32,
}

/// No moment yet.
const NEVER: u64 = u64::MAX;

impl Usage {
    /// Counts of a new state.
    #[must_use]
    pub const fn new(lifecycle: Lifecycle) -> Self {
        Self {
            lifecycle: AtomicU8::new(lifecycle as u8),
            _spare: Spare::None,
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
    /// As in `net/xfrm/xfrm_state.c: xfrm_state_check_expire`, limits are held against what was counted *before* a packet: of
    /// a hard limit of N packets N pass, and the soft event comes with packet N + 1. No more ever pass, whatever the number of workers;
    /// a few less may when another worker is just then taking back a [`Charge::Crossing`].
    #[inline]
    pub(super) fn charge(&self, limits: &Limits, packets: u32, bytes: u64, now: Moment) -> Charge {
        self.touch(now);
        if self.lifecycle() >= Lifecycle::Error {
            return Charge::Expired;
        }
        let before = Tally {
            packets: self.packets.fetch_add(u64::from(packets), Ordering::Relaxed),
            bytes: self.bytes.fetch_add(bytes, Ordering::Relaxed),
        };
        let after = before.plus(packets, bytes);
        if after.within(limits, |budget| budget.soft.min(budget.hard)) {
            return Charge::Ok;
        }
        let charge = self.charge_near_limit(limits, packets, before, after);
        if !matches!(charge, Charge::Ok | Charge::SoftLimit) {
            self.packets.fetch_sub(u64::from(packets), Ordering::Relaxed);
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        charge
    }

    /// Sets counts and the moment of the first use to what another knows.
    pub(super) fn set(&self, bytes: u64, packets: u64, first_used: Option<Moment>) {
        self.bytes.store(bytes, Ordering::Relaxed);
        self.packets.store(packets, Ordering::Relaxed);
        self.first_used.store(first_used.map_or(NEVER, |moment| moment.0), Ordering::Relaxed);
    }

    /// Takes over what a device has counted. A device counts up only.
    pub(super) fn take_over(&self, counts: &DeviceCounts) {
        let DeviceCounts { packets, bytes, first_used, last_used, failures, .. } = *counts;
        self.set(bytes, packets, first_used);
        self.last_used.store(last_used.map_or(NEVER, |moment| moment.0), Ordering::Relaxed);
        self.replay_window.store(failures.replay_window, Ordering::Relaxed);
        self.replay.store(failures.replay, Ordering::Relaxed);
        self.integrity_failed.store(failures.integrity_failed, Ordering::Relaxed);
    }

    /// Holds what was counted elsewhere against limits, as `net/xfrm/xfrm_state.c: xfrm_state_check_expire` does: [`Charge::HardLimit`]
    /// and [`Charge::SoftLimit`] once each.
    pub(super) fn check(&self, limits: &Limits) -> Charge {
        let tally = Tally { packets: self.packets(), bytes: self.bytes() };
        if tally.reaches(limits, |budget| budget.hard) {
            return match self.advance(Lifecycle::Expired) {
                true => Charge::HardLimit,
                false => Charge::Expired,
            };
        }
        let soft = tally.reaches(limits, |budget| budget.soft);
        if soft && self.advance(Lifecycle::Dying) { Charge::SoftLimit } else { Charge::Ok }
    }

    /// How far the state is.
    #[must_use]
    #[inline]
    pub fn lifecycle(&self) -> Lifecycle {
        // Acquire pairs with the release in `advance`: who sees `Expired` sees what was counted before.
        match self.lifecycle.load(Ordering::Acquire) {
            0 => Lifecycle::Acquire,
            1 => Lifecycle::Valid,
            2 => Lifecycle::Dying,
            3 => Lifecycle::Error,
            // 4; the field is private and holds nothing else.
            _ => Lifecycle::Expired,
        }
    }

    /// Moves on to `next`. True for the one caller who did it; false when the state was there already or further.
    pub(super) fn advance(&self, next: Lifecycle) -> bool {
        self.lifecycle.fetch_max(next as u8, Ordering::AcqRel) < next as u8
    }

    /// New limits: a soft one that was passed may be passed again.
    pub(super) fn revive(&self) {
        let (dying, valid) = (Lifecycle::Dying as u8, Lifecycle::Valid as u8);
        // Not dying, nothing to revive.
        let _ = self.lifecycle.compare_exchange(dying, valid, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Counts a failure of an inbound packet that belongs to this state; others are ignored.
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
        self.bytes.load(Ordering::Relaxed)
    }

    /// Packets carried.
    #[must_use]
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
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
    pub fn failures(&self) -> Failures {
        Failures {
            replay_window: self.replay_window.load(Ordering::Relaxed),
            replay: self.replay.load(Ordering::Relaxed),
            integrity_failed: self.integrity_failed.load(Ordering::Relaxed),
        }
    }

    #[inline]
    fn touch(&self, now: Moment) {
        if self.first_used.load(Ordering::Relaxed) == NEVER {
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

    /// The charge has been counted and reaches a limit, soft or hard.
    #[cold]
    fn charge_near_limit(
        &self,
        limits: &Limits,
        packets: u32,
        before: Tally,
        after: Tally,
    ) -> Charge {
        let warned = self.lifecycle() >= Lifecycle::Dying;
        if packets > 1 {
            let fits = warned && after.within(limits, |budget| budget.hard);
            return if fits { Charge::Ok } else { Charge::Crossing };
        }
        if before.reaches(limits, |budget| budget.hard) {
            return if self.advance(Lifecycle::Expired) {
                Charge::HardLimit
            } else {
                Charge::Expired
            };
        }
        let warn = !warned && before.reaches(limits, |budget| budget.soft);
        if warn && self.advance(Lifecycle::Dying) { Charge::SoftLimit } else { Charge::Ok }
    }
}

/// Counts at one instant.
#[derive(Clone, Copy)]
struct Tally {
    packets: u64,
    bytes: u64,
}

impl Tally {
    #[inline]
    fn plus(self, packets: u32, bytes: u64) -> Self {
        Self { packets: self.packets + u64::from(packets), bytes: self.bytes.saturating_add(bytes) }
    }

    /// Not above: then every packet on the way here was below when it was looked at.
    #[inline]
    fn within(self, limits: &Limits, limit: impl Fn(Budget) -> u64) -> bool {
        self.packets <= limit(limits.packets) && self.bytes <= limit(limits.bytes)
    }

    fn reaches(self, limits: &Limits, limit: impl Fn(Budget) -> u64) -> bool {
        self.packets >= limit(limits.packets) || self.bytes >= limit(limits.bytes)
    }
}

fn moment(at: &AtomicU64) -> Option<Moment> {
    match at.load(Ordering::Relaxed) {
        NEVER => None,
        nanos => Some(Moment(nanos)),
    }
}

#[cfg(test)]
mod tests;
