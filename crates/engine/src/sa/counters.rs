//! An SA's counters and limits: read, charged, and set from outside.

use std::sync::atomic::Ordering;

use super::Sa;
use super::live::Live;
use super::usage::{ChargeOutcome, Lifecycle, SaUsage};
use crate::{DropReason, Moment};

/// Counters of an unused SA. Never written.
static UNUSED: SaUsage = SaUsage::new(Lifecycle::Valid);

/// Counters of an SA as set from outside (`XFRM_MSG_NEWAE`), for example by a peer that carried its
/// packets; `None` leaves a value unchanged.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// The last number sent.
    pub sent: Option<u64>,
    /// The highest number received.
    pub received: Option<u64>,
    /// Received numbers in the window.
    pub window: Vec<u64>,
    /// Lifetime counters.
    pub usage: Option<UsageCounters>,
    /// Aevent threshold in packets.
    pub packets_threshold: Option<u32>,
    /// Aevent threshold in tenths of a second.
    pub time_threshold: Option<u32>,
}

/// What a state has carried, and since when (`struct xfrm_lifetime_cur`).
#[derive(Clone, Copy, Debug)]
pub struct UsageCounters {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// When it was added.
    pub added: Moment,
    /// When it was used first.
    pub first_used: Option<Moment>,
}

impl Sa {
    /// Counters and failures so far.
    #[must_use]
    #[inline]
    pub fn usage(&self) -> &SaUsage {
        self.live_if_used().map_or(&UNUSED, |live| &live.usage)
    }

    /// Its lifecycle state.
    #[must_use]
    #[inline]
    pub fn lifecycle(&self) -> Lifecycle {
        self.usage().lifecycle()
    }

    /// Charges packets against its limits. Outbound before encryption, with the length before
    /// encapsulation; inbound after authentication, with the length after decapsulation.
    #[inline]
    pub fn charge(&self, packets: u32, bytes: u64, now: Moment) -> ChargeOutcome {
        let live = self.live();
        live.usage
            .charge(&self.shared.limits, packets, bytes, now)
            .unwrap_or_else(|late| live.charge_heir(late))
    }

    /// Whether counting may be deferred: it has only time limits, and its first use, from which it
    /// ages, is counted.
    #[inline]
    pub(crate) fn counts_whenever(&self) -> bool {
        self.shared.limits.are_of_time() && self.usage().is_used()
    }

    /// Counts packets that have passed.
    pub(crate) fn count(&self, packets: u32, bytes: u64, latest: Moment) {
        let live = self.live();
        if let Err(late) = live.usage.count(packets, bytes, latest) {
            live.charge_heir(late);
        }
    }

    /// Counts a failure of an inbound packet.
    #[cold]
    pub fn count_failure(&self, reason: DropReason) {
        self.live().usage.count_failure(reason);
    }

    /// Checks its counters against its limits: [`SaUsage::check`].
    pub(crate) fn check_limits(&self) -> ChargeOutcome {
        self.live().usage.check(&self.shared.limits)
    }

    /// Whether it passes its soft limit now, by a device's counters: [`SaUsage::check_soft`].
    pub(crate) fn check_soft_limit(&self) -> bool {
        self.live().usage.check_soft(&self.shared.limits)
    }

    /// Advances to the lifecycle state `next`: [`SaUsage::advance`].
    pub(crate) fn advance(&self, next: Lifecycle) -> bool {
        self.live().usage.advance(next)
    }

    /// For new limits: [`SaUsage::revive`].
    pub(crate) fn revive(&self) {
        self.live_if_used().iter().for_each(|live| live.usage.revive());
    }

    /// Takes over counters. Numbers only rise: none is sent or accepted twice.
    pub(crate) fn set_counters(&self, counters: Counters, now: Moment) {
        let Live { usage, replay, aevents, .. } = self.live();
        let (sequence, added) = (self.sequence(), &self.first().added);
        if let Some(sent) = counters.sent {
            sequence.skip_to(sent);
        }
        if let Some(received) = counters.received {
            replay.mark_received(received, counters.window);
        }
        if let Some(carried) = counters.usage {
            usage.set(carried.bytes, carried.packets, carried.first_used);
            added.store(carried.added.0, Ordering::Relaxed);
        }
        let mut thresholds = aevents.thresholds();
        thresholds.packets = counters.packets_threshold.unwrap_or(thresholds.packets);
        thresholds.time = counters.time_threshold.unwrap_or(thresholds.time);
        aevents.set_thresholds(thresholds);
        aevents.tell(sequence.last(), replay.highest(), now);
    }
}
