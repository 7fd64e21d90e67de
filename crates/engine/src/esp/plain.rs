//! One layer around a plain packet: single, without options, and with room for all that comes around it.

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::Ipv4Header;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{Checksum, PacketBuf, Version, esp, udp};

use super::encapsulate::{
    PADDING, Stamp, esp_header, low_byte, low_half, outer_v4, outer_v6, wrap, write_udp,
};
use super::layer::{Inside, Layer, Outer, Outside, UdpShape, Wrap, ip_in_ip};

/// Bytes before a packet and behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) before: usize,
    pub(crate) behind: usize,
}

/// Bytes that are written at once behind the text, whatever of them belongs to the packet.
const TRAILER_ROOM: usize = PADDING.len() + esp::TRAILER_LEN;

/// What a tunnel puts before ESP, by its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Headers<'a> {
    V4(&'a Ipv4Header, Sum, Option<&'a UdpShape>),
    V6(&'a Ipv6Header, Option<&'a UdpShape>),
    /// A socket writes them.
    Socket,
}

/// What leaves of a packet that was wrapped: how many bytes in all, and what of them is to be sealed.
pub(crate) type Wrapped<'a> = (usize, &'a mut [u8]);

impl Layer {
    /// The room that plain packets need for [`Layer::wrap_plain`]; `None` when it is not for this layer.
    pub(crate) fn room(&self) -> Option<Room> {
        // A socket leaves out the header that transport mode keeps, which is then in the middle.
        let leaves_out =
            self.outside == Outside::SocketPayload && matches!(self.wrap, Wrap::Transport);
        let is_all = !self.pads() && !self.spreads() && !leaves_out;
        let behind = TRAILER_ROOM + self.icv() + PADDING.len();
        is_all.then_some(Room { before: self.front(), behind })
    }

    /// What a tunnel puts before ESP; `None` in transport mode.
    #[inline(always)]
    pub(crate) fn tunnel_headers(&self) -> Option<Headers<'_>> {
        match (&self.wrap, self.outside) {
            (Wrap::Transport, _) => None,
            (Wrap::Tunnel(_), Outside::SocketPayload) => Some(Headers::Socket),
            (Wrap::Tunnel(Outer::V4(template, sum)), Outside::Packet) => {
                Some(Headers::V4(template, *sum, self.udp.as_ref()))
            }
            (Wrap::Tunnel(Outer::V6(template)), Outside::Packet) => {
                Some(Headers::V6(template, self.udp.as_ref()))
            }
        }
    }

    /// As [`wrap`], of a plain packet of this version with [room](Self::room): it is ready to leave but for what `wrap` leaves
    /// open. `None` without room: then it must not leave.
    #[inline(always)]
    pub(crate) fn wrap_plain<'a>(
        &self,
        packet: &'a mut PacketBuf,
        version: Version,
        stamp: Stamp,
    ) -> Option<Wrapped<'a>> {
        match self.tunnel_headers() {
            Some(headers) => self.wrap_in_tunnel(headers, packet, version, stamp),
            None => self.wrap_transport(packet, version, stamp),
        }
    }

    /// As [`Self::wrap_plain`], of a tunnel with these [headers](Self::tunnel_headers). Compiled apart where kind and version are known.
    #[inline(always)]
    pub(crate) fn wrap_in_tunnel<'a>(
        &self,
        headers: Headers<'_>,
        packet: &'a mut PacketBuf,
        version: Version,
        stamp: Stamp,
    ) -> Option<Wrapped<'a>> {
        let (mut after, len) = Inside::of_plain(version, packet.bytes())?;
        after.tos = self.tos.outer(after.tos);
        after.dont_fragment &= self.pmtu_discovery;
        packet.mark = self.output_mark.applied_to(packet.mark);
        packet.checksum = Checksum::AsIs;
        if let Headers::Socket = headers {
            packet.udp = self.tunnel_path(&after);
        }
        let padding = self.padding(len) % PADDING.len();
        let (text, esp_at) = (self.front(), self.front() - self.lead());
        let end = text + len + padding + esp::TRAILER_LEN + self.icv();
        let room = packet.reframed(text, end, TRAILER_ROOM)?;
        let trailer: &mut [u8; TRAILER_ROOM] = room.get_mut(text + len..)?.first_chunk_mut()?;
        *trailer.first_chunk_mut()? = PADDING;
        let ends = [low_byte(padding), ip_in_ip(version).0];
        trailer[padding..padding + esp::TRAILER_LEN].copy_from_slice(&ends);
        let (before, esp) = room.get_mut(..end)?.split_at_mut_checked(esp_at)?;
        *esp.first_chunk_mut()? = esp_header(self, stamp);
        match headers {
            Headers::V4(template, sum, udp) => {
                *before.first_chunk_mut()? =
                    outer_v4((template, sum), &after, low_half(end), stamp.id);
                write_udp_before(before, esp.len(), udp);
            }
            Headers::V6(template, udp) => {
                let len = low_half(end - ipv6::HEADER_LEN);
                *before.first_chunk_mut()? = outer_v6(template, &after, len);
                write_udp_before(before, esp.len(), udp);
            }
            // A marker, if anything.
            Headers::Socket => before.fill(0),
        }
        Some((end, esp))
    }

    /// As [`Self::wrap_plain`], of transport mode.
    #[inline(always)]
    fn wrap_transport<'a>(
        &self,
        packet: &'a mut PacketBuf,
        version: Version,
        stamp: Stamp,
    ) -> Option<Wrapped<'a>> {
        let (inside, len) = Inside::of_plain(version, packet.bytes())?;
        packet.mark = self.output_mark.applied_to(packet.mark);
        packet.checksum = Checksum::AsIs;
        let room = packet.reframed(self.front(), self.sealed_len(len, &inside), 0)?;
        let esp = wrap(room, len, self, (&inside, &inside), stamp);
        Some((room.len(), room.get_mut(esp)?))
    }
}

/// UDP and its marker at the end of what is before so many bytes of ESP.
#[inline(always)]
fn write_udp_before(before: &mut [u8], esp_len: usize, udp: Option<&UdpShape>) {
    if let Some(shape) = udp {
        let at = before.len() - usize::from(shape.marker) - udp::HEADER_LEN;
        write_udp(&mut before[at..], shape, esp_len, None);
    }
}
