//! One layer around a plain packet: single, without options, and with room for all that comes around it.

use uxfrm_packet::{Checksum, PacketBuf, Version};

use super::encap::{Inside, Layer, Outer, Outside, Wrap};
use super::encap_layout::{Headers, Room, Wrapped};
use super::headers::{Stamp, end_of, wrap};

impl Layer {
    /// The room that plain packets need for [`Layer::wrap_plain`]; `None` when it is not for this layer.
    pub(crate) fn room(&self) -> Option<Room> {
        // A socket leaves out the header that transport mode keeps, which is then in the middle.
        let leaves_out =
            self.outside == Outside::SocketPayload && matches!(self.wrap, Wrap::Transport);
        let is_all = !self.pads() && !self.spreads() && !leaves_out;
        is_all.then(|| self.seam.room())
    }

    /// What a tunnel puts before ESP; `None` in transport mode.
    #[inline(always)]
    pub(crate) fn tunnel_headers(&self) -> Option<Headers<'_>> {
        match (&self.wrap, self.outside) {
            (Wrap::Transport, _) => None,
            (Wrap::Tunnel(_), Outside::SocketPayload) => Some(Headers::Socket),
            (Wrap::Tunnel(Outer::V4(template, sum)), Outside::Packet) => {
                Some(Headers::V4(end_of(template)?, *sum, self.udp.as_ref()))
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
        self.seam.enclose(&mut after);
        packet.mark = self.output_mark.applied_to(packet.mark);
        if let Headers::Socket = headers {
            packet.udp = self.tunnel_path(&after);
        }
        self.seam.wrap(headers, packet, (&after, len), stamp)
    }

    /// As [`Self::wrap_plain`], of transport mode.
    #[inline(always)]
    pub(crate) fn wrap_transport<'a>(
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
