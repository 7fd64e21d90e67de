//! Counters of tunnels: written by one thread, readable by any.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::DropReason;

/// The drops of one worker by reason. One thread writes, any may read.
#[derive(Debug)]
pub struct TunnelDrops([AtomicU64; DropReason::ALL.len()]);

/// Traffic of one tunnel.
#[derive(Debug, Default)]
pub struct TunnelTraffic {
    /// Inner packets and bytes that were encapsulated.
    pub sent: Count,
    /// Inner packets and bytes that were decapsulated.
    pub received: Count,
}

/// Packets and bytes. One thread writes, any may read.
#[derive(Debug, Default)]
pub struct Count {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Default for TunnelDrops {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; DropReason::ALL.len()])
    }
}

impl TunnelDrops {
    /// Counts one packet. Only the owning thread may call this: two writers would lose counts.
    #[inline]
    pub fn count(&self, reason: DropReason) {
        self.add(reason, 1);
    }

    /// Counts several packets; as [`TunnelDrops::count`].
    #[inline]
    pub fn add(&self, reason: DropReason, packets: u64) {
        bump(&self.0[reason as usize], packets);
    }

    /// The count so far.
    #[must_use]
    pub fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }
}

impl Count {
    /// Counts packets with `bytes` bytes in total; as [`TunnelDrops::count`].
    #[inline]
    pub fn add(&self, packets: u64, bytes: usize) {
        bump(&self.packets, packets);
        bump(&self.bytes, bytes as u64);
    }

    /// Packets and bytes so far.
    #[must_use]
    pub fn read(&self) -> (u64, u64) {
        (self.packets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Load and store without read-modify-write: there is one writer.
#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_count_of_its_own() {
        let drops = TunnelDrops::default();
        drops.count(DropReason::InGueControl);
        drops.count(DropReason::InGueControl);
        drops.count(DropReason::OutRecursion);
        let counts = DropReason::ALL.iter().map(|reason| drops.of(*reason));
        assert_eq!(counts.sum::<u64>(), 3);
        assert_eq!(drops.of(DropReason::InGueControl), 2);
        let traffic = TunnelTraffic::default();
        traffic.sent.add(2, 3000);
        traffic.sent.add(1, 5);
        assert_eq!((traffic.sent.read(), traffic.received.read()), ((3, 3005), (0, 0)));
    }
}
