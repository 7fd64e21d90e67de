//! Where threads wait for each other, so that what they do next they do at once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that wait for each other without sleep: a processor that slept begins slowly and with empty caches.
#[derive(Debug)]
pub(crate) struct SpinBarrier {
    came: AtomicUsize,
    of: usize,
}

impl SpinBarrier {
    pub(crate) const fn of(threads: usize) -> Self {
        Self { came: AtomicUsize::new(0), of: threads }
    }

    /// How many they are.
    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.of).unwrap_or(u32::MAX)
    }

    pub(crate) fn wait(&self) {
        let place = self.came.fetch_add(1, Ordering::AcqRel);
        let all = (place / self.of + 1) * self.of;
        let mut spins = 0_u32;
        while self.came.load(Ordering::Acquire) < all {
            spins += 1;
            // There may be fewer processors than threads.
            if spins.is_multiple_of(10_000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}
