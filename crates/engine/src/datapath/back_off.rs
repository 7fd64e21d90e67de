//! A short way that led nowhere is not tried for a while.

/// For so many batches.
const BATCHES: u32 = 16;

/// How many batches there are until it is tried again.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    left: u32,
}

impl Pause {
    /// Begins anew.
    pub(crate) fn begin(&mut self) {
        self.left = BATCHES;
    }

    /// Whether it is over; counts the batch that asks.
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
    fn it_takes_as_many_batches_as_it_says() {
        let mut pause = Pause::default();
        assert!(pause.is_over());
        pause.begin();
        assert!((0..BATCHES).all(|_| !pause.is_over()));
        assert!(pause.is_over() && pause.is_over());
    }
}
