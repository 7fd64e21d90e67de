//! What packets need of a state is asked for before it is needed, step by step, as each step is found by the one before.

use uxfrm_packet::{prefetch_far, prefetch_far_first};

use super::Sa;

/// Cache lines of what packets change.
const LIVELY: usize = 2;

impl Sa {
    /// Asks for all that look-ups read, which may begin in one cache line and end in the next.
    #[inline]
    pub(crate) fn fetch(&self) {
        prefetch_far(&self.name);
        prefetch_far(&self.attachment);
    }

    /// Asks for what names it, and for what leads to all that packets change.
    #[inline]
    pub(crate) fn fetch_name(&self) {
        prefetch_far(&self.name);
        prefetch_far(&self.active);
    }

    /// Asks for what leads to all that packets change.
    #[inline]
    pub(crate) fn fetch_active(&self) {
        prefetch_far(&self.active);
    }

    /// Asks for what packets that leave need: what leads to all that they change, and their numbers.
    #[inline]
    pub(crate) fn fetch_to_send(&self) {
        prefetch_far(&self.words);
        self.sequence.prefetch_limit();
    }

    /// Asks for what packets change, and for what leads to keys; what look-ups read should be at hand already.
    #[inline]
    pub(crate) fn fetch_live(&self) {
        self.active.get().inspect(|active| prefetch_far_first(*active, LIVELY));
    }

    /// Asks for what is counted with each packet; what look-ups read should be at hand already.
    #[inline]
    pub(crate) fn fetch_usage(&self) {
        self.active.get().inspect(|active| prefetch_far(*active));
    }

    /// Asks for where a packet's number is noted; what packets change should be at hand already.
    #[inline]
    pub(crate) fn fetch_window(&self, low: u32) {
        self.live_if_used().inspect(|live| live.replay.prefetch(low));
    }

    /// Asks for what leads to its keys; what packets change should be at hand already.
    #[inline]
    pub(crate) fn fetch_key_head(&self) {
        self.live_if_used().and_then(|live| live.key.get()).inspect(|key| key.prefetch_head());
    }

    /// Asks for its keys; what leads there should be at hand already.
    #[inline]
    pub(crate) fn fetch_keys(&self) {
        self.live_if_used().and_then(|live| live.key.get()).inspect(|key| key.prefetch());
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::sa::Live;
    use crate::sa::replay::ReplayWindow;

    #[test]
    fn counts_have_a_cache_line_with_what_leads_to_keys_and_the_window_the_next() {
        assert_eq!([offset_of!(Live, replay), align_of::<Live>()], [64, 64]);
        assert!(offset_of!(Live, replay) + ReplayWindow::READ <= LIVELY * 64);
    }
}
