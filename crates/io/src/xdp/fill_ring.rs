//! The fill ring: frames that the kernel may receive into.

use super::ring::Producer;

/// The ring has a place for each frame, and the receive ring returns them. The kernel publishes
/// received frames before the fill places that they left (`net/xdp/xsk.c: xsk_flush`), so a frame
/// that returns at once may find no place.
#[derive(Debug)]
pub(super) struct FillRing {
    ring: Producer<u64>,
    /// Frames without a place yet.
    waiting: Vec<u64>,
}

impl FillRing {
    pub(super) fn new(ring: Producer<u64>) -> Self {
        Self { ring, waiting: Vec::new() }
    }

    /// Continues with a predecessor's ring and its frames without a place.
    pub(super) fn resume(&mut self, waiting: Vec<u64>) {
        self.ring.resume(0);
        self.waiting = waiting;
    }

    /// Frames without a place, after [`publish`](Self::publish).
    pub(super) fn waiting(&self) -> &[u64] {
        &self.waiting
    }

    /// Adds a frame, which the kernel sees after [`publish`](Self::publish).
    #[inline]
    pub(super) fn give(&mut self, frame: u64) {
        if let Err(frame) = self.ring.push(frame) {
            self.waiting.push(frame);
        }
    }

    /// Publishes all frames that have a place.
    #[inline]
    pub(super) fn publish(&mut self) {
        while !self.ring.is_full()
            && let Some(frame) = self.waiting.pop()
        {
            self.give(frame);
        }
        self.ring.publish();
    }

    /// Whether the kernel must be woken.
    #[inline]
    pub(super) fn needs_call(&self) -> bool {
        self.ring.needs_call()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::ring::tests::{SIZE, ends};

    #[test]
    fn fill_ring_queues_frame_until_place_is_free() {
        let (ring, mut kernel) = ends();
        let mut fill_ring = FillRing::new(ring);
        (0..SIZE.into()).for_each(|frame| fill_ring.give(frame));
        fill_ring.publish();
        // The kernel fills three, and frees their places only later.
        let filled: Vec<_> = std::iter::from_fn(|| kernel.next()).take(3).collect();
        filled.iter().for_each(|frame| fill_ring.give(*frame));
        fill_ring.publish();
        assert_eq!(fill_ring.waiting.len(), 3);
        kernel.release();
        fill_ring.publish();
        assert!(fill_ring.waiting.is_empty());
        let mut all: Vec<_> = std::iter::from_fn(|| kernel.next()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..SIZE.into()).collect::<Vec<_>>());
    }
}
