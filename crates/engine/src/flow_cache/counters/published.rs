//! Statistics of one worker's caches, published to other threads.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow_cache::CacheStats;
use crate::{ByDirection, ByFamily};

/// Statistics of one worker's four caches as of its last update. One thread writes, any may read.
#[derive(Debug, Default)]
pub struct SharedCacheStats(ByDirection<ByFamily<Shared>>);

type Shared = [AtomicU64; 8];

impl SharedCacheStats {
    /// The latest statistics.
    #[must_use]
    pub fn read(&self) -> ByDirection<ByFamily<CacheStats>> {
        let ByDirection { outbound, inbound } = &self.0;
        let read =
            |shared: &ByFamily<Shared>| ByFamily { v4: read(&shared.v4), v6: read(&shared.v6) };
        ByDirection { outbound: read(outbound), inbound: read(inbound) }
    }

    pub(crate) fn write(&self, stats: ByDirection<ByFamily<CacheStats>>) {
        let ByDirection { outbound, inbound } = &self.0;
        for (shared, stats) in [(outbound, stats.outbound), (inbound, stats.inbound)] {
            write(&shared.v4, stats.v4);
            write(&shared.v6, stats.v6);
        }
    }
}

fn read(shared: &Shared) -> CacheStats {
    let [entries, room, bytes, hits, misses, stale, evicted, bypassed] =
        shared.each_ref().map(|count| count.load(Ordering::Relaxed));
    CacheStats { entries, room, bytes, hits, misses, stale, evicted, bypassed }
}

fn write(shared: &Shared, stats: CacheStats) {
    let CacheStats { entries, room, bytes, hits, misses, stale, evicted, bypassed } = stats;
    let all = [entries, room, bytes, hits, misses, stale, evicted, bypassed];
    for (shared, count) in shared.iter().zip(all) {
        shared.store(count, Ordering::Relaxed);
    }
}
