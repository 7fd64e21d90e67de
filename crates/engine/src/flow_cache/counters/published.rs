//! Statistics of one worker's caches, published to other threads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow_cache::CacheStats;

/// Statistics of one worker's four caches as of its last update. One thread writes, any may read.
#[derive(Debug, Default)]
pub struct SharedCacheStats([[Shared; 2]; 2]);

type Shared = [AtomicU64; 8];

impl SharedCacheStats {
    /// Outbound, then inbound; each IPv4, then IPv6.
    #[must_use]
    pub fn read(&self) -> [[CacheStats; 2]; 2] {
        self.0.each_ref().map(|families| families.each_ref().map(read))
    }

    pub(crate) fn write(&self, stats: [[CacheStats; 2]; 2]) {
        for (shared, stats) in self.0.iter().flatten().zip(stats.as_flattened()) {
            let CacheStats { entries, room, bytes, hits, misses, stale, evicted, bypassed } =
                *stats;
            let all = [entries, room, bytes, hits, misses, stale, evicted, bypassed];
            for (shared, count) in shared.iter().zip(all) {
                shared.store(count, Ordering::Relaxed);
            }
        }
    }
}

fn read(shared: &Shared) -> CacheStats {
    let [entries, room, bytes, hits, misses, stale, evicted, bypassed] =
        shared.each_ref().map(|count| count.load(Ordering::Relaxed));
    CacheStats { entries, room, bytes, hits, misses, stale, evicted, bypassed }
}
