//! A ring between two threads whose receiver exchanges each buffer for an empty one.

use std::sync::Mutex;

use uxfrm_engine::{OffloadedPacket, ReceivedPacket};
use uxfrm_io::poll::Waker;
use uxfrm_packet::{PacketBuf, Pool, SizeClass};

use super::lock;

/// An item of a ring, with a buffer.
pub trait HasPacket: Sized {
    /// The buffer.
    fn packet(&self) -> &PacketBuf;

    /// Extracts the buffer.
    fn into_packet(self) -> PacketBuf;
}

impl HasPacket for PacketBuf {
    fn packet(&self) -> &PacketBuf {
        self
    }

    fn into_packet(self) -> PacketBuf {
        self
    }
}

impl HasPacket for OffloadedPacket {
    fn packet(&self) -> &PacketBuf {
        &self.packet
    }

    fn into_packet(self) -> PacketBuf {
        self.packet
    }
}

impl HasPacket for ReceivedPacket {
    fn packet(&self) -> &PacketBuf {
        &self.packet
    }

    fn into_packet(self) -> PacketBuf {
        self.packet
    }
}

/// A ring for one direction.
#[derive(Debug)]
pub struct BufferRing<T>(Mutex<Ring<T>>);

#[derive(Debug)]
struct Ring<T> {
    full: Vec<T>,
    empty: Vec<PacketBuf>,
    room: usize,
}

impl<T: HasPacket> BufferRing<T> {
    /// A ring of this size.
    #[must_use]
    pub fn new(room: usize) -> Self {
        let (full, empty) = (Vec::with_capacity(room), Vec::with_capacity(room));
        Self(Mutex::new(Ring { full, empty, room }))
    }

    /// Pushes in order as far as there is room, and wakes the other side if the ring was empty; the
    /// rest stays in `items`.
    pub fn put(&self, items: &mut Vec<T>, pool: &mut Pool, waker: &Waker) {
        if items.is_empty() {
            return;
        }
        let mut ring = lock(&self.0);
        let was_empty = ring.full.is_empty();
        let count = items.len().min(ring.room.saturating_sub(ring.full.len()));
        ring.full.extend(items.drain(..count));
        ring.empty.drain(..).for_each(|empty| pool.give(empty));
        drop(ring);
        if was_empty && count > 0 {
            waker.wake();
        }
    }

    /// Takes all items and pays with empty buffers.
    pub fn take(&self, into: &mut Vec<T>, pool: &mut Pool) {
        let mut ring = lock(&self.0);
        let Ring { full, empty, room } = &mut *ring;
        for item in full.iter().take(room.saturating_sub(empty.len())) {
            let is_super = item.packet().capacity() > SizeClass::Packet.capacity();
            empty.push(pool.take(if is_super { SizeClass::Super } else { SizeClass::Packet }));
        }
        into.append(full);
    }

    /// Whether the ring is empty.
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).full.is_empty()
    }

    /// Free places.
    #[must_use]
    pub fn room(&self) -> usize {
        let ring = lock(&self.0);
        ring.room.saturating_sub(ring.full.len())
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_io::poll::Poller;

    use super::*;

    #[test]
    fn buffer_ring_exchanges_buffers_so_no_pool_runs_dry() {
        let poller = Poller::new().unwrap();
        let ring = BufferRing::new(4);
        let (mut here, mut there) = (Pool::new(), Pool::new());
        for _ in 0..100 {
            let mut items: Vec<_> = (0..6).map(|_| here.take(SizeClass::Packet)).collect();
            ring.put(&mut items, &mut here, &poller.waker());
            assert_eq!((items.len(), ring.room()), (2, 0));
            items.drain(..).for_each(|item| here.give(item));
            let mut taken = Vec::new();
            ring.take(&mut taken, &mut there);
            assert_eq!((taken.len(), ring.room()), (4, 4));
            taken.drain(..).for_each(|item| there.give(item));
        }
        assert!(here.stats().allocated <= 10, "{:?}", here.stats());
        assert!(there.stats().allocated <= 4, "{:?}", there.stats());
    }
}
