//! Layout of an encapsulated packet from ESP inward, independent of the headers before ESP. Small,
//! as consecutive packets may each use another SA.

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{Checksum, PacketBuf, esp, udp};

use super::encap::{InnerInfo, UdpTemplate, ip_in_ip};
use super::headers::{
    Ipv4HeaderTail, PADDING, SeqAndId, esp_header, low_byte, low_half, outer_v4, outer_v6,
    write_udp,
};
use crate::Spi;
use crate::ecn::TosRule;

/// Layout for one SA.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncapLayout {
    pub(crate) spi: Spi,
    /// Bytes added before the packet, and those of ESP header and IV among them.
    pub(crate) front: u16,
    pub(crate) esp_header_len: u16,
    pub(crate) icv_len: u16,
    /// Payload is padded to a multiple of this power of two.
    pub(crate) align: u16,
    pub(crate) tos: TosRule,
    /// Whether the outer header may have DF.
    pub(crate) pmtu_discovery: bool,
}

/// Headroom and tailroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncapRoom {
    pub(crate) before: usize,
    pub(crate) behind: usize,
}

/// Headers before ESP in tunnel mode, by kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TunnelHeaders<'a> {
    V4(&'a Ipv4HeaderTail, Sum, Option<&'a UdpTemplate>),
    V6(&'a Ipv6Header, Option<&'a UdpTemplate>),
    /// A socket writes them, except for this marker.
    Socket(&'static [u8]),
}

/// Length of an encapsulated packet, and the part of it to seal.
pub(crate) type Encapsulated<'a> = (usize, &'a mut [u8]);

/// Bytes written at once behind the payload, whether or not all belong to the packet.
const TRAILER_ROOM: usize = PADDING.len() + esp::TRAILER_LEN;

impl EncapLayout {
    /// The room that a packet needs.
    #[inline(always)]
    pub(crate) fn room(&self) -> EncapRoom {
        let behind = TRAILER_ROOM + usize::from(self.icv_len) + PADDING.len();
        EncapRoom { before: self.front.into(), behind }
    }

    /// Padding bytes of a payload of `len` bytes, before pad length and next header.
    #[inline(always)]
    pub(crate) fn padding(&self, len: usize) -> usize {
        (len + esp::TRAILER_LEN).wrapping_neg() & (usize::from(self.align) - 1)
    }

    /// Changes the properties of a packet to those of the headers before ESP.
    #[inline(always)]
    pub(crate) fn apply_to(&self, inner: &mut InnerInfo) {
        inner.tos = self.tos.outer(inner.tos);
        inner.dont_fragment &= self.pmtu_discovery;
    }

    /// Encapsulates a packet of `len` bytes, except for encryption; `after` are its [outer
    /// properties](Self::apply_to).
    #[inline(always)]
    pub(crate) fn wrap<'a>(
        &self,
        headers: TunnelHeaders<'_>,
        packet: &'a mut PacketBuf,
        (after, len): (&InnerInfo, usize),
        seq_id: SeqAndId,
    ) -> Option<Encapsulated<'a>> {
        packet.checksum = Checksum::AsIs;
        let padding = self.padding(len) % PADDING.len();
        let (text, esp_at) =
            (usize::from(self.front), usize::from(self.front - self.esp_header_len));
        let end = text + len + padding + esp::TRAILER_LEN + usize::from(self.icv_len);
        let room = packet.reframed(text, end, TRAILER_ROOM)?;
        let trailer: &mut [u8; TRAILER_ROOM] = room.get_mut(text + len..)?.first_chunk_mut()?;
        *trailer.first_chunk_mut()? = PADDING;
        let ends = [low_byte(padding), ip_in_ip(after.version).0];
        trailer[padding..padding + esp::TRAILER_LEN].copy_from_slice(&ends);
        let (before, esp) = room.get_mut(..end)?.split_at_mut_checked(esp_at)?;
        *esp.first_chunk_mut()? = esp_header(self.spi, seq_id);
        match headers {
            TunnelHeaders::V4(end_of_header, sum, udp) => {
                let header = outer_v4((end_of_header, sum), after, low_half(end), seq_id.id);
                *before.first_chunk_mut()? = header;
                write_udp_before(before, esp.len(), udp);
            }
            TunnelHeaders::V6(template, udp) => {
                let len = low_half(end - ipv6::HEADER_LEN);
                *before.first_chunk_mut()? = outer_v6(template, after, len);
                write_udp_before(before, esp.len(), udp);
            }
            TunnelHeaders::Socket(marker) => before.copy_from_slice(marker),
        }
        Some((end, esp))
    }
}

/// Writes UDP and its marker at the end of `before`, followed by `esp_len` bytes of ESP.
#[inline(always)]
fn write_udp_before(before: &mut [u8], esp_len: usize, udp: Option<&UdpTemplate>) {
    if let Some(shape) = udp {
        let at = before.len() - usize::from(shape.marker_len) - udp::HEADER_LEN;
        write_udp(&mut before[at..], shape, esp_len, None);
    }
}
