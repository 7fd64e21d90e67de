//! What packets need of a state is asked for before it is needed, step by step, as each step is found by the one before.

use uxfrm_packet::{prefetch_far, prefetch_far_whole};

use super::Sa;

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
        self.active.get().inspect(|active| prefetch_far_whole(*active));
    }

    /// Asks for what opening a packet of this number takes; what packets change should be at hand already.
    #[inline]
    pub(crate) fn fetch_to_open(&self, low: u32) {
        if let Some(live) = self.live_if_used() {
            live.replay.prefetch(low);
            live.key.get().inspect(|key| key.prefetch());
        }
    }

    /// Asks for its keys; what leads there should be at hand already.
    #[inline]
    pub(crate) fn fetch_keys(&self) {
        self.live_if_used().and_then(|live| live.key.get()).inspect(|key| key.prefetch());
    }
}
