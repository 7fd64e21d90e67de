//! Stage 7 for packets whose inner headers match those of an earlier packet of the SA: they belong
//! to its flow and contain no further ESP.
//!
//! All other packets, and those to be dropped, are left to the slow path.

use uxfrm_packet::{HeaderTemplate, PacketBuf};

use super::rx_cache::{EspFraming, RxTally, RxTemplates};
use super::{Fate, PolicyLookups, RxBatch, SealedEsp, narrow};
use crate::esp::decap;
use crate::{Direction, FlowKey, Mode, Spi, ecn};

/// Template of a plain packet that an SA carried.
#[derive(Debug)]
pub(super) struct InnerTemplate {
    outline: HeaderTemplate,
    pub(super) flow: FlowKey,
    pub(super) direction: Direction,
    /// Index of the flow's look-up in this batch, if queued.
    pub(super) lookup: Option<u32>,
}

/// A decrypted packet from a tunnel, within its buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct InnerPacket {
    pub(super) at: u32,
    pub(super) len: u32,
    pub(super) mark: u32,
    /// Bytes charged to the SA: with TFC padding.
    pub(super) carried: u32,
}

impl InnerTemplate {
    /// Template of a whole packet. `None` if later packets of the flow need a full check.
    pub(super) fn of(
        packet: &[u8],
        flow: FlowKey,
        direction: Direction,
        lookup: u32,
    ) -> Option<Self> {
        let outline = HeaderTemplate::of(packet)?;
        Some(Self { outline, flow, direction, lookup: Some(lookup) })
    }

    pub(super) fn outline(&self) -> HeaderTemplate {
        self.outline
    }

    /// Length of the packet at the start of `bytes`, if it matches.
    #[inline(always)]
    fn extent(&self, mark: u32, if_id: u32, bytes: &[u8]) -> Option<usize> {
        let is_its = (mark, if_id) == (self.flow.mark, self.flow.if_id);
        self.outline.matches_with_checksum(bytes).filter(|_| is_its).map(|extent| extent.len)
    }

    /// Bounds of the decrypted inner packet if it matches the template and needs no ECN rewrite.
    /// ESP is `len` bytes at `at`, below a header with TOS `tos`.
    #[inline(always)]
    pub(super) fn inner_packet(
        &self,
        framing: &EspFraming,
        (at, len, tos): (u32, u32, u8),
        mark: u32,
        buffer: &PacketBuf,
    ) -> Option<InnerPacket> {
        let at = at + framing.header_iv_len;
        let text = buffer.part(at, len.checked_sub(framing.header_iv_len + framing.icv)?)?;
        let stripped = decap::strip(text).ok()?;
        let mark = framing.output_mark.applied_to(mark);
        let len = narrow(self.extent(mark, buffer.if_id, &text[..stripped.len])?);
        let stays =
            stripped.next_header == self.outline.protocol() && ecn::stays(tos, framing.flags);
        stays.then_some(InnerPacket { at, len, mark, carried: narrow(stripped.len) })
    }

    /// Index of the flow's look-up; queues it for the first packet of a batch.
    #[inline(always)]
    fn lookup(&mut self, spi: Spi, lookups: &mut PolicyLookups) -> u32 {
        match self.lookup {
            Some(lookup) => lookup,
            None => self.queue_lookup(spi, lookups),
        }
    }

    #[inline(never)]
    fn queue_lookup(&mut self, spi: Spi, lookups: &mut PolicyLookups) -> u32 {
        *self.lookup.insert(lookups.push(self.flow, spi, self.direction))
    }
}

impl RxTemplates {
    /// Look-up and length of a packet that matches the template; `bytes` may be longer than the
    /// packet.
    #[inline(always)]
    pub(super) fn lookup(
        &mut self,
        mark: u32,
        spi: Spi,
        (buffer, bytes): (&PacketBuf, &[u8]),
        lookups: &mut PolicyLookups,
    ) -> Option<(u32, usize)> {
        let inner = self.inner.as_mut()?;
        let len = inner.extent(mark, buffer.if_id, bytes)?;
        Some((inner.lookup(spi, lookups), len))
    }
}

/// Stage 7 for packets of one tunnel that passed the replay check, up to the first that does not
/// match. Returns how many matched.
#[inline]
pub(super) fn strip_same_flow(
    run: &mut [SealedEsp],
    tally: &mut RxTally,
    rx: &mut RxBatch,
) -> usize {
    let RxBatch { items, buffers, rx_cache, lookups, .. } = rx;
    let templates = rx_cache.templates_mut(tally.entry);
    let Some(inner) = templates.and_then(|templates| templates.inner.as_mut()) else {
        return 0;
    };
    let framing = &tally.framing;
    if framing.mode != Mode::Tunnel {
        return 0;
    }
    let (mut matched, mut bytes) = (0, 0);
    for packet in run {
        let item = &mut items[packet.item as usize];
        let Some(buffer) = &buffers[packet.buffer as usize] else { break };
        let Some(inner_packet) =
            inner.inner_packet(framing, (packet.at, packet.len, packet.tos), item.mark, buffer)
        else {
            break;
        };
        if item.path.try_push(packet.entry).is_err() {
            break;
        }
        (item.start, item.len, item.mark) = (inner_packet.at, inner_packet.len, inner_packet.mark);
        item.fate = Fate::Plain(inner.lookup(framing.spi, lookups));
        packet.carried = Some(inner_packet.carried);
        bytes += u64::from(inner_packet.carried);
        matched += 1;
    }
    tally.bytes += bytes;
    tally.packets += narrow(matched);
    matched
}
