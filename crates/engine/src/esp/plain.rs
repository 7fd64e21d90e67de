//! One layer around a plain packet: single, without options, and with room for all that comes around it.

use std::ops::Range;

use uxfrm_packet::{Checksum, PacketBuf, Version, esp};

use super::encapsulate::{
    PADDING, Stamp, esp_header, low_byte, low_half, outer_v4, outer_v6, wrap, write_udp,
};
use super::layer::{Inside, Layer, Outer, Outside, Wrap, ip_in_ip};

/// Bytes before a packet and behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) before: usize,
    pub(crate) behind: usize,
}

/// Bytes that are written at once behind the text, whatever of them belongs to the packet.
const TRAILER_ROOM: usize = PADDING.len() + esp::TRAILER_LEN;

impl Layer {
    /// The room that plain packets need for [`Layer::wrap_plain`]; `None` when it is not for this layer.
    pub(crate) fn room(&self) -> Option<Room> {
        // A socket leaves out the header that transport mode keeps, which is then in the middle.
        let leaves_out =
            self.outside == Outside::SocketPayload && matches!(self.wrap, Wrap::Transport);
        let is_all = self.tfc == 0 && !self.spreads() && !leaves_out;
        is_all
            .then(|| Room { before: self.front(), behind: TRAILER_ROOM + self.icv + PADDING.len() })
    }

    /// As [`wrap`], of a plain packet of this version with [room](Self::room): it is ready to leave but for what `wrap` leaves
    /// open. Gives all that leaves of it, and what of that is to be sealed. `None` without room: then it must not leave.
    #[inline(always)]
    pub(crate) fn wrap_plain<'a>(
        &self,
        packet: &'a mut PacketBuf,
        version: Version,
        stamp: Stamp,
    ) -> Option<(&'a mut [u8], Range<usize>)> {
        packet.mark = self.output_mark.applied_to(packet.mark);
        packet.checksum = Checksum::AsIs;
        match &self.wrap {
            Wrap::Tunnel(outer) => self.tunnel(outer, packet, version, stamp),
            Wrap::Transport => self.transport(packet, version, stamp),
        }
    }

    #[inline(always)]
    fn tunnel<'a>(
        &self,
        outer: &Outer,
        packet: &'a mut PacketBuf,
        version: Version,
        stamp: Stamp,
    ) -> Option<(&'a mut [u8], Range<usize>)> {
        let (mut after, len) = Inside::of_plain(version, packet.bytes())?;
        after.tos = self.tos.outer(after.tos);
        after.dont_fragment &= self.pmtu_discovery;
        let padding = self.padding(len) % PADDING.len();
        let (text, esp_at) = (self.front(), self.front() - self.lead);
        let end = text + len + padding + esp::TRAILER_LEN + self.icv;
        if self.outside == Outside::SocketPayload {
            packet.udp = self.tunnel_path(&after);
        }
        let room = packet.reframed(self.front(), end, TRAILER_ROOM)?;
        let trailer: &mut [u8; TRAILER_ROOM] = room.get_mut(text + len..)?.first_chunk_mut()?;
        *trailer.first_chunk_mut()? = PADDING;
        trailer[padding] = low_byte(padding);
        trailer[padding + 1] = ip_in_ip(version).0;
        let packet = room.get_mut(..end)?;
        *packet.get_mut(esp_at..)?.first_chunk_mut()? = esp_header(self, stamp);
        match (self.outside, outer) {
            (Outside::Packet, Outer::V4(template, sum)) => {
                let len = low_half(end);
                *packet.first_chunk_mut()? = outer_v4((template, *sum), &after, len, stamp.id);
            }
            (Outside::Packet, Outer::V6(template)) => {
                let len = low_half(end - outer.len());
                *packet.first_chunk_mut()? = outer_v6(template, &after, len);
            }
            (Outside::SocketPayload, _) => packet.get_mut(..esp_at)?.fill(0),
        }
        if let (Outside::Packet, Some(shape)) = (self.outside, &self.udp) {
            write_udp(packet, shape, esp_at, None);
        }
        Some((packet, esp_at..end))
    }

    #[inline(always)]
    fn transport<'a>(
        &self,
        packet: &'a mut PacketBuf,
        version: Version,
        stamp: Stamp,
    ) -> Option<(&'a mut [u8], Range<usize>)> {
        let (inside, len) = Inside::of_plain(version, packet.bytes())?;
        let room = packet.reframed(self.front(), self.sealed_len(len, &inside), 0)?;
        let esp = wrap(room, len, self, (&inside, &inside), stamp);
        Some((room, esp))
    }
}
