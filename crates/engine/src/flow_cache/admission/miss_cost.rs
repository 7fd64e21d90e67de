//! What finding a policy takes without the cache, for the packets that come: those that no policy is for are often found out about sooner than a hit in a
//! large table takes.
//!
//! Nobody measures time here. Now and then a packet is weighed: what it costs in the tree is foretold, in tenths of a cycle, but for memory that it waits for.
//! In `uxfrm bench lookup` the weights of 160 rows were 17, 28, 42 and more, where 19, 31, 40 and more cycles were measured.

use crate::FlowKey;
use crate::flow_cache::LookupContext;

/// Of late.
#[derive(Debug, Default)]
pub(crate) struct MissCost {
    tenths: usize,
    samples: u32,
    /// Packets since the last that was weighed.
    since_sample: usize,
}

/// A packet of so many is weighed: that takes some hundred cycles.
const SAMPLE_EVERY: usize = 1024;
/// So many are enough to say something.
const MIN_SAMPLES: u32 = 4;
/// The share of the latest.
const WEIGHT: usize = 4;

/// A hit in a table that the first and second-level caches hold, in one that is near, and in one that is not.
const HIT_COST: [usize; 3] = [150, 240, 450];
const SECOND_LEVEL: usize = 1 << 19;
const NEAR: usize = 1 << 22;

impl MissCost {
    /// Whether, with so many packets more, one of them is to be weighed.
    #[inline]
    pub(crate) const fn is_sample_due(&mut self, packets: usize) -> bool {
        self.since_sample += packets;
        self.since_sample >= SAMPLE_EVERY
    }

    /// Weighs a packet.
    #[inline(never)]
    pub(crate) fn sample(&mut self, lookup: &LookupContext<'_>, flow: &FlowKey) {
        let cost = lookup.spd.weigh(lookup.direction, flow);
        self.since_sample = 0;
        self.tenths = match self.samples {
            0 => cost,
            _ => (self.tenths * (WEIGHT - 1) + cost) / WEIGHT,
        };
        self.samples = self.samples.saturating_add(1);
    }

    /// Whether it is less than a hit in a table of so many bytes.
    pub(crate) const fn is_below_hit(&self, memory: usize) -> bool {
        let hit = if memory <= SECOND_LEVEL {
            HIT_COST[0]
        } else if memory <= NEAR {
            HIT_COST[1]
        } else {
            HIT_COST[2]
        };
        self.samples >= MIN_SAMPLES && self.tenths < hit
    }
}
