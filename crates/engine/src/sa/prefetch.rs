//! Prefetches of an SA's data, level by level, as each level is found through the one before.

use uxfrm_packet::{prefetch_far, prefetch_far_first};

use super::Sa;

/// Cache lines that packets write.
const LIVELY: usize = 2;

impl Sa {
    /// Prefetches all that look-ups read, which may span two cache lines.
    #[inline]
    pub(crate) fn fetch(&self) {
        prefetch_far(&self.name);
        prefetch_far(&self.attachment);
    }

    /// Prefetches its identity and the pointer to [`Live`](super::live::Live).
    #[inline]
    pub(crate) fn fetch_name(&self) {
        prefetch_far(&self.name);
        prefetch_far(&self.active);
    }

    /// Prefetches the pointer to [`Live`](super::live::Live).
    #[inline]
    pub(crate) fn fetch_active(&self) {
        prefetch_far(&self.active);
    }

    /// Prefetches what outbound packets need first: the pointer to [`Live`](super::live::Live) and
    /// the sequence numbers.
    #[inline]
    pub(crate) fn fetch_to_send(&self) {
        prefetch_far(&self.shared);
        self.sequence.prefetch_limit();
    }

    /// Prefetches what packets write, and the pointer to the keys; the SA itself should be cached.
    #[inline]
    pub(crate) fn fetch_live(&self) {
        self.active.get().inspect(|active| prefetch_far_first(*active, LIVELY));
    }

    /// Prefetches the usage counters; the SA itself should be cached.
    #[inline]
    pub(crate) fn fetch_usage(&self) {
        self.active.get().inspect(|active| prefetch_far(*active));
    }

    /// Prefetches the window slot of a sequence number; [`Live`](super::live::Live) should be
    /// cached.
    #[inline]
    pub(crate) fn fetch_window(&self, low: u32) {
        self.live_if_used().inspect(|live| live.replay.prefetch(low));
    }

    /// Prefetches the head of the keys; [`Live`](super::live::Live) should be cached.
    #[inline]
    pub(crate) fn fetch_key_head(&self) {
        self.live_if_used().and_then(|live| live.key.get()).inspect(|key| key.prefetch_head());
    }

    /// Prefetches the keys; their head should be cached.
    #[inline]
    pub(crate) fn fetch_keys(&self) {
        self.live_if_used().and_then(|live| live.key.get()).inspect(|key| key.prefetch());
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::sa::live::Live;
    use crate::sa::replay::ReplayWindow;

    #[test]
    fn live_fields_fill_two_cache_lines() {
        assert_eq!([offset_of!(Live, replay), align_of::<Live>()], [64, 64]);
        assert!(offset_of!(Live, replay) + ReplayWindow::READ <= LIVELY * 64);
    }
}
