//! What a layer does to each packet, whatever it is that stands before ESP; in as few bytes as it takes, as of many states each packet needs another's.

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{Checksum, PacketBuf, esp, udp};

use super::encap::{Inside, UdpShape, ip_in_ip};
use super::headers::{
    HeaderEnd, PADDING, Stamp, esp_header, low_byte, low_half, outer_v4, outer_v6, write_udp,
};
use crate::Spi;
use crate::ecn::TosRule;

/// One state's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seam {
    pub(crate) spi: Spi,
    /// Bytes by which a packet's first byte moves forward, and those of them that are ESP header and IV.
    pub(crate) front: u16,
    pub(crate) lead: u16,
    pub(crate) icv: u16,
    /// Text is padded to a multiple of this: a power of two.
    pub(crate) align: u16,
    pub(crate) tos: TosRule,
    /// Whether an outer header may forbid fragments.
    pub(crate) pmtu_discovery: bool,
}

/// Bytes before a packet and behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) before: usize,
    pub(crate) behind: usize,
}

/// What a tunnel puts before ESP, by its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Headers<'a> {
    V4(&'a HeaderEnd, Sum, Option<&'a UdpShape>),
    V6(&'a Ipv6Header, Option<&'a UdpShape>),
    /// A socket writes them.
    Socket,
}

/// What leaves of a packet that was wrapped: how many bytes in all, and what of them is to be sealed.
pub(crate) type Wrapped<'a> = (usize, &'a mut [u8]);

/// Bytes that are written at once behind the text, whatever of them belongs to the packet.
const TRAILER_ROOM: usize = PADDING.len() + esp::TRAILER_LEN;

impl Seam {
    /// The room that a packet needs.
    #[inline(always)]
    pub(crate) fn room(&self) -> Room {
        let behind = TRAILER_ROOM + usize::from(self.icv) + PADDING.len();
        Room { before: self.front.into(), behind }
    }

    /// Padding bytes of a text of `len` bytes, before pad length and next header.
    #[inline(always)]
    pub(crate) fn padding(&self, len: usize) -> usize {
        (len + esp::TRAILER_LEN).wrapping_neg() & (usize::from(self.align) - 1)
    }

    /// Makes of what is inside what the headers before ESP are made from.
    #[inline(always)]
    pub(crate) fn enclose(&self, inside: &mut Inside) {
        inside.tos = self.tos.outer(inside.tos);
        inside.dont_fragment &= self.pmtu_discovery;
    }

    /// Puts all around a packet of `len` bytes but the encryption; `after` is what it [says outside](Self::enclose).
    #[inline(always)]
    pub(crate) fn wrap<'a>(
        &self,
        headers: Headers<'_>,
        packet: &'a mut PacketBuf,
        (after, len): (&Inside, usize),
        stamp: Stamp,
    ) -> Option<Wrapped<'a>> {
        packet.checksum = Checksum::AsIs;
        let padding = self.padding(len) % PADDING.len();
        let (text, esp_at) = (usize::from(self.front), usize::from(self.front - self.lead));
        let end = text + len + padding + esp::TRAILER_LEN + usize::from(self.icv);
        let room = packet.reframed(text, end, TRAILER_ROOM)?;
        let trailer: &mut [u8; TRAILER_ROOM] = room.get_mut(text + len..)?.first_chunk_mut()?;
        *trailer.first_chunk_mut()? = PADDING;
        let ends = [low_byte(padding), ip_in_ip(after.version).0];
        trailer[padding..padding + esp::TRAILER_LEN].copy_from_slice(&ends);
        let (before, esp) = room.get_mut(..end)?.split_at_mut_checked(esp_at)?;
        *esp.first_chunk_mut()? = esp_header(self.spi, stamp);
        match headers {
            Headers::V4(end_of_header, sum, udp) => {
                let header = outer_v4((end_of_header, sum), after, low_half(end), stamp.id);
                *before.first_chunk_mut()? = header;
                write_udp_before(before, esp.len(), udp);
            }
            Headers::V6(template, udp) => {
                let len = low_half(end - ipv6::HEADER_LEN);
                *before.first_chunk_mut()? = outer_v6(template, after, len);
                write_udp_before(before, esp.len(), udp);
            }
            // A marker, if anything.
            Headers::Socket => before.fill(0),
        }
        Some((end, esp))
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
