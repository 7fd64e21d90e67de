//! What finding a policy takes without the cache, for the packets that come: those that no policy is for are often found out about sooner than a hit in a
//! large table takes.
//!
//! Nobody measures time here. Now and then a packet is weighed: what it costs in the tree is foretold, in tenths of a cycle, but for memory that it waits for.
//! In `uxfrm bench lookup` the weights of 160 rows were 17, 28, 42 and more, where 19, 31, 40 and more cycles were measured.

use crate::FlowKey;
use crate::flow_cache::Question;

/// Of late.
#[derive(Debug, Default)]
pub(crate) struct SearchCost {
    tenths: usize,
    weighed: u32,
    /// Packets since the last that was weighed.
    passed: usize,
}

/// A packet of so many is weighed: that takes some hundred cycles.
const EACH: usize = 1024;
/// So many are enough to say something.
const ENOUGH: u32 = 4;
/// The share of the latest.
const LATEST: usize = 4;

/// A hit in a table that the first and second-level caches hold, in one that is near, and in one that is not.
const HIT: [usize; 3] = [150, 240, 450];
const SECOND_LEVEL: usize = 1 << 19;
const NEAR: usize = 1 << 22;

impl SearchCost {
    /// Whether, with so many packets more, one of them is to be weighed.
    #[inline]
    pub(crate) const fn is_due(&mut self, packets: usize) -> bool {
        self.passed += packets;
        self.passed >= EACH
    }

    /// Weighs a packet.
    #[inline(never)]
    pub(crate) fn weigh(&mut self, question: &Question<'_>, flow: &FlowKey) {
        let weight = question.spd.weigh(question.direction, flow);
        self.passed = 0;
        self.tenths = match self.weighed {
            0 => weight,
            _ => (self.tenths * (LATEST - 1) + weight) / LATEST,
        };
        self.weighed = self.weighed.saturating_add(1);
    }

    /// Whether it is less than a hit in a table of so many bytes.
    pub(crate) const fn is_below_a_hit(&self, memory: usize) -> bool {
        let hit = if memory <= SECOND_LEVEL {
            HIT[0]
        } else if memory <= NEAR {
            HIT[1]
        } else {
            HIT[2]
        };
        self.weighed >= ENOUGH && self.tenths < hit
    }
}
