//! A barrier at which threads spin, so that they go on at the same moment.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A barrier without sleep: a processor that slept starts slowly and with cold caches.
#[derive(Debug)]
pub(crate) struct SpinBarrier {
    arrived: AtomicUsize,
    threads: usize,
}

impl SpinBarrier {
    pub(crate) const fn new(threads: usize) -> Self {
        Self { arrived: AtomicUsize::new(0), threads }
    }

    /// The number of threads.
    pub(crate) fn size(&self) -> u32 {
        u32::try_from(self.threads).unwrap_or(u32::MAX)
    }

    pub(crate) fn wait(&self) {
        let place = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (place / self.threads + 1) * self.threads;
        let mut spins = 0_u32;
        while self.arrived.load(Ordering::Acquire) < all {
            spins += 1;
            // There may be fewer processors than threads.
            if spins.is_multiple_of(10_000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}
