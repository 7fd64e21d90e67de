//! Where a device puts what it received.

use uxfrm_engine::Received;

use super::FunctionId;
use crate::Queue;

/// The receive queues of a device and its virtual functions, which have one each. Whoever serves a queue drains it; whoever serves several and wants all
/// in order takes [`Queues::in_order`].
#[derive(Debug)]
pub struct Queues {
    physical: Vec<Vec<Received>>,
    virtuals: Vec<Vec<Received>>,
    /// Into which queue each packet went, the one first that came first.
    order: Vec<(FunctionId, Queue)>,
}

impl Queues {
    pub(super) fn new(physical: u16, virtuals: usize) -> Self {
        let empty = |_| Vec::new();
        Self {
            physical: (0..physical.max(1)).map(empty).collect(),
            virtuals: (0..virtuals).map(|_| Vec::new()).collect(),
            order: Vec::new(),
        }
    }

    /// What is in one queue; of virtual functions there is only queue 0. `None` for one that there is not.
    #[must_use]
    pub fn of(&mut self, function: FunctionId, queue: Queue) -> Option<&mut Vec<Received>> {
        self.order.clear();
        self.ring(function, queue)
    }

    /// The device's own queues, in order.
    pub fn physical(&mut self) -> impl Iterator<Item = &mut Vec<Received>> {
        self.order.clear();
        self.physical.iter_mut()
    }

    /// Takes everything out, queue by queue.
    pub fn drain(&mut self) -> impl Iterator<Item = Received> {
        self.order.clear();
        self.physical.iter_mut().chain(&mut self.virtuals).flat_map(|queue| queue.drain(..))
    }

    /// Takes everything out as it came, and says from which queue each is.
    pub fn in_order(&mut self) -> impl Iterator<Item = (FunctionId, Queue, Received)> {
        let Self { physical, virtuals, order } = self;
        let mut physical: Vec<_> = physical.iter_mut().map(|queue| queue.drain(..)).collect();
        let mut virtuals: Vec<_> = virtuals.iter_mut().map(|queue| queue.drain(..)).collect();
        order.drain(..).filter_map(move |(function, queue)| {
            let ring = match usize::from(function.0).checked_sub(1) {
                None => physical.get_mut(usize::from(queue.0)),
                Some(place) => virtuals.get_mut(place),
            };
            ring?.next().map(|received| (function, queue, received))
        })
    }

    /// Rules and hash name only queues that the device has; these must be its own ([`ModelNic::queues`](crate::ModelNic::queues)).
    pub(super) fn push(&mut self, function: FunctionId, queue: Queue, received: Received) {
        // A virtual function's packets are spread as the device's own are, and it has one queue.
        let queue = if function == FunctionId::PHYSICAL { queue } else { Queue(0) };
        let ring = self.ring(function, queue);
        debug_assert!(ring.is_some(), "queues of another device");
        if let Some(ring) = ring {
            ring.push(received);
            self.order.push((function, queue));
        }
    }

    fn ring(&mut self, function: FunctionId, queue: Queue) -> Option<&mut Vec<Received>> {
        match usize::from(function.0).checked_sub(1) {
            None => self.physical.get_mut(usize::from(queue.0)),
            Some(place) if queue == Queue(0) => self.virtuals.get_mut(place),
            Some(_) => None,
        }
    }
}
