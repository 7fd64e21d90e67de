//! Fast encapsulation of one whole packet: without options, and with enough room.

use uxfrm_packet::{Checksum, PacketBuf, Version};

use super::encap::{EncapLayer, EncapMode, InnerInfo, OuterForm, TunnelHeader};
use super::encap_layout::{EncapRoom, Encapsulated, TunnelHeaders};
use super::headers::{SeqAndId, end_of, wrap};

impl EncapLayer {
    /// Room that a packet needs for [`EncapLayer::encapsulate_fast`]; `None` if the layer does
    /// not qualify.
    pub(crate) fn room(&self) -> Option<EncapRoom> {
        // A socket leaves out the header that transport mode keeps, which would be in the middle.
        let leaves_out =
            self.outside == OuterForm::SocketPayload && matches!(self.wrap, EncapMode::Transport);
        let is_all = !self.adds_tfc() && !self.uses_flow_ports() && !leaves_out;
        is_all.then(|| self.layout.room())
    }

    /// Headers before ESP in tunnel mode; `None` in transport mode.
    #[inline(always)]
    pub(crate) fn tunnel_headers(&self) -> Option<TunnelHeaders<'_>> {
        match (&self.wrap, self.outside) {
            (EncapMode::Transport, _) => None,
            (EncapMode::Tunnel(_), OuterForm::SocketPayload) => {
                Some(TunnelHeaders::Socket(self.marker()))
            }
            (EncapMode::Tunnel(TunnelHeader::V4(template, sum)), OuterForm::Packet) => {
                Some(TunnelHeaders::V4(end_of(template)?, *sum, self.udp.as_ref()))
            }
            (EncapMode::Tunnel(TunnelHeader::V6(template)), OuterForm::Packet) => {
                Some(TunnelHeaders::V6(template, self.udp.as_ref()))
            }
        }
    }

    /// Like [`wrap`], for a plain packet of this version with [room](Self::room): complete except
    /// for what `wrap` leaves open. `None` without room: then the packet must not leave.
    #[inline(always)]
    pub(crate) fn encapsulate_fast<'a>(
        &self,
        packet: &'a mut PacketBuf,
        version: Version,
        seq_id: SeqAndId,
    ) -> Option<Encapsulated<'a>> {
        match self.tunnel_headers() {
            Some(headers) => self.encapsulate_tunnel(headers, packet, version, seq_id),
            None => self.encapsulate_transport(packet, version, seq_id),
        }
    }

    /// Like [`Self::encapsulate_fast`], for tunnel mode with these [headers](Self::tunnel_headers).
    /// Compiled separately where kind and version are constant.
    #[inline(always)]
    pub(crate) fn encapsulate_tunnel<'a>(
        &self,
        headers: TunnelHeaders<'_>,
        packet: &'a mut PacketBuf,
        version: Version,
        seq_id: SeqAndId,
    ) -> Option<Encapsulated<'a>> {
        let (mut after, len) = InnerInfo::from_fixed_header(version, packet.bytes())?;
        self.layout.apply_to(&mut after);
        packet.mark = self.output_mark.applied_to(packet.mark);
        if let TunnelHeaders::Socket(_) = headers {
            packet.udp = self.tunnel_path(&after);
        }
        self.layout.wrap(headers, packet, (&after, len), seq_id)
    }

    /// Like [`Self::encapsulate_fast`], for transport mode.
    #[inline(always)]
    pub(crate) fn encapsulate_transport<'a>(
        &self,
        packet: &'a mut PacketBuf,
        version: Version,
        seq_id: SeqAndId,
    ) -> Option<Encapsulated<'a>> {
        let (inner, len) = InnerInfo::from_fixed_header(version, packet.bytes())?;
        packet.mark = self.output_mark.applied_to(packet.mark);
        packet.checksum = Checksum::AsIs;
        let room = packet.reframed(self.headroom(), self.sealed_len(len, &inner), 0)?;
        let esp = wrap(room, len, self, (&inner, &inner), seq_id);
        Some((room.len(), room.get_mut(esp)?))
    }
}
