//! Receive queues of a device.

use uxfrm_engine::ReceivedPacket;

use super::FunctionId;
use crate::RxQueueId;

/// Receive queues of a device and its virtual functions, which have one each. Drain queues
/// separately, or all in order by [`NicQueues::in_order`].
#[derive(Debug)]
pub struct NicQueues {
    physical: Vec<Vec<ReceivedPacket>>,
    virtuals: Vec<Vec<ReceivedPacket>>,
    /// Queue of each packet in order of arrival.
    order: Vec<(FunctionId, RxQueueId)>,
}

impl NicQueues {
    pub(super) fn new(physical: u16, virtuals: usize) -> Self {
        let empty = |_| Vec::new();
        Self {
            physical: (0..physical.max(1)).map(empty).collect(),
            virtuals: (0..virtuals).map(|_| Vec::new()).collect(),
            order: Vec::new(),
        }
    }

    /// Content of one queue; virtual functions only have queue 0. `None` for others.
    #[must_use]
    pub fn of(
        &mut self,
        function: FunctionId,
        queue: RxQueueId,
    ) -> Option<&mut Vec<ReceivedPacket>> {
        self.order.clear();
        self.ring(function, queue)
    }

    /// The device's own queues, in order.
    pub fn physical(&mut self) -> impl Iterator<Item = &mut Vec<ReceivedPacket>> {
        self.order.clear();
        self.physical.iter_mut()
    }

    /// Removes everything, queue by queue.
    pub fn drain(&mut self) -> impl Iterator<Item = ReceivedPacket> {
        self.order.clear();
        self.physical.iter_mut().chain(&mut self.virtuals).flat_map(|queue| queue.drain(..))
    }

    /// Removes everything in order of arrival, with the queue of each.
    pub fn in_order(&mut self) -> impl Iterator<Item = (FunctionId, RxQueueId, ReceivedPacket)> {
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

    /// Rules and hash name only existing queues; these must be the device's own
    /// ([`ModelNic::queues`](crate::ModelNic::queues)).
    pub(super) fn push(
        &mut self,
        function: FunctionId,
        queue: RxQueueId,
        received: ReceivedPacket,
    ) {
        // Steering applies to the device's queues; a virtual function has only one.
        let queue = if function == FunctionId::PHYSICAL { queue } else { RxQueueId(0) };
        let ring = self.ring(function, queue);
        debug_assert!(ring.is_some(), "queues of another device");
        if let Some(ring) = ring {
            ring.push(received);
            self.order.push((function, queue));
        }
    }

    fn ring(&mut self, function: FunctionId, queue: RxQueueId) -> Option<&mut Vec<ReceivedPacket>> {
        match usize::from(function.0).checked_sub(1) {
            None => self.physical.get_mut(usize::from(queue.0)),
            Some(place) if queue == RxQueueId(0) => self.virtuals.get_mut(place),
            Some(_) => None,
        }
    }
}
