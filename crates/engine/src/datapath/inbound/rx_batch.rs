//! What the stages of the inbound path work on: the batch's packets and their SAs.

use std::net::SocketAddr;
use std::vec::Drain;

use uxfrm_packet::{IpPacket, PacketBuf, Segments};

use super::outer_template::{MatchedEsp, SaMatcher};
use super::rx_cache::RxCache;
use super::slow::device::MetadataByBuffer;
use super::slow::item::{Fate, RxItem};
use super::slow::policy_lookups::PolicyLookups;
use super::{META_AHEAD, SealedEsp, deliver, narrow};
use crate::datapath::context::BatchContext;
use crate::drop_log::{DropSite, SeenPacket};
use crate::{Direction, DropReason, DropSubject, PolicyEntry, SaSubject, TraceStep};

/// The packets of a batch, and the SAs, which outlive it.
#[derive(Debug)]
pub(crate) struct RxBatch {
    pub(super) items: Vec<RxItem>,
    /// Buffers of the batch; `None` once delivered.
    pub(super) buffers: Vec<Option<PacketBuf>>,
    pub(super) metadata: MetadataByBuffer,
    /// SAs of this batch and of earlier ones.
    pub(super) rx_cache: RxCache,
    /// ESP packets to open in this round, in order of buffer and offset.
    pub(super) sealed: Vec<SealedEsp>,
    /// Set when a packet was moved to a new buffer; `sealed` must then be sorted.
    pub(super) has_new_buffers: bool,
    /// Packets whose UDP source differs from the SA's (NAT remapping), by item.
    pub(super) nat_remaps: Vec<(u32, SocketAddr)>,
    pub(super) lookups: PolicyLookups,
}

impl RxBatch {
    pub(super) fn new() -> Self {
        Self {
            items: Vec::with_capacity(uxfrm_packet::BATCH),
            buffers: Vec::with_capacity(uxfrm_packet::BATCH),
            metadata: MetadataByBuffer::default(),
            rx_cache: RxCache::new(),
            sealed: Vec::with_capacity(uxfrm_packet::BATCH),
            has_new_buffers: false,
            nat_remaps: Vec::new(),
            lookups: PolicyLookups::default(),
        }
    }

    /// The state of a packet that is to be opened, for a trace.
    pub(super) fn state_step(&self, sealed: &SealedEsp) -> TraceStep {
        let sa = SaSubject::from(&*self.rx_cache[sealed.entry as usize].sa);
        TraceStep::State { sa, sequence: sealed.number.number() }
    }

    /// Stage 1.
    #[inline]
    pub(super) fn receive(
        &mut self,
        rest: &mut Drain<'_, PacketBuf>,
        most: usize,
        ctx: &mut BatchContext<'_>,
    ) {
        let count = rest.len().min(most);
        let packets = &rest.as_slice()[..count];
        packets.iter().take(META_AHEAD).for_each(PacketBuf::prefetch);
        self.items.reserve(packets.len());
        let (first, mut bytes) = (self.items.len(), 0);
        for (buffer, packet) in (0..).zip(packets) {
            packets.get(buffer as usize + META_AHEAD).inspect(|packet| packet.prefetch());
            packet.prefetch_bytes();
            bytes += packet.len();
            match packet.segments {
                Segments::Burst { stride } if stride > 0 => {
                    self.receive_burst(buffer, packet, stride);
                }
                Segments::Burst { .. }
                | Segments::One
                | Segments::Tcp { .. }
                | Segments::Udp { .. } => {
                    self.items.push(RxItem::new(buffer, 0, packet.len(), packet.mark));
                }
            }
        }
        self.buffers.extend(rest.take(count).map(Some));
        ctx.traffic.count_received((self.items.len() - first) as u64, bytes as u64);
    }

    #[inline(never)]
    fn receive_burst(&mut self, buffer: u32, burst: &PacketBuf, stride: u16) {
        for start in (0..burst.len().max(1)).step_by(stride.into()) {
            let len = usize::from(stride).min(burst.len() - start);
            self.items.push(RxItem::new(buffer, start, len, burst.mark));
        }
    }

    /// Adds an item for a packet that a fast path matched and opened, but did not accept.
    pub(super) fn push_opened(&mut self, packet: PacketBuf, entry: u32, matched: &MatchedEsp) {
        let place = narrow(self.buffers.len());
        let item = RxItem::new(place, 0, packet.len(), packet.mark);
        // The template existed when the packet matched.
        let known = SaMatcher::of(&self.rx_cache, entry);
        self.sealed.extend(known.map(|known| known.sealed(matched, place, &item)));
        self.items.push(RxItem { fate: Fate::Encrypted, ..item });
        self.buffers.push(Some(packet));
    }

    /// A packet without ESP.
    #[inline(always)]
    pub(super) fn plain(&mut self, place: usize, ip: &IpPacket, direction: Direction) -> Fate {
        let Self { items, buffers, lookups, rx_cache, .. } = self;
        let item = &mut items[place];
        let buffer = buffers[item.buffer as usize].as_ref();
        Fate::Plain(item.queue_lookup(ip, buffer, direction, rx_cache, lookups))
    }

    /// The item's packet in its own buffer: the current one if nothing else is in it, otherwise a
    /// copy.
    pub(super) fn take(&mut self, place: usize, ctx: &mut BatchContext<'_>) -> PacketBuf {
        let item = &self.items[place];
        let slot = &mut self.buffers[item.buffer as usize];
        if slot.as_ref().is_some_and(|buffer| !deliver::is_burst(buffer))
            && let Some(mut own) = slot.take()
        {
            own.pull(item.start as usize);
            own.trim(item.len as usize);
            return own;
        }
        let bytes = slot.as_ref().map(|buffer| item.bytes(buffer)).unwrap_or_default();
        let mut copy = deliver::copy(bytes, ctx.pool);
        if let Some(buffer) = slot {
            (copy.mark, copy.if_id) = (buffer.mark, buffer.if_id);
        }
        copy
    }

    /// Moves an item to a new buffer.
    pub(super) fn move_to_new_buffer(&mut self, place: usize, packet: PacketBuf) {
        let item = &mut self.items[place];
        (item.buffer, item.start, item.len) = (narrow(self.buffers.len()), 0, narrow(packet.len()));
        self.buffers.push(Some(packet));
        self.has_new_buffers = true;
    }

    /// Drops a packet, for whatever SA it came by last.
    #[cold]
    #[inline(never)]
    pub(super) fn drop(&mut self, place: usize, reason: DropReason, ctx: &mut BatchContext<'_>) {
        let site = self.site(place);
        ctx.note_drop(1, reason, &site);
        self.items[place].fate = Fate::Gone;
    }

    /// Drops a packet of an SA, given by its entry.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_of_sa(
        &mut self,
        place: usize,
        entry: u32,
        reason: DropReason,
        ctx: &mut BatchContext<'_>,
    ) {
        let site = self.site(place).by_sa(&self.rx_cache[entry as usize].sa);
        ctx.note_drop(1, reason, &site);
        self.items[place].fate = Fate::Gone;
    }

    /// Drops a packet that a policy decided over.
    #[cold]
    #[inline(never)]
    pub(super) fn drop_by_policy(
        &mut self,
        place: usize,
        policy: Option<&PolicyEntry>,
        reason: DropReason,
        ctx: &mut BatchContext<'_>,
    ) {
        let DropSite { packet, known } = self.site(place);
        let device = known.device.or_else(|| policy.and_then(PolicyEntry::device));
        let policy = policy.map(PolicyEntry::index);
        let known = DropSubject { policy, device, ..known };
        ctx.note_drop(1, reason, &DropSite { packet, known });
        self.items[place].fate = Fate::Gone;
    }

    /// What is known of an item that is dropped.
    fn site(&self, place: usize) -> DropSite<'_> {
        let item = &self.items[place];
        let packet = self.buffers[item.buffer as usize].as_ref().map(|buffer| SeenPacket {
            bytes: item.bytes(buffer),
            udp: buffer.udp.filter(|_| item.path.is_empty()),
            mark: item.mark,
            ..SeenPacket::of(buffer)
        });
        let sa = item.path.last().map(|entry| SaSubject::from(&*self.rx_cache[*entry as usize].sa));
        let device = self.metadata.device_of(item);
        DropSite { packet, known: DropSubject { sa, policy: None, device } }
    }

    /// Clears what belongs to these packets only.
    pub(super) fn finish(&mut self) {
        self.has_new_buffers = false;
        self.rx_cache.finish();
        self.nat_remaps.clear();
    }
}
