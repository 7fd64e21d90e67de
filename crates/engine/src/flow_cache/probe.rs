//! Probes for outbound packets of interleaved flows: the key is made of the packet's header words,
//! without a [`FlowKey`](crate::FlowKey).
//!
//! Probes only read the cache. Misses are left to the caller, who has the whole flow.

use uxfrm_packet::{Ipv4FlowKey, PacketBuf};

use super::table::HashedKey;
use super::{CachedVerdict, LookupContext, PolicyCache, key};
use crate::{Direction, Spd};

/// Hashed key of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowProbe(HashedKey<2>);

impl PolicyCache {
    /// Makes the probe of a packet with these header words.
    #[inline(always)]
    pub(crate) fn probe(&mut self, words: &Ipv4FlowKey, packet: &PacketBuf) -> FlowProbe {
        let context = self.contexts.number_of([packet.mark, packet.if_id, 0]);
        FlowProbe(self.v4.hash(key::outbound(words, context)))
    }

    /// Prefetches what [`PolicyCache::probe_primary`] reads.
    #[inline(always)]
    pub(crate) fn prefetch_primary(&self, probe: &FlowProbe) {
        self.v4.prefetch(&probe.0);
    }

    /// Cached verdict of a flow in its primary line.
    #[inline(always)]
    pub(crate) fn probe_primary(&self, probe: &FlowProbe) -> Option<CachedVerdict> {
        self.v4.find_primary(&probe.0, self.now)
    }

    /// Cached verdict of a flow in any line.
    #[inline(always)]
    pub(crate) fn probe_overflow(&self, probe: &FlowProbe) -> Option<CachedVerdict> {
        self.v4.find_overflow(&probe.0, self.now)
    }

    /// Prefetches what [`PolicyCache::probe_overflow`] mostly reads.
    #[inline(always)]
    pub(crate) fn prefetch_overflow(&self, probe: &FlowProbe) {
        self.v4.prefetch_overflow(&probe.0);
    }

    /// Counts probes that hit.
    pub(crate) fn count_probe_hits(&mut self, spd: &Spd, flows: usize) {
        let (direction, now, scopes) = (Direction::Out, self.now, &self.scopes);
        let lookup = LookupContext { spd, direction, now, scopes };
        self.v4.count_found(&lookup, flows);
    }
}
