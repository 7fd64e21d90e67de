//! Completion ring: output at once, or delayed and reordered by a fault.

use std::{collections::VecDeque, time::Duration};

use uxfrm_engine::Moment;

/// A FIFO, except for [`Completions::reorder`].
#[derive(Debug)]
pub(super) struct Completions<T> {
    waiting: VecDeque<(Moment, T)>,
    delay: Duration,
    /// Remaining swaps with the next packet.
    swaps: u32,
    /// A packet that waits for its successor, and the deadline.
    overtaken: Option<(Moment, T)>,
}

/// Longest wait for a successor.
const OVERTAKE_TIMEOUT: Duration = Duration::from_millis(100);

impl<T> Default for Completions<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), delay: Duration::ZERO, swaps: 0, overtaken: None }
    }
}

impl<T> Completions<T> {
    /// Delays later packets.
    pub(super) const fn set_delay(&mut self, delay: Duration) {
        self.delay = delay;
    }

    /// Swaps this many packets with their successors.
    pub(super) const fn reorder(&mut self, packets: u32) {
        self.swaps = packets;
    }

    /// Adds a completion.
    pub(super) fn push(&mut self, item: T, now: Moment) {
        if self.overtaken.is_none() && self.swaps > 0 {
            self.swaps -= 1;
            self.overtaken = Some((now.plus(OVERTAKE_TIMEOUT), item));
            return;
        }
        self.enqueue(item, now);
        if let Some((_, late)) = self.overtaken.take() {
            self.enqueue(late, now);
        }
    }

    /// Removes the next due completion.
    pub(super) fn pop(&mut self, now: Moment) -> Option<T> {
        let next = match self.waiting.front() {
            Some((due, _)) if *due <= now => self.waiting.pop_front(),
            Some(_) | None => self.overtaken.take_if(|(due, _)| *due <= now),
        };
        next.map(|(_, item)| item)
    }

    /// Removes selected completions, due or not.
    pub(super) fn take_if(&mut self, mut which: impl FnMut(&T) -> bool) -> Vec<T> {
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for (due, item) in self.waiting.drain(..) {
            if which(&item) {
                taken.push(item);
            } else {
                left.push_back((due, item));
            }
        }
        self.waiting = left;
        taken.extend(self.overtaken.take_if(|(_, item)| which(item)).map(|(_, item)| item));
        taken
    }

    /// When the first completion is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        let ahead = [self.waiting.front(), self.overtaken.as_ref()];
        ahead.into_iter().flatten().map(|(due, _)| *due).min()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().chain(&self.overtaken).map(|(_, item)| item)
    }

    /// Never before an earlier completion.
    fn enqueue(&mut self, item: T, now: Moment) {
        let last = self.waiting.back().map_or(now, |(due, _)| *due);
        self.waiting.push_back((now.plus(self.delay).max(last), item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(ring: &mut Completions<u32>, now: Moment) -> Vec<u32> {
        std::iter::from_fn(|| ring.pop(now)).collect()
    }

    #[test]
    fn delay_keeps_the_order() {
        let mut ring = Completions::default();
        ring.set_delay(Duration::from_secs(2));
        ring.push(1, Moment::from_secs(10));
        ring.set_delay(Duration::ZERO);
        ring.push(2, Moment::from_secs(11));
        assert_eq!(due(&mut ring, Moment::from_secs(11)), []);
        assert_eq!(ring.next_due(), Some(Moment::from_secs(12)));
        assert_eq!(due(&mut ring, Moment::from_secs(12)), [1, 2]);
        assert_eq!(ring.next_due(), None);
    }

    #[test]
    fn reordered_packets_swap_without_loss() {
        let mut ring = Completions::default();
        ring.reorder(2);
        for item in 1..=5 {
            ring.push(item, Moment(0));
        }
        assert_eq!(due(&mut ring, Moment(0)), [2, 1, 4, 3, 5]);
        ring.reorder(1);
        ring.push(6, Moment(0));
        assert_eq!(due(&mut ring, Moment(0)), []);
        let over = ring.next_due().unwrap();
        assert_eq!((over, due(&mut ring, over)), (Moment(0).plus(OVERTAKE_TIMEOUT), vec![6]));
    }
}
