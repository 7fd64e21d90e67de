//! A port in memory: moves buffers without copying, like a descriptor ring of a network card.

use std::collections::VecDeque;

use uxfrm_packet::{Batch, PacketBuf};

/// Buffers that a ring holds.
pub(crate) const ROOM: usize = 256;

/// A queue of buffers.
#[derive(Debug)]
pub(crate) struct Ring(VecDeque<PacketBuf>);

impl Ring {
    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(2 * ROOM))
    }

    /// Moves up to `most` buffers into a batch.
    #[inline]
    pub(crate) fn receive(&mut self, most: usize, into: &mut Batch) -> usize {
        let count = most.min(self.0.len());
        if count == 1 {
            self.0.pop_front().into_iter().for_each(|packet| into.push(packet));
            return count;
        }
        self.0.drain(..count).for_each(|packet| into.push(packet));
        count
    }

    /// Takes all buffers out of a batch. Always inlined: the gate counts a call of it as the
    /// worker's.
    #[inline(always)]
    pub(crate) fn transmit(&mut self, batch: &mut Batch) {
        match batch.take_single() {
            Some(packet) => self.0.push_back(packet),
            None => self.0.extend(batch.drain()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn packets(&mut self) -> &mut [PacketBuf] {
        self.0.make_contiguous()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = PacketBuf> + '_ {
        self.0.drain(..)
    }

    pub(crate) fn push(&mut self, packet: PacketBuf) {
        self.0.push_back(packet);
    }
}
