//! Back-off for a fast path that did not pay.

/// Batches to skip.
const BATCHES: u32 = 16;

/// Counts the batches until the fast path is tried again.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    left: u32,
}

impl BackOff {
    /// Starts the back-off.
    pub(crate) fn begin(&mut self) {
        self.left = BATCHES;
    }

    /// Whether the back-off is over. Counts the current batch.
    #[inline(always)]
    pub(crate) fn is_over(&mut self) -> bool {
        let is_over = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_skips_configured_batches() {
        let mut back_off = BackOff::default();
        assert!(back_off.is_over());
        back_off.begin();
        assert!((0..BATCHES).all(|_| !back_off.is_over()));
        assert!(back_off.is_over() && back_off.is_over());
    }
}
