//! Reassembly of fragments for this host.

use uxfrm_packet::{IpPacket, PacketBuf, Segments};

use super::parse_outer::OuterClass;
use crate::datapath::context::BatchCtx;
use crate::datapath::inbound::{Fate, Inbound, deliver, narrow};
use crate::fragments::origin::FragmentOrigin;
use crate::fragments::reassembly::Reassembled;
use crate::{Direction, DropReason, FlowKey, PolicyKind, Spi};

impl Inbound {
    /// Holds a fragment for this host until its datagram is complete, also one that came out of
    /// ESP: in the host's own stack anybody could mix plain fragments into it.
    #[inline(never)]
    pub(crate) fn reassemble(
        &mut self,
        place: usize,
        ip: &IpPacket,
        ctx: &mut BatchCtx<'_>,
    ) -> Result<Fate, DropReason> {
        let origin = self.origin(place);
        let packet = self.take(place, ctx);
        let (outcome, evicted) = self.reassembly.add(packet, ip, &origin, ctx.now, ctx.pool);
        ctx.count_drop(&mut self.traffic, evicted, DropReason::InFragment);
        match outcome {
            Reassembled::Held => Ok(Fate::Gone),
            Reassembled::Refused => Err(DropReason::InFragment),
            Reassembled::Aborted { pieces } => {
                ctx.count_drop(&mut self.traffic, pieces - 1, DropReason::InFragment);
                Err(DropReason::InFragment)
            }
            Reassembled::Whole { packet, pieces, longest: _, spans_rekey } => {
                self.traffic.absorbed += pieces - 1;
                self.move_to_new_buffer(place, packet);
                match self.parse_outer(place, ctx)? {
                    OuterClass::Fragment(_) => Err(DropReason::InFragment),
                    OuterClass::Plain(ip, direction) if spans_rekey => {
                        self.reject_spi_template(place, &ip, direction, ctx)?;
                        Ok(self.plain(place, &ip, direction))
                    }
                    OuterClass::Plain(ip, direction) => Ok(self.plain(place, &ip, direction)),
                    // Only the inner packet's policies could tell which SA the ESP came by.
                    OuterClass::Esp(_) if spans_rekey => Err(DropReason::InFragment),
                    OuterClass::Esp(location) => self.match_sa(place, &location, &mut None, ctx),
                }
            }
        }
    }

    /// The policy check sees the SAs of the last fragment, while earlier ones may have come by the
    /// SAs before a rekey. These differ in SPI only, so a template with an SPI is not satisfied.
    fn reject_spi_template(
        &self,
        place: usize,
        ip: &IpPacket,
        direction: Direction,
        ctx: &BatchCtx<'_>,
    ) -> Result<(), DropReason> {
        let item = &self.items[place];
        let buffer = self.buffers[item.buffer as usize].as_ref();
        let flow =
            FlowKey::of_bytes(ip, buffer.map(|buffer| item.bytes(buffer)).unwrap_or_default());
        let spd = &ctx.snapshot.spd;
        let deciding = [PolicyKind::Sub, PolicyKind::Main]
            .into_iter()
            .filter_map(|kind| spd.lookup_kind(kind, direction, &flow));
        let is_wanted =
            deciding.flat_map(|entry| entry.templates()).any(|wanted| wanted.spi != Spi(0));
        if is_wanted { Err(DropReason::InTemplateMismatch) } else { Ok(()) }
    }

    /// The SAs that an item came by so far.
    fn origin(&self, place: usize) -> FragmentOrigin {
        self.items[place].path.iter().map(|entry| &*self.rx_cache[*entry as usize].sa).collect()
    }

    /// The item's packet in its own buffer: the current one if nothing else is in it, otherwise a
    /// copy.
    pub(crate) fn take(&mut self, place: usize, ctx: &mut BatchCtx<'_>) -> PacketBuf {
        let item = &self.items[place];
        let slot = &mut self.buffers[item.buffer as usize];
        if slot.as_ref().is_some_and(|buffer| !matches!(buffer.segments, Segments::Burst { .. }))
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
    pub(crate) fn move_to_new_buffer(&mut self, place: usize, packet: PacketBuf) {
        let item = &mut self.items[place];
        (item.buffer, item.start, item.len) = (narrow(self.buffers.len()), 0, narrow(packet.len()));
        self.buffers.push(Some(packet));
        self.has_new_buffers = true;
    }
}
