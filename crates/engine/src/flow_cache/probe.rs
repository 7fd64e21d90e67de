//! Packets that leave, most of them of other flows than the ones before: each is looked for as it lies, without its flow being made of it.
//!
//! Only what is known is found. Whatever else there is about a flow is left to who asks with all of it.

use uxfrm_packet::{FlowWords, PacketBuf};

use super::table::HashedKey;
use super::{Known, LookupContext, PolicyCache, key};
use crate::{Direction, Spd};

/// Where a packet's flow is to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trail(HashedKey<2>);

impl PolicyCache {
    /// The trail of a packet with these words.
    #[inline(always)]
    pub(crate) fn trail(&mut self, words: &FlowWords, packet: &PacketBuf) -> Trail {
        let context = self.contexts.number_of([packet.mark, packet.if_id, 0]);
        Trail(self.v4.hash(key::outbound(words, context)))
    }

    /// Asks for what [`PolicyCache::follow`] reads.
    #[inline(always)]
    pub(crate) fn fetch_trail(&self, trail: &Trail) {
        self.v4.prefetch(&trail.0);
    }

    /// What is known of a flow, if it is where it is likely to be.
    #[inline(always)]
    pub(crate) fn follow(&self, trail: &Trail) -> Option<Known> {
        self.v4.find_primary(&trail.0, self.now)
    }

    /// What is known of a flow, wherever it is.
    #[inline(always)]
    pub(crate) fn follow_far(&self, trail: &Trail) -> Option<Known> {
        self.v4.find_overflow(&trail.0, self.now)
    }

    /// Asks for what [`PolicyCache::follow_far`] mostly reads.
    #[inline(always)]
    pub(crate) fn fetch_far(&self, trail: &Trail) {
        self.v4.prefetch_overflow(&trail.0);
    }

    /// Counts flows of which something was known.
    pub(crate) fn count_followed(&mut self, spd: &Spd, flows: usize) {
        let (direction, now, concerned) = (Direction::Out, self.now, &self.concerned);
        let lookup = LookupContext { spd, direction, now, concerned };
        self.v4.count_found(&lookup, flows);
    }
}
