//! Queue of packets that wait for an SA, by the SA they need.
//!
//! A packet whose required template has no SA waits here while key managers negotiate one, at most
//! for the lifetime of the larval state. Linux does the same where `net.core.xfrm_larval_drop` is 0
//! (`net/xfrm/xfrm_policy.c: xdst_queue_output`), and drops otherwise. Released packets are checked
//! against the policies again, in order of arrival for each SA, before all packets of the batch.
//! [`AcquireQueueLimits`] bounds packets and memory; if the queue is full, the newest packet is
//! dropped, as in Linux. While no SA is missing, a batch only checks that the map is empty.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use uxfrm_packet::PacketBuf;

use crate::datapath::context::BatchContext;
use crate::events::acquire::MissingSa;
use crate::{
    AcquireQueueLimits, AcquireView, DropReason, Event, FlowKey, KeyManagers, Moment, SaRequest,
};

/// All queued packets.
#[derive(Debug)]
pub(crate) struct AcquireQueue {
    queues: BTreeMap<SaRequest, SaQueue>,
    limits: AcquireQueueLimits,
    buffers: usize,
    bytes: usize,
    /// When the first queue expires.
    until: Moment,
    /// Generation of the snapshot that was checked last: only a new one can release packets.
    generation: u64,
    acquires: Arc<AcquireView>,
    /// The SA that is given up while its packets are retried for the last time.
    given_up: Option<SaRequest>,
}

#[derive(Debug)]
pub(crate) struct SaQueue {
    pub(crate) packets: VecDeque<WaitingPacket>,
    /// Capacity of all buffers.
    bytes: usize,
    until: Moment,
    acquire: AcquireState,
}

/// A queued packet, also on its way from one worker to another.
#[derive(Debug)]
pub struct WaitingPacket {
    /// The packet or super-packet.
    pub packet: PacketBuf,
    /// Number of packets in it.
    pub count: usize,
    /// Length of the longest fragment that the packet was reassembled from, if it was.
    pub longest_fragment: Option<usize>,
}

/// What became of the acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcquireState {
    /// It was sent; no larval state has been seen yet.
    Unheard,
    /// There is a larval state. When it goes, no SA will come.
    Pending,
}

/// Upper bound of SAs that are waited for. Beyond it packets are dropped without an acquire.
const MAX_PENDING_SAS: usize = 4096;

impl AcquireQueue {
    pub(crate) fn new(limits: AcquireQueueLimits) -> Self {
        Self {
            queues: BTreeMap::new(),
            limits,
            buffers: 0,
            bytes: 0,
            until: Moment(u64::MAX),
            generation: 0,
            acquires: Arc::default(),
            given_up: None,
        }
    }

    /// Queued buffers.
    pub(crate) fn len(&self) -> usize {
        self.buffers
    }

    /// Copies of all queued packets, in order for each SA.
    pub(crate) fn copy_packets(&self) -> Vec<WaitingPacket> {
        let packets = self.queues.values().flat_map(|queue| &queue.packets);
        packets.map(WaitingPacket::copy).collect()
    }

    /// Queues a packet for the SAs that the latest resolution missed.
    pub(crate) fn queue_packet(
        &mut self,
        queued: WaitingPacket,
        flow: &FlowKey,
        missing: &[MissingSa],
        ctx: &mut BatchContext<'_>,
    ) {
        let count = queued.count;
        let required = match self.acquire_missing(missing, flow, ctx) {
            Ok(required) => required,
            Err(reason) => return ctx.discard(queued.packet, count, reason),
        };
        match self.push(&required, queued) {
            Ok(()) => ctx.traffic.held += count as u64,
            Err(queued) => ctx.discard(queued.packet, count, DropReason::OutWaitFull),
        }
    }

    /// Sends acquires for all missing SAs. Returns the required one, which is the last, if the
    /// packet may wait.
    fn acquire_missing(
        &mut self,
        missing: &[MissingSa],
        flow: &FlowKey,
        ctx: &mut BatchContext<'_>,
    ) -> Result<SaRequest, DropReason> {
        let (required, optional) = missing.split_last().ok_or(DropReason::OutNoState)?;
        acquire_optional(optional, flow, ctx);
        self.open_queue(required, flow, ctx)
    }

    /// Finds or opens the queue for an SA; a new queue sends an acquire. An error if the packet may
    /// not wait.
    fn open_queue(
        &mut self,
        missing: &MissingSa,
        flow: &FlowKey,
        ctx: &mut BatchContext<'_>,
    ) -> Result<SaRequest, DropReason> {
        let wanted = missing.wanted;
        if ctx.snapshot.acquires.is_refused(&wanted, ctx.now) {
            return Err(DropReason::OutDeviceRefused);
        }
        if self.given_up == Some(wanted) {
            return Err(match ctx.snapshot.acquires.key_managers {
                KeyManagers::Absent => DropReason::OutNoState,
                KeyManagers::Listening => DropReason::OutAcquireFailed,
            });
        }
        if !self.queues.contains_key(&wanted) {
            if self.queues.len() >= MAX_PENDING_SAS {
                return Err(DropReason::OutWaitFull);
            }
            let acquire = send_acquire(missing, flow, ctx).ok_or(DropReason::OutNoState)?;
            let queue = SaQueue::new(acquire, &wanted, ctx);
            self.until = self.until.min(queue.until);
            self.queues.insert(wanted, queue);
        }
        Ok(wanted)
    }

    /// Whether packets wait, and the snapshot changed or a queue expired.
    #[inline]
    pub(crate) fn is_due(&mut self, ctx: &BatchContext<'_>) -> bool {
        !self.queues.is_empty() && self.has_news(ctx)
    }

    #[inline(never)]
    fn has_news(&mut self, ctx: &BatchContext<'_>) -> bool {
        let snapshot = ctx.snapshot;
        let news = self.generation != snapshot.generation
            || !Arc::ptr_eq(&self.acquires, &snapshot.acquires);
        if news {
            self.generation = snapshot.generation;
            self.acquires = Arc::clone(&snapshot.acquires);
        }
        news || ctx.now >= self.until
    }

    /// Takes all queues out.
    pub(crate) fn take(&mut self) -> BTreeMap<SaRequest, SaQueue> {
        (self.buffers, self.bytes, self.until) = (0, 0, Moment(u64::MAX));
        std::mem::take(&mut self.queues)
    }

    /// After all packets taken out were retried.
    pub(crate) fn end_retries(&mut self) {
        self.given_up = None;
    }

    /// Puts an emptied queue back if the SA may still come.
    pub(crate) fn requeue(&mut self, wanted: SaRequest, queue: &SaQueue, now: Moment) {
        self.given_up = None;
        match queue.remaining_wait(&wanted, &self.acquires, now) {
            None => self.given_up = Some(wanted),
            Some((acquire, until)) => {
                self.until = self.until.min(until);
                let empty = SaQueue { packets: VecDeque::new(), bytes: 0, until, acquire };
                self.queues.insert(wanted, empty);
            }
        }
    }

    /// Adds a packet to its queue, or returns it.
    fn push(&mut self, wanted: &SaRequest, queued: WaitingPacket) -> Result<(), WaitingPacket> {
        let AcquireQueueLimits {
            packets_per_sa: buffers_each,
            bytes_per_sa: bytes_each,
            packets: buffers,
            bytes,
        } = self.limits;
        let size = queued.packet.capacity();
        let Some(queue) = self.queues.get_mut(wanted) else { return Err(queued) };
        let has_room = queue.packets.len() < buffers_each
            && queue.bytes + size <= bytes_each
            && self.buffers < buffers
            && self.bytes + size <= bytes;
        if !has_room {
            return Err(queued);
        }
        queue.bytes += size;
        queue.packets.push_back(queued);
        self.bytes += size;
        self.buffers += 1;
        Ok(())
    }
}

impl WaitingPacket {
    pub(crate) const fn new(packet: PacketBuf, count: usize) -> Self {
        Self { packet, count, longest_fragment: None }
    }

    /// A datagram that the host had fragmented.
    pub(crate) const fn cut(packet: PacketBuf, longest: usize) -> Self {
        Self { packet, count: 1, longest_fragment: Some(longest) }
    }

    fn copy(&self) -> Self {
        let mut packet = PacketBuf::from_slice(self.packet.bytes());
        *packet = *self.packet;
        Self { packet, ..*self }
    }
}

impl SaQueue {
    fn new(acquire: AcquireState, wanted: &SaRequest, ctx: &BatchContext<'_>) -> Self {
        let acquires = &ctx.snapshot.acquires;
        let until = acquires.pending.get(wanted).copied();
        let until = until.unwrap_or_else(|| ctx.now.plus(acquires.lifetime));
        Self { packets: VecDeque::new(), bytes: 0, until, acquire }
    }

    /// How long the SA may still come; `None` if it will not.
    fn remaining_wait(
        &self,
        wanted: &SaRequest,
        acquires: &AcquireView,
        now: Moment,
    ) -> Option<(AcquireState, Moment)> {
        if acquires.is_refused(wanted, now) {
            return None;
        }
        let (acquire, until) = match (acquires.pending.get(wanted), self.acquire) {
            (Some(until), _) => (AcquireState::Pending, *until),
            (None, AcquireState::Pending) => return None,
            (None, AcquireState::Unheard) => match acquires.key_managers {
                KeyManagers::Absent => return None,
                KeyManagers::Listening => (AcquireState::Unheard, self.until),
            },
        };
        (now < until).then_some((acquire, until))
    }
}

/// Sends acquires for the optional SAs that the latest resolution did without.
pub(crate) fn acquire_optional(missing: &[MissingSa], flow: &FlowKey, ctx: &mut BatchContext<'_>) {
    for missing in missing {
        send_acquire(missing, flow, ctx);
    }
}

/// Sends an acquire if key managers listen and none is pending.
fn send_acquire(
    missing: &MissingSa,
    flow: &FlowKey,
    ctx: &mut BatchContext<'_>,
) -> Option<AcquireState> {
    let acquires = &ctx.snapshot.acquires;
    if acquires.pending.contains_key(&missing.wanted) {
        return Some(AcquireState::Pending);
    }
    if acquires.is_refused(&missing.wanted, ctx.now) {
        return None;
    }
    match acquires.key_managers {
        KeyManagers::Absent => None,
        KeyManagers::Listening => {
            let MissingSa { policy, template, wanted } = *missing;
            ctx.push_event(Event::Acquire { policy, template, wanted, flow: *flow });
            Some(AcquireState::Unheard)
        }
    }
}
