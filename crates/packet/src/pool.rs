//! Pool of packet buffers.
//!
//! One pool per worker, without a lock. It keeps up to a fixed number of idle buffers of each
//! class; beyond that, buffers are freed, so that a burst does not hold memory for good.

use crate::{Batch, HEADROOM, PacketBuf, TAILROOM};

/// Buffer sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeClass {
    /// One packet of up to 2,048 bytes, with head- and tailroom.
    Packet,
    /// A super-packet or segment burst: 64 KiB, with head- and tailroom.
    Super,
}

impl SizeClass {
    /// Storage of a buffer of this class.
    #[must_use]
    pub const fn capacity(self) -> usize {
        match self {
            Self::Packet => HEADROOM + 2048 + TAILROOM,
            Self::Super => HEADROOM + 65_536 + TAILROOM,
        }
    }

    /// The smallest class that holds `len` bytes; the super class if none does.
    #[must_use]
    pub const fn holding(len: usize) -> Self {
        if len <= 2048 { Self::Packet } else { Self::Super }
    }
}

/// Statistics of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Buffers allocated because none was idle.
    pub allocated: u64,
    /// Buffers freed because enough were idle.
    pub freed: u64,
}

/// Idle buffers, kept for reuse.
#[derive(Debug)]
pub struct Pool {
    packets: Vec<PacketBuf>,
    supers: Vec<PacketBuf>,
    stats: PoolStats,
}

const IDLE_PACKETS: usize = 2048;
const IDLE_SUPERS: usize = 64;

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool {
    /// A pool without idle buffers; the first ones are allocated on demand.
    #[must_use]
    pub fn new() -> Self {
        Self {
            packets: Vec::with_capacity(IDLE_PACKETS),
            supers: Vec::with_capacity(IDLE_SUPERS),
            stats: PoolStats::default(),
        }
    }

    /// An empty buffer of a class with its first byte at [`HEADROOM`].
    #[must_use]
    #[inline]
    pub fn take(&mut self, class: SizeClass) -> PacketBuf {
        let idle = match class {
            SizeClass::Packet => &mut self.packets,
            SizeClass::Super => &mut self.supers,
        };
        idle.pop().unwrap_or_else(|| {
            self.stats.allocated += 1;
            PacketBuf::with_capacity(class.capacity(), HEADROOM)
        })
    }

    /// Takes a buffer back. One of another size is freed.
    #[inline]
    pub fn give(&mut self, mut packet: PacketBuf) {
        let (idle, most) = if packet.capacity() == SizeClass::Packet.capacity() {
            (&mut self.packets, IDLE_PACKETS)
        } else if packet.capacity() == SizeClass::Super.capacity() {
            (&mut self.supers, IDLE_SUPERS)
        } else {
            self.stats.freed += 1;
            return;
        };
        if idle.len() < most {
            packet.reset();
            idle.push(packet);
        } else {
            self.stats.freed += 1;
        }
    }

    /// Takes back all buffers of a batch.
    pub fn give_all(&mut self, batch: &mut Batch) {
        for packet in batch.drain() {
            self.give(packet);
        }
    }

    /// Statistics so far.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_pool_allocates_nothing() {
        let mut pool = Pool::new();
        for class in [SizeClass::Packet, SizeClass::Super] {
            let first = pool.take(class);
            assert_eq!(first.headroom(), HEADROOM);
            pool.give(first);
        }
        let warm = pool.stats();
        for _ in 0..100 {
            let mut packet = pool.take(SizeClass::Super);
            packet.append(1000).unwrap().fill(7);
            pool.give(packet);
        }
        assert_eq!(pool.stats(), warm);
        assert!(pool.take(SizeClass::Super).is_empty());
    }

    #[test]
    fn foreign_sizes_are_freed() {
        let mut pool = Pool::new();
        pool.give(PacketBuf::from_slice(b"odd"));
        assert_eq!(pool.stats().freed, 1);
    }
}
