//! One SA of a bundle: the headers it writes and the room it needs, worked out once.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use uxfrm_crypto::{Iv, SeqHigh};
use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{IpPacket, Protocol, UdpPath, Version, esp};
use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use super::encap_layout::Seam;
use crate::ecn::TosRule;
use crate::sa::{config::SaFlags, usage::Lifecycle};
use crate::{DropReason, IvPrefix, Mark, Mode, Sa, UdpEncap, UdpEncapKind, pmtu};

/// What of a packet the next header outward is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) version: Version,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
    esp_offset: u16,
    next_header_at: u16,
    pub(crate) flow_label: u32,
    /// What encapsulations that [spread flows](crate::UdpEncap::spreads_flows) send from; 0 where there is none.
    pub(crate) source_port: u16,
}

impl Inside {
    #[inline(always)]
    pub(crate) fn of(ip: &IpPacket) -> Self {
        Self {
            version: ip.version,
            tos: ip.tos,
            dont_fragment: ip.dont_fragment,
            esp_offset: narrow(ip.esp_offset),
            next_header_at: narrow(ip.next_header_at),
            flow_label: ip.flow_label,
            source_port: 0,
        }
    }

    /// Of a packet of this version without options of which nothing else is known.
    #[inline(always)]
    pub(crate) const fn plain(version: Version) -> Self {
        match version {
            Version::V4 => V4,
            Version::V6 => V6,
        }
    }

    /// Of a packet whose header has neither options nor extension headers, is right and of this version; and the packet's length as it says. `None` when it is cut off.
    #[inline(always)]
    pub(crate) fn of_plain(version: Version, bytes: &[u8]) -> Option<(Self, usize)> {
        match version {
            Version::V4 => {
                let header = bytes.first_chunk::<{ ipv4::HEADER_LEN }>()?;
                let inside = Self { tos: header[1], dont_fragment: header[6] & 0x40 != 0, ..V4 };
                Some((inside, u16::from_be_bytes([header[2], header[3]]).into()))
            }
            Version::V6 => {
                let (header, _) = Ipv6Header::ref_from_prefix(bytes).ok()?;
                let inside =
                    Self { tos: header.traffic_class(), flow_label: header.flow_label(), ..V6 };
                Some((inside, ipv6::HEADER_LEN + usize::from(header.payload_len.get())))
            }
        }
    }

    /// Where transport mode puts ESP, from the packet's first byte.
    #[inline(always)]
    pub(crate) fn esp_offset(&self) -> usize {
        self.esp_offset.into()
    }

    /// The byte that names what stands there.
    #[inline(always)]
    pub(crate) fn next_header_at(&self) -> usize {
        self.next_header_at.into()
    }
}

/// Headers with nothing between them and the upper layer.
const V4: Inside = Inside {
    version: Version::V4,
    tos: 0,
    dont_fragment: false,
    esp_offset: 20,
    next_header_at: 9,
    flow_label: 0,
    source_port: 0,
};
const V6: Inside =
    Inside { version: Version::V6, dont_fragment: true, esp_offset: 40, next_header_at: 6, ..V4 };

/// The outer header of tunnel mode, with everything in it that all packets share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outer {
    /// TOS, length, id, flags and checksum are still 0; the sum is that of all else.
    V4(Ipv4Header, Sum),
    V6(Ipv6Header),
}

impl Outer {
    fn new(source: IpAddr, destination: IpAddr, next: Protocol, hop_limit: u8) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4Header::new(source, destination, next, 0);
                let header = Ipv4Header { ttl: hop_limit, ..header };
                Some(Self::V4(header, Sum::of(header.as_bytes())))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header::new(source, destination, next, 0);
                Some(Self::V6(Ipv6Header { hop_limit, ..header }))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::V4(..) => ipv4::HEADER_LEN,
            Self::V6(_) => ipv6::HEADER_LEN,
        }
    }
}

/// Where the text begins in the packet, and what goes before ESP.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wrap {
    /// The packet's own header stays outside.
    Transport,
    /// A new header around all of it.
    Tunnel(Outer),
}

/// The UDP header of an SA with encapsulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdpShape {
    pub(crate) header: UdpHeader,
    /// Zero bytes between UDP and ESP: 8 for `espinudp-nonike`, else 0.
    pub(crate) marker: u8,
    /// Whether the source port is the inner flow's.
    pub(crate) spreads: bool,
}

impl UdpShape {
    fn of(encap: &UdpEncap) -> Result<Self, DropReason> {
        let marker = match encap.kind {
            UdpEncapKind::Esp => 0,
            UdpEncapKind::NonIke => 8,
            UdpEncapKind::Tcp => return Err(DropReason::OutBundle),
        };
        let header = UdpHeader {
            source: encap.source_port.into(),
            destination: encap.destination_port.into(),
            length: U16::ZERO,
            checksum: U16::ZERO,
        };
        Ok(Self { header, marker, spreads: encap.spreads_flows() })
    }
}

/// What leaves when this layer is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outside {
    /// A whole IP packet.
    Packet,
    /// The payload of a UDP socket: neither IP nor UDP header.
    SocketPayload,
}

/// One SA and what it writes: two cache lines, as of many SAs each packet needs another's.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Layer {
    pub(crate) sa: Arc<Sa>,
    /// How far that was in its life when it was chosen.
    pub(crate) chosen: Lifecycle,
    /// Which account of the bundles' cache its SA has.
    pub(crate) account: u32,
    pub(crate) wrap: Wrap,
    pub(crate) udp: Option<UdpShape>,
    pub(crate) outside: Outside,
    pub(crate) seam: Seam,
    /// Shorter inner packets are padded to this many bytes (RFC 4303 §2.7).
    tfc: u16,
    /// Whether numbers have 64 bits.
    pub(crate) extended: bool,
    /// Of the numbers that were next when this was made.
    pub(crate) iv_prefix: IvPrefix,
    pub(crate) output_mark: Mark,
}

impl Layer {
    /// The layer of `sa`; `source` stands in for a state without one.
    pub(crate) fn new(
        sa: &Arc<Sa>,
        source: Option<IpAddr>,
        outside: Outside,
        hop_limit: u8,
    ) -> Result<Self, DropReason> {
        let config = sa.config();
        let transform = sa.transform();
        let destination = sa.id().destination;
        sa.activate();
        let udp = config.encap.as_ref().map(UdpShape::of).transpose()?;
        let next = if udp.is_some() { Protocol::UDP } else { Protocol::ESP };
        let wrap = match config.mode {
            Mode::Transport => Wrap::Transport,
            Mode::Tunnel => {
                let known = Some(sa.source()).filter(|source| !source.is_unspecified());
                let source = known.or(source).ok_or(DropReason::OutBundle)?;
                let outer = Outer::new(source, destination, next, hop_limit);
                Wrap::Tunnel(outer.ok_or(DropReason::OutBundle)?)
            }
            Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
                return Err(DropReason::OutModeMismatch);
            }
        };
        let block = transform.block_len();
        debug_assert!(block.is_power_of_two(), "as those of all ciphers are");
        let mut layer = Self {
            sa: Arc::clone(sa),
            chosen: chosen(sa),
            account: 0,
            wrap,
            udp,
            // A socket has one source port.
            outside: if udp.is_some_and(|shape| !shape.spreads) {
                outside
            } else {
                Outside::Packet
            },
            seam: Seam {
                spi: sa.id().spi,
                front: 0,
                lead: narrow(esp::HEADER_LEN + transform.iv_len()),
                icv: narrow(transform.icv_len()),
                align: narrow(block.max(4)),
                tos: TosRule::of(config.flags, config.extra_flags),
                pmtu_discovery: !config.flags.contains(SaFlags::NOPMTUDISC),
            },
            tfc: 0,
            extended: sa.extended(),
            iv_prefix: sa.next_iv_prefix(),
            output_mark: config.output_mark,
        };
        layer.seam.front = narrow(layer.headers() + layer.marker() + layer.lead());
        Ok(layer)
    }

    /// Whether its SA is as far in its life as when it was chosen: it works, and look-ups prefer no other to it that they did not before.
    #[inline(always)]
    pub(crate) fn is_as_it_was(&self) -> bool {
        self.sa.lifecycle() == self.chosen
    }

    /// Bytes by which the packet's first byte moves forward.
    #[inline(always)]
    pub(crate) fn front(&self) -> usize {
        self.seam.front.into()
    }

    /// Bytes of ESP header and IV.
    #[inline(always)]
    pub(crate) fn lead(&self) -> usize {
        self.seam.lead.into()
    }

    /// Bytes of ICV.
    #[inline(always)]
    pub(crate) fn icv(&self) -> usize {
        self.seam.icv.into()
    }

    /// Pads shorter inner packets to so many bytes, if that many fit.
    pub(crate) fn pad_to(&mut self, bytes: usize) {
        self.tfc = u16::try_from(bytes).unwrap_or(u16::MAX);
    }

    /// Whether it pads inner packets.
    pub(crate) fn pads(&self) -> bool {
        self.tfc > 0
    }

    /// Bytes of new headers before ESP.
    fn headers(&self) -> usize {
        match (self.outside, &self.wrap) {
            (Outside::SocketPayload, _) => 0,
            (Outside::Packet, Wrap::Transport) => self.udp_header_len(),
            (Outside::Packet, Wrap::Tunnel(outer)) => outer.len() + self.udp_header_len(),
        }
    }

    /// Bytes of the packet that stay outside the text.
    #[inline(always)]
    pub(crate) fn kept(&self, inside: &Inside) -> usize {
        match self.wrap {
            Wrap::Transport => inside.esp_offset(),
            Wrap::Tunnel(_) => 0,
        }
    }

    /// As [`Self::kept`], of packets of this version without options.
    #[inline(always)]
    pub(crate) fn kept_of(&self, version: Version) -> usize {
        self.kept(&Inside::plain(version))
    }

    /// Padding bytes of a text of `len` bytes, before pad length and next header.
    #[inline(always)]
    pub(crate) fn padding(&self, len: usize) -> usize {
        self.seam.padding(len)
    }

    /// Bytes of inner packet with TFC padding, without ESP's own.
    #[inline(always)]
    pub(crate) fn padded(&self, len: usize) -> usize {
        len.max(self.tfc.into())
    }

    /// Bytes of a packet of `len` bytes after this layer, as if the header that a socket leaves out were there still.
    #[inline(always)]
    pub(crate) fn sealed_len(&self, len: usize, inside: &Inside) -> usize {
        let text = self.padded(len - self.kept(inside));
        self.front() + self.kept(inside) + text + self.padding(text) + esp::TRAILER_LEN + self.icv()
    }

    /// The largest packet that fits, if what leaves may have `mtu` bytes: `net/xfrm/xfrm_state.c: __xfrm_state_mtu`.
    pub(crate) fn inner_mtu(&self, mtu: usize) -> usize {
        let (outer, outside) = match &self.wrap {
            Wrap::Tunnel(outer) => (outer.len(), 0),
            Wrap::Transport if self.sa.id().destination.is_ipv4() => (0, ipv4::HEADER_LEN),
            Wrap::Transport => (0, ipv6::HEADER_LEN),
        };
        let around = outer + self.udp_header_len() + self.marker() + self.lead() + self.icv();
        pmtu::inner_mtu(mtu, around, outside, self.seam.align.into())
    }

    /// What the next layer sees.
    #[inline(always)]
    pub(crate) fn after(&self, inside: &Inside) -> Inside {
        let mut after = *inside;
        self.enclose(&mut after);
        after
    }

    /// Makes of what this layer saw what the next one sees.
    #[inline(always)]
    pub(crate) fn enclose(&self, inside: &mut Inside) {
        let Wrap::Tunnel(outer) = &self.wrap else { return };
        (inside.version, inside.esp_offset, inside.next_header_at) = match outer {
            Outer::V4(..) => (Version::V4, 20, 9),
            Outer::V6(_) => (Version::V6, 40, 6),
        };
        inside.tos = self.seam.tos.outer(inside.tos);
        inside.dont_fragment = self.dont_fragment(inside);
    }

    /// Whether the outer header forbids fragments (`xfrm4_tunnel_encap_add`).
    #[inline(always)]
    pub(crate) fn dont_fragment(&self, inside: &Inside) -> bool {
        inside.dont_fragment && self.seam.pmtu_discovery
    }

    /// How the payload goes through a UDP socket. `after` is [`after`](Self::after) this layer; `ends` are the packet's own addresses, which transport
    /// mode keeps.
    pub(crate) fn udp_path(&self, after: &Inside, ends: (IpAddr, IpAddr)) -> Option<UdpPath> {
        let shape = self.udp.as_ref().filter(|_| self.outside == Outside::SocketPayload)?;
        let (source, destination) = match &self.wrap {
            Wrap::Transport => ends,
            Wrap::Tunnel(Outer::V4(header, _)) => {
                (header.source().into(), header.destination().into())
            }
            Wrap::Tunnel(Outer::V6(header)) => {
                (header.source().into(), header.destination().into())
            }
        };
        Some(UdpPath {
            local: SocketAddr::new(source, shape.header.source.get()),
            remote: SocketAddr::new(destination, shape.header.destination.get()),
            tos: after.tos,
            dont_fragment: after.dont_fragment,
        })
    }

    /// As [`Self::udp_path`], of a tunnel, whose ends are its own.
    #[inline(never)]
    pub(crate) fn tunnel_path(&self, after: &Inside) -> Option<UdpPath> {
        const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.udp_path(after, (UNKNOWN, UNKNOWN))
    }

    /// What of a packet's number the crypto library is told.
    #[inline(always)]
    pub(crate) fn counted(&self, sequence: u64) -> (SeqHigh, Iv) {
        let counter = self.iv_prefix.counter(sequence);
        let counter = counter.unwrap_or_else(|| self.sa.iv_counter(sequence));
        (self.high(sequence), Iv::Counter(counter))
    }

    /// What of a packet's number is not on the wire.
    #[inline(always)]
    pub(crate) fn high(&self, sequence: u64) -> SeqHigh {
        if self.extended { SeqHigh::Esn(high_word(sequence)) } else { SeqHigh::None }
    }

    /// Whether something is to be written once the packet is sealed.
    #[inline(always)]
    pub(crate) fn needs_finish(&self) -> bool {
        self.udp.is_some() && self.outside == Outside::Packet
    }

    /// Whether that is so for packets of this version: UDP over IPv4 goes without a checksum.
    #[inline(always)]
    pub(crate) fn needs_finish_of(&self, version: Version) -> bool {
        let outside = match &self.wrap {
            Wrap::Transport => version,
            Wrap::Tunnel(Outer::V4(..)) => Version::V4,
            Wrap::Tunnel(Outer::V6(_)) => Version::V6,
        };
        self.needs_finish() && outside == Version::V6
    }

    /// Whether inner flows have source ports of their own.
    pub(crate) fn spreads(&self) -> bool {
        self.udp.is_some_and(|shape| shape.spreads)
    }

    pub(crate) fn udp_header_len(&self) -> usize {
        if self.udp.is_some() { udp::HEADER_LEN } else { 0 }
    }

    pub(crate) fn marker(&self) -> usize {
        self.udp.map_or(0, |shape| shape.marker.into())
    }
}

/// What a state's life is held against from now on. One that just ended then differs from it.
fn chosen(sa: &Sa) -> Lifecycle {
    sa.lifecycle().clamp(Lifecycle::Valid, Lifecycle::Dying)
}

/// Offsets within a packet.
#[inline(always)]
fn narrow(offset: usize) -> u16 {
    debug_assert!(u16::try_from(offset).is_ok());
    #[expect(clippy::cast_possible_truncation, reason = "an IP packet is below 64 KiB")]
    let narrow = offset as u16;
    narrow
}

fn high_word(sequence: u64) -> u32 {
    (sequence >> 32) as u32
}

/// What an outer header calls an IP packet inside.
pub(crate) const fn ip_in_ip(inner: Version) -> Protocol {
    match inner {
        Version::V4 => Protocol::IPIP,
        Version::V6 => Protocol::IPV6,
    }
}
