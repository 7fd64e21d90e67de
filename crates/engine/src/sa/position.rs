//! How far a state is: numbers and counts, as they cross to a device, from it, and from one device to another.

use std::sync::Arc;

use super::shared_config::SaWords;
use super::usage::{Failures, Lifecycle};
use super::{Live, Sa};
use crate::{DeviceCounts, Moment, SaConfig};

/// How far a state is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The last number sent, all 64 bits.
    pub sent: u64,
    /// The highest number received, all 64 bits.
    pub received: u64,
    /// The numbers in the window that were received.
    pub window: Vec<u64>,
    /// What it has carried; `None` where who counts knows better.
    pub carried: Option<Carried>,
}

/// What a state has carried, for the limits that it is held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When the first one was carried.
    pub first_used: Option<Moment>,
}

/// What counters do not tell of a state that another has carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// What went wrong.
    pub failures: Failures,
    /// Its latest use.
    pub last_used: Option<Moment>,
    /// Whether its soft limit was told.
    pub lifecycle: Lifecycle,
}

impl Sa {
    /// How far it is.
    #[must_use]
    pub fn position(&self) -> Position {
        let usage = self.usage();
        Position {
            sent: self.sequence().last(),
            received: self.highest_received(),
            window: self.received_in_window(),
            carried: Some(Carried {
                packets: usage.packets(),
                bytes: usage.bytes(),
                first_used: usage.first_used(),
            }),
        }
    }

    /// The numbers in its window that were received.
    #[must_use]
    pub fn received_in_window(&self) -> Vec<u64> {
        let highest = self.highest_received();
        let reach = u64::from(self.words.window.saturating_sub(1));
        let numbers = highest.saturating_sub(reach)..=highest;
        numbers.filter(|number| self.has_received(*number)).collect()
    }

    /// Goes on from where another has carried it. Numbers only go on.
    pub fn go_on_from(&self, position: &Position) {
        let Live { usage, replay, .. } = self.live();
        self.sequence().skip_to(position.sent);
        replay.learn(position.received, position.window.iter().copied());
        if let Some(Carried { packets, bytes, first_used }) = position.carried {
            usage.set(bytes, packets, first_used);
        }
    }

    /// Goes on with another's history. For a state that is not in use yet.
    pub fn go_on_with(&self, History { failures, last_used, lifecycle }: History) {
        let usage = &self.live().usage;
        usage.set_history(failures, last_used);
        // One at its hard limit meets it again with its next packet, and is told of then.
        usage.advance(lifecycle.min(Lifecycle::Dying));
    }

    /// The next generation, as an update makes it (`XFRM_MSG_UPDSA`): the same numbers, counts and keys, other limits and encapsulation. For who has a
    /// copy of a database's state.
    #[must_use]
    pub fn updated(self: &Arc<Self>, update: &SaConfig) -> Arc<Self> {
        let words: SaWords = self.words.updated(update);
        let new = self.renewed(Arc::new(words));
        new.revive();
        new
    }

    /// Takes over what a device has counted.
    pub(crate) fn take_over(&self, counts: &DeviceCounts) {
        self.live().usage.take_over(counts);
        if counts.sent > 0 {
            self.sequence().skip_to(counts.sent);
        }
    }

    /// Takes over what a device has received, and would have. Where nothing is new, its window is not asked for.
    pub(crate) fn take_over_window(
        &self,
        counts: &DeviceCounts,
        window: impl FnOnce() -> Vec<u64>,
    ) {
        if counts.received > 0 {
            self.live().replay.learn(counts.received, window());
        }
        if counts.received.max(counts.wanted) > 0 {
            self.live().replay.want(counts.wanted);
        }
    }
}
