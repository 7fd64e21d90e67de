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

use uxfrm_packet::{Batch, PacketBuf};

use crate::datapath::context::BatchCtx;
use crate::datapath::outbound::{Outbound, PacketSummary, Verdict};
use crate::events::acquire::MissingSa;
use crate::{
    AcquireQueueLimits, AcquireView, DropReason, Event, FlowKey, KeyManagers, Moment, SaRequest,
};

/// All queued packets.
#[derive(Debug)]
pub(crate) struct AcquireQueue {
    queues: BTreeMap<SaRequest, SaQueue>,
    patience: AcquireQueueLimits,
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
struct SaQueue {
    packets: VecDeque<Queued>,
    /// Capacity of all buffers.
    bytes: usize,
    until: Moment,
    acquire: AcquireState,
}

/// One packet, or a super-packet.
#[derive(Debug)]
pub(crate) struct Queued {
    packet: PacketBuf,
    count: usize,
    /// Length of the longest fragment that the packet was reassembled from, if it was.
    longest: Option<usize>,
}

/// A queued packet on its way from one worker to another.
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
    pub(crate) fn new(patience: AcquireQueueLimits) -> Self {
        Self {
            queues: BTreeMap::new(),
            patience,
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

    /// Finds or opens the queue for an SA; a new queue sends an acquire. An error if the packet may
    /// not wait.
    fn open_queue(
        &mut self,
        missing: &MissingSa,
        flow: &FlowKey,
        ctx: &mut BatchCtx<'_>,
    ) -> Result<SaRequest, DropReason> {
        let wanted = missing.wanted;
        if ctx.snapshot.acquires.is_refused(&wanted, ctx.now) {
            return Err(DropReason::OutDeviceRefused);
        }
        if self.given_up == Some(wanted) {
            return Err(DropReason::OutNoState);
        }
        if !self.queues.contains_key(&wanted) {
            if self.queues.len() >= MAX_PENDING_SAS {
                return Err(DropReason::OutNoState);
            }
            let acquire = send_acquire(missing, flow, ctx).ok_or(DropReason::OutNoState)?;
            let queue = SaQueue::new(acquire, &wanted, ctx);
            self.until = self.until.min(queue.until);
            self.queues.insert(wanted, queue);
        }
        Ok(wanted)
    }

    /// Whether the snapshot changed or a queue expired.
    fn is_due(&mut self, ctx: &BatchCtx<'_>) -> bool {
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
    fn take(&mut self) -> BTreeMap<SaRequest, SaQueue> {
        (self.buffers, self.bytes, self.until) = (0, 0, Moment(u64::MAX));
        std::mem::take(&mut self.queues)
    }

    /// Puts an emptied queue back if the SA may still come.
    fn requeue(&mut self, wanted: SaRequest, queue: &SaQueue, now: Moment) {
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
    fn push(&mut self, wanted: &SaRequest, queued: Queued) -> Result<(), Queued> {
        let AcquireQueueLimits {
            packets_per_sa: buffers_each,
            bytes_per_sa: bytes_each,
            packets: buffers,
            bytes,
        } = self.patience;
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

impl Queued {
    pub(crate) const fn new(packet: PacketBuf, count: usize) -> Self {
        Self { packet, count, longest: None }
    }

    /// A datagram that the host had fragmented.
    pub(crate) const fn cut(packet: PacketBuf, longest: usize) -> Self {
        Self { packet, count: 1, longest: Some(longest) }
    }
}

impl SaQueue {
    fn new(acquire: AcquireState, wanted: &SaRequest, ctx: &BatchCtx<'_>) -> Self {
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

impl Outbound {
    /// Copies of all queued packets, in order for each SA.
    pub(crate) fn portray_waiting(&self) -> Vec<WaitingPacket> {
        let copy = |queued: &Queued| {
            let mut packet = PacketBuf::from_slice(queued.packet.bytes());
            *packet = *queued.packet;
            WaitingPacket { packet, count: queued.count, longest_fragment: queued.longest }
        };
        self.queued.queues.values().flat_map(|queue| queue.packets.iter().map(copy)).collect()
    }

    /// Takes over packets that waited with another worker, which had counted them.
    pub(crate) fn adopt_waiting(&mut self, waiting: Vec<WaitingPacket>, ctx: &mut BatchCtx<'_>) {
        self.policies.begin_batch(&ctx.snapshot.spd);
        self.refresh_bundles(ctx.snapshot);
        for WaitingPacket { packet, count, longest_fragment: longest } in waiting {
            self.traffic.received += count as u64;
            self.traffic.received_bytes += packet.len() as u64;
            self.traffic.held += count as u64;
            self.retry(Queued { packet, count, longest }, ctx);
        }
        self.run(&mut Batch::new(), ctx, &mut ());
    }

    /// Releases packets whose SAs have come and drops expired ones.
    #[inline]
    pub(crate) fn resume(&mut self, ctx: &mut BatchCtx<'_>) {
        if !self.queued.queues.is_empty() && self.queued.is_due(ctx) {
            self.release(ctx);
        }
    }

    #[inline(never)]
    fn release(&mut self, ctx: &mut BatchCtx<'_>) {
        for (wanted, queue) in self.queued.take() {
            self.queued.requeue(wanted, &queue, ctx.now);
            for queued in queue.packets {
                self.retry(queued, ctx);
            }
        }
        self.queued.given_up = None;
    }

    /// Queues a packet for what the latest resolution missed.
    pub(crate) fn queue_packet(&mut self, queued: Queued, flow: &FlowKey, ctx: &mut BatchCtx<'_>) {
        let count = queued.count;
        let required = match self.acquire_missing(flow, ctx) {
            Ok(required) => required,
            Err(reason) => return self.discard(queued.packet, count, reason, ctx),
        };
        match self.queued.push(&required, queued) {
            Ok(()) => self.traffic.held += count as u64,
            Err(queued) => self.discard(queued.packet, count, DropReason::OutWaitFull, ctx),
        }
    }

    /// Sends acquires for the optional SAs that the latest resolution did without.
    pub(crate) fn acquire_optional(&self, flow: &FlowKey, ctx: &mut BatchCtx<'_>) {
        for missing in &self.cache.missing {
            send_acquire(missing, flow, ctx);
        }
    }

    /// Sends acquires for all missing SAs. Returns the required one, which is the last, if the
    /// packet may wait.
    fn acquire_missing(
        &mut self,
        flow: &FlowKey,
        ctx: &mut BatchCtx<'_>,
    ) -> Result<SaRequest, DropReason> {
        let missing = self.cache.missing.split_last();
        let (required, optional) = missing.ok_or(DropReason::OutNoState)?;
        for missing in optional {
            send_acquire(missing, flow, ctx);
        }
        self.queued.open_queue(required, flow, ctx)
    }

    /// Retries a queued packet. It was counted when it came, for its policies too.
    fn retry(&mut self, queued: Queued, ctx: &mut BatchCtx<'_>) {
        self.traffic.held -= queued.count as u64;
        let (packet, count) = (&queued.packet, queued.count);
        let Ok((plan, ip)) = crate::datapath::outbound::parse_packet(packet) else {
            return self.discard(queued.packet, count, DropReason::OutMalformed, ctx);
        };
        let flow = FlowKey::of(packet, &ip, packet.bytes());
        match self.look_up_again(&flow, ctx) {
            // The policy was removed or changed meanwhile. A packet that was to be protected never
            // leaves in plaintext (`xfrm_policy_kill`).
            Verdict::Pass => self.discard(queued.packet, count, DropReason::OutNoState, ctx),
            Verdict::Drop(reason) => self.discard(queued.packet, count, reason, ctx),
            Verdict::Bundle(place) => {
                let summary = PacketSummary::of(&ip);
                match queued.longest {
                    None => self.enter_bundle(
                        queued.packet,
                        plan.as_ref(),
                        (&summary, &flow),
                        place,
                        ctx,
                    ),
                    Some(longest) => {
                        self.enter_reassembled(
                            queued.packet,
                            longest,
                            (summary, &flow),
                            place,
                            ctx,
                        );
                    }
                }
            }
            Verdict::Wait => self.queue_packet(queued, &flow, ctx),
        }
    }
}

/// Sends an acquire if key managers listen and none is pending.
fn send_acquire(
    missing: &MissingSa,
    flow: &FlowKey,
    ctx: &mut BatchCtx<'_>,
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
