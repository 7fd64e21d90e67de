//! A batch: the packets that one call of a stage processes.

use crate::PacketBuf;

/// Capacity of a batch in buffers.
pub const BATCH: usize = 256;

/// Buffers processed together, in order of arrival; at most [`BATCH`].
#[derive(Debug, Default)]
pub struct Batch {
    packets: Vec<PacketBuf>,
}

impl Batch {
    /// An empty batch with its memory allocated.
    #[must_use]
    pub fn new() -> Self {
        Self { packets: Vec::with_capacity(BATCH) }
    }

    /// Buffers held.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether it holds none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many more fit.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        BATCH.saturating_sub(self.packets.len())
    }

    /// Appends a buffer. A batch may grow past [`BATCH`] when one packet becomes several; it then
    /// allocates.
    #[inline]
    pub fn push(&mut self, packet: PacketBuf) {
        self.packets.push(packet);
    }

    /// Moves all these buffers to the end of the batch.
    #[inline]
    pub fn append(&mut self, packets: &mut Vec<PacketBuf>) {
        self.packets.append(packets);
    }

    /// Removes the only buffer; `None`, and nothing changed, if there are more or none.
    #[inline]
    pub fn take_single(&mut self) -> Option<PacketBuf> {
        if self.packets.len() == 1 { self.packets.pop() } else { None }
    }

    /// Removes the buffer at `index`; the others keep their order.
    ///
    /// # Panics
    /// When `index` is out of bounds.
    pub fn remove(&mut self, index: usize) -> PacketBuf {
        self.packets.remove(index)
    }

    /// Removes all buffers in order; the batch keeps its memory.
    #[inline]
    pub fn drain(&mut self) -> std::vec::Drain<'_, PacketBuf> {
        self.packets.drain(..)
    }

    /// The buffers in order.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[PacketBuf] {
        &self.packets
    }

    /// The buffers in order, mutable.
    #[must_use]
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [PacketBuf] {
        &mut self.packets
    }
}

impl FromIterator<PacketBuf> for Batch {
    fn from_iter<I: IntoIterator<Item = PacketBuf>>(packets: I) -> Self {
        Self { packets: packets.into_iter().collect() }
    }
}
