//! The ring of frames that the kernel may receive into.

use super::ring::Producer;

/// Frames go to the kernel by a ring that has a place for each of them, and come back filled by another. The kernel lets us see what it has filled
/// before it lets us see the place that the frame has left (`net/xdp/xsk.c: xsk_flush`), so that one that comes back at once may find none.
#[derive(Debug)]
pub(super) struct FillRing {
    ring: Producer<u64>,
    /// What has found no place yet.
    waiting: Vec<u64>,
}

impl FillRing {
    pub(super) fn new(ring: Producer<u64>) -> Self {
        Self { ring, waiting: Vec::new() }
    }

    /// Goes on where another process has stopped, which had found no place for these.
    pub(super) fn resume(&mut self, waiting: Vec<u64>) {
        self.ring.resume(0);
        self.waiting = waiting;
    }

    /// What has found no place yet, when all else is [published](Self::publish).
    pub(super) fn waiting(&self) -> &[u64] {
        &self.waiting
    }

    /// Gives a frame to the kernel, which sees it once it is [published](Self::publish).
    #[inline]
    pub(super) fn give(&mut self, frame: u64) {
        if let Err(frame) = self.ring.push(frame) {
            self.waiting.push(frame);
        }
    }

    /// Lets the kernel see all that was given and has a place.
    #[inline]
    pub(super) fn publish(&mut self) {
        while !self.ring.is_full()
            && let Some(frame) = self.waiting.pop()
        {
            self.give(frame);
        }
        self.ring.publish();
    }

    /// Whether the kernel looks only when it is called.
    #[inline]
    pub(super) fn needs_call(&self) -> bool {
        self.ring.needs_call()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ring::tests::{SIZE, ends};
    use super::*;

    #[test]
    fn a_frame_that_finds_no_place_has_one_later() {
        let (ring, mut kernel) = ends();
        let mut fill_ring = FillRing::new(ring);
        (0..SIZE.into()).for_each(|frame| fill_ring.give(frame));
        fill_ring.publish();
        // The kernel fills three, and says only later that their places are free.
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
