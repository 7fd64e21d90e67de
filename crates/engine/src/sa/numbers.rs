//! Sequence numbers of an SA: sent, received, reserved.

use std::sync::atomic::AtomicU64;

use super::Sa;
use super::live::Active;
use super::replay::{FIRST_RESERVED, ReplayWindow};
use super::sequence::Sequence;

impl Sa {
    /// Outbound sequence numbers.
    #[must_use]
    #[inline]
    pub fn sequence(&self) -> &Sequence {
        match self.active.get() {
            Some(Active::Of(first)) => &first.sequence,
            Some(Active::Live(_)) | None => &self.sequence,
        }
    }

    /// Begins after a restart: numbers up to `received` may have been received before it.
    pub fn restart_at(&self, received: u64) {
        let live = self.live_if_used().unwrap_or_else(|| self.begin(0, received));
        live.replay.restart_at(received);
    }

    /// The replay window, for a packet. Queries use [`Sa::highest_received`] and
    /// [`Sa::has_received`].
    #[must_use]
    #[inline]
    pub fn replay(&self) -> &ReplayWindow {
        &self.live().replay
    }

    /// The highest number received.
    #[must_use]
    pub fn highest_received(&self) -> u64 {
        self.live_if_used().map_or(0, |live| live.replay.highest())
    }

    /// Where the highest number received outlives the process, if there is one.
    #[must_use]
    pub fn shared_head(&self) -> Option<&'static AtomicU64> {
        self.live_if_used().and_then(|live| live.replay.shared_head())
    }

    /// The number up to which it accepts packets; `u64::MAX` without a
    /// [`ReplayStore`](crate::ReplayStore).
    #[must_use]
    pub fn reserved_to_receive(&self) -> u64 {
        match self.live_if_used() {
            Some(live) => live.replay.reserved(),
            None if self.shared.keeper.is_some() && self.shared.window > 0 => FIRST_RESERVED,
            None => u64::MAX,
        }
    }

    /// Highest number that may have been received before a restart; 0 without one.
    #[must_use]
    pub fn restarted_at(&self) -> u64 {
        self.live_if_used().map_or(0, |live| live.replay.restarted_at())
    }

    /// Whether a number in the window was received.
    #[must_use]
    pub fn has_received(&self, number: u64) -> bool {
        self.live_if_used().is_some_and(|live| live.replay.has(number))
    }
}
