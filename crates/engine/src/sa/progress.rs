//! Progress of an SA: numbers and counters, as they move between the engine and devices, or between
//! devices.

use std::sync::Arc;

use super::Sa;
use super::live::Live;
use super::shared_config::SharedSaConfig;
use super::usage::{Lifecycle, SaFailures};
use crate::{DeviceSaCounters, Moment, SaConfig};

/// Progress of an SA.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SaProgress {
    /// The last number sent, all 64 bits.
    pub sent: u64,
    /// The highest number received, all 64 bits.
    pub received: u64,
    /// Received numbers in the window.
    pub window: Vec<u64>,
    /// What it has carried; `None` if the receiver counts itself.
    pub carried: Option<CarriedTraffic>,
}

/// What an SA has carried, for its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CarriedTraffic {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time of the first packet.
    pub first_used: Option<Moment>,
}

/// History of an SA that another has carried, besides its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaHistory {
    /// Failures.
    pub failures: SaFailures,
    /// Its latest use.
    pub last_used: Option<Moment>,
    /// Whether its soft limit was reported.
    pub lifecycle: Lifecycle,
}

impl Sa {
    /// Its progress.
    #[must_use]
    pub fn progress(&self) -> SaProgress {
        let usage = self.usage();
        SaProgress {
            sent: self.sequence().last(),
            received: self.highest_received(),
            window: self.received_in_window(),
            carried: Some(CarriedTraffic {
                packets: usage.packets(),
                bytes: usage.bytes(),
                first_used: usage.first_used(),
            }),
        }
    }

    /// Received numbers in its window.
    #[must_use]
    pub fn received_in_window(&self) -> Vec<u64> {
        let highest = self.highest_received();
        let reach = u64::from(self.shared.window.saturating_sub(1));
        let numbers = highest.saturating_sub(reach)..=highest;
        numbers.filter(|number| self.has_received(*number)).collect()
    }

    /// Continues from the progress of another. Numbers only rise.
    pub fn continue_from(&self, position: &SaProgress) {
        let Live { usage, replay, .. } = self.live();
        self.sequence().skip_to(position.sent);
        replay.mark_received(position.received, position.window.iter().copied());
        if let Some(CarriedTraffic { packets, bytes, first_used }) = position.carried {
            usage.set(bytes, packets, first_used);
        }
    }

    /// Continues with another's history. For an SA that is not in use yet.
    pub fn set_history(&self, SaHistory { failures, last_used, lifecycle }: SaHistory) {
        let usage = &self.live().usage;
        usage.set_history(failures, last_used);
        // An SA at its hard limit reaches it again with its next packet, and reports it then.
        usage.advance(lifecycle.min(Lifecycle::Dying));
    }

    /// The next generation after an update (`XFRM_MSG_UPDSA`): the same numbers, counters and keys,
    /// other limits and encapsulation. For owners of a copy of a database's SA.
    #[must_use]
    pub fn updated(self: &Arc<Self>, update: &SaConfig) -> Arc<Self> {
        let words: SharedSaConfig = self.shared.updated(update);
        let new = self.renewed(Arc::new(words));
        new.revive();
        new
    }

    /// Takes over a device's counters.
    pub(crate) fn take_over(&self, counts: &DeviceSaCounters) {
        self.live().usage.take_over(counts);
        if counts.sent > 0 {
            self.sequence().skip_to(counts.sent);
        }
    }

    /// Takes over what a device has received or would have. Without news, its window is not read.
    pub(crate) fn take_over_window(
        &self,
        counts: &DeviceSaCounters,
        window: impl FnOnce() -> Vec<u64>,
    ) {
        if counts.received > 0 {
            self.live().replay.mark_received(counts.received, window());
        }
        if counts.received.max(counts.wanted) > 0 {
            self.live().replay.request_edge(counts.wanted);
        }
    }
}
