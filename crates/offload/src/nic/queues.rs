//! Where a device puts what it received.

use uxfrm_engine::Received;

use super::FunctionId;
use crate::Queue;

/// The receive queues of a device and its virtual functions, which have one each. Whoever serves a queue drains it.
#[derive(Debug)]
pub struct Queues {
    physical: Vec<Vec<Received>>,
    virtuals: Vec<Vec<Received>>,
}

impl Queues {
    pub(super) fn new(physical: u16, virtuals: usize) -> Self {
        let empty = |_| Vec::new();
        Self {
            physical: (0..physical.max(1)).map(empty).collect(),
            virtuals: (0..virtuals).map(|_| Vec::new()).collect(),
        }
    }

    /// What is in one queue; of virtual functions there is only queue 0. `None` for one that there is not.
    #[must_use]
    pub fn of(&mut self, function: FunctionId, queue: Queue) -> Option<&mut Vec<Received>> {
        match usize::from(function.0).checked_sub(1) {
            None => self.physical.get_mut(usize::from(queue.0)),
            Some(place) if queue == Queue(0) => self.virtuals.get_mut(place),
            Some(_) => None,
        }
    }

    /// The device's own queues, in order.
    pub fn physical(&mut self) -> impl Iterator<Item = &mut Vec<Received>> {
        self.physical.iter_mut()
    }

    /// Those of the virtual functions, in order.
    pub fn virtuals(&mut self) -> impl Iterator<Item = &mut Vec<Received>> {
        self.virtuals.iter_mut()
    }

    /// Takes everything out, queue by queue.
    pub fn drain(&mut self) -> impl Iterator<Item = Received> {
        self.physical.iter_mut().chain(&mut self.virtuals).flat_map(|queue| queue.drain(..))
    }

    /// Rules and hash name only queues that the device has; these must be its own ([`ModelNic::queues`](crate::ModelNic::queues)).
    pub(super) fn push(&mut self, function: FunctionId, queue: Queue, received: Received) {
        let (rings, place) = match usize::from(function.0).checked_sub(1) {
            None => (&mut self.physical, queue.0.into()),
            Some(place) => (&mut self.virtuals, place),
        };
        debug_assert!(place < rings.len(), "queues of another device");
        if let Some(ring) = rings.get_mut(place) {
            ring.push(received);
        }
    }
}
