//! One SA of a bundle: its headers and the room they need, computed once.

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

use super::encap_layout::EncapLayout;
use crate::ecn::TosRule;
use crate::sa::{config::SaFlags, usage::Lifecycle};
use crate::{DropReason, IvPrefix, Mark, Mode, Sa, UdpEncap, UdpEncapKind, UdpEncapProperties};

/// Properties of a packet that the next layer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InnerInfo {
    pub(crate) version: Version,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
    esp_offset: u16,
    next_header_at: u16,
    pub(crate) flow_label: u32,
    /// Source port for encapsulations that [spread flows](crate::UdpEncap::spreads_flows); 0 if
    /// there is none.
    pub(crate) source_port: u16,
}

impl InnerInfo {
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

    /// For a packet of this version without options, if nothing else matters.
    #[inline(always)]
    pub(crate) const fn plain(version: Version) -> Self {
        match version {
            Version::V4 => V4,
            Version::V6 => V6,
        }
    }

    /// For a packet with a valid fixed header of this version, without options or extension
    /// headers; with its length by its own header. `None` if it is truncated.
    #[inline(always)]
    pub(crate) fn from_fixed_header(version: Version, bytes: &[u8]) -> Option<(Self, usize)> {
        match version {
            Version::V4 => {
                let header = bytes.first_chunk::<{ ipv4::HEADER_LEN }>()?;
                let inner = Self { tos: header[1], dont_fragment: header[6] & 0x40 != 0, ..V4 };
                Some((inner, u16::from_be_bytes([header[2], header[3]]).into()))
            }
            Version::V6 => {
                let (header, _) = Ipv6Header::ref_from_prefix(bytes).ok()?;
                let inner =
                    Self { tos: header.traffic_class(), flow_label: header.flow_label(), ..V6 };
                Some((inner, ipv6::HEADER_LEN + usize::from(header.payload_len.get())))
            }
        }
    }

    /// Offset at which transport mode inserts ESP.
    #[inline(always)]
    pub(crate) fn esp_offset(&self) -> usize {
        self.esp_offset.into()
    }

    /// Offset of the byte that names the protocol there.
    #[inline(always)]
    pub(crate) fn next_header_at(&self) -> usize {
        self.next_header_at.into()
    }
}

/// Headers with nothing before the upper layer.
const V4: InnerInfo = InnerInfo {
    version: Version::V4,
    tos: 0,
    dont_fragment: false,
    esp_offset: 20,
    next_header_at: 9,
    flow_label: 0,
    source_port: 0,
};
const V6: InnerInfo = InnerInfo {
    version: Version::V6,
    dont_fragment: true,
    esp_offset: 40,
    next_header_at: 6,
    ..V4
};

/// Outer header of tunnel mode, with all constant fields filled in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TunnelHeader {
    /// TOS, length, id, flags and checksum are 0; the sum covers all other fields.
    V4(Ipv4Header, Sum),
    V6(Ipv6Header),
}

impl TunnelHeader {
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

/// Mode of encapsulation, which decides where the payload begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EncapMode {
    /// The packet's own header stays outside.
    Transport,
    /// A new header around the whole packet.
    Tunnel(TunnelHeader),
}

/// UDP header of an SA with encapsulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UdpTemplate {
    pub(crate) header: UdpHeader,
    pub(crate) kind: UdpEncapKind,
    /// Length of the kind's marker, between UDP and ESP.
    pub(crate) marker_len: u16,
    /// Whether the source port is taken from the inner flow.
    pub(crate) uses_flow_ports: bool,
}

impl UdpTemplate {
    fn of(encap: &UdpEncap) -> Result<Self, DropReason> {
        let UdpEncapProperties { marker, is_processed, .. } = encap.kind.properties();
        if !is_processed {
            return Err(DropReason::OutBundle);
        }
        let header = UdpHeader {
            source: encap.source_port.into(),
            destination: encap.destination_port.into(),
            length: U16::ZERO,
            checksum: U16::ZERO,
        };
        Ok(Self {
            header,
            kind: encap.kind,
            marker_len: narrow(marker.len()),
            uses_flow_ports: encap.spreads_flows(),
        })
    }
}

/// Form of the packets that leave when this layer is the outermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OuterForm {
    /// A whole IP packet.
    Packet,
    /// The payload of a UDP socket: neither IP nor UDP header.
    SocketPayload,
}

/// One SA of a bundle and what it writes. Two cache lines, as consecutive packets may each use
/// another SA.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct EncapLayer {
    pub(crate) sa: Arc<Sa>,
    /// SA lifecycle state when this bundle was built.
    pub(crate) lifecycle: Lifecycle,
    /// Index of the SA's tally in the bundle cache.
    pub(crate) tally: u32,
    pub(crate) wrap: EncapMode,
    pub(crate) udp: Option<UdpTemplate>,
    pub(crate) outside: OuterForm,
    pub(crate) layout: EncapLayout,
    /// TFC padding: shorter inner packets are padded to this length (RFC 4303 §2.7).
    tfc_len: u16,
    /// Whether sequence numbers have 64 bits.
    pub(crate) extended: bool,
    /// For the numbers that were next when the bundle was built.
    pub(crate) iv_prefix: IvPrefix,
    pub(crate) output_mark: Mark,
}

impl EncapLayer {
    /// Layer of `sa`; `source` replaces an unspecified source address.
    pub(crate) fn new(
        sa: &Arc<Sa>,
        source: Option<IpAddr>,
        outside: OuterForm,
        hop_limit: u8,
    ) -> Result<Self, DropReason> {
        let config = sa.config();
        let transform = sa.transform();
        let destination = sa.id().destination;
        sa.activate();
        let udp = config.encap.as_ref().map(UdpTemplate::of).transpose()?;
        let next = if udp.is_some() { Protocol::UDP } else { Protocol::ESP };
        let wrap = match config.mode {
            Mode::Transport => EncapMode::Transport,
            Mode::Tunnel => {
                let known = Some(sa.source()).filter(|source| !source.is_unspecified());
                let source = known.or(source).ok_or(DropReason::OutBundle)?;
                let outer = TunnelHeader::new(source, destination, next, hop_limit);
                EncapMode::Tunnel(outer.ok_or(DropReason::OutBundle)?)
            }
            Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
                return Err(DropReason::OutModeMismatch);
            }
        };
        let block = transform.block_len();
        debug_assert!(block.is_power_of_two(), "as those of all ciphers are");
        let mut layer = Self {
            sa: Arc::clone(sa),
            lifecycle: lifecycle(sa),
            tally: 0,
            wrap,
            udp,
            // A socket has one source port.
            outside: if udp.is_some_and(|shape| !shape.uses_flow_ports) {
                outside
            } else {
                OuterForm::Packet
            },
            layout: EncapLayout {
                spi: sa.id().spi,
                front: 0,
                esp_header_len: narrow(esp::HEADER_LEN + transform.iv_len()),
                icv_len: narrow(transform.icv_len()),
                align: narrow(block.max(4)),
                tos: TosRule::of(config.flags, config.extra_flags),
                pmtu_discovery: !config.flags.contains(SaFlags::NOPMTUDISC),
            },
            tfc_len: 0,
            extended: sa.extended(),
            iv_prefix: sa.next_iv_prefix(),
            output_mark: config.output_mark,
        };
        layer.layout.front =
            narrow(layer.headers() + layer.marker().len() + layer.esp_header_len());
        Ok(layer)
    }

    /// Whether the SA's lifecycle state has not changed since: it is usable, and look-ups prefer no
    /// other one now.
    #[inline(always)]
    pub(crate) fn is_unchanged(&self) -> bool {
        self.sa.lifecycle() == self.lifecycle
    }

    /// Bytes added before the packet.
    #[inline(always)]
    pub(crate) fn headroom(&self) -> usize {
        self.layout.front.into()
    }

    /// Bytes of ESP header and IV.
    #[inline(always)]
    pub(crate) fn esp_header_len(&self) -> usize {
        self.layout.esp_header_len.into()
    }

    /// Bytes of ICV.
    #[inline(always)]
    pub(crate) fn icv_len(&self) -> usize {
        self.layout.icv_len.into()
    }

    /// Sets the TFC padding; capped where it does not fit.
    pub(crate) fn set_tfc(&mut self, bytes: usize) {
        self.tfc_len = u16::try_from(bytes).unwrap_or(u16::MAX);
    }

    /// Whether inner packets get TFC padding.
    pub(crate) fn adds_tfc(&self) -> bool {
        self.tfc_len > 0
    }

    /// Bytes of new headers before ESP.
    fn headers(&self) -> usize {
        match (self.outside, &self.wrap) {
            (OuterForm::SocketPayload, _) => 0,
            (OuterForm::Packet, EncapMode::Transport) => self.udp_header_len(),
            (OuterForm::Packet, EncapMode::Tunnel(outer)) => outer.len() + self.udp_header_len(),
        }
    }

    /// Bytes of the packet that stay in the clear, outside ESP.
    #[inline(always)]
    pub(crate) fn clear_len(&self, inner: &InnerInfo) -> usize {
        match self.wrap {
            EncapMode::Transport => inner.esp_offset(),
            EncapMode::Tunnel(_) => 0,
        }
    }

    /// Like [`Self::clear_len`], for packets of this version without options.
    #[inline(always)]
    pub(crate) fn clear_len_for(&self, version: Version) -> usize {
        self.clear_len(&InnerInfo::plain(version))
    }

    /// Padding bytes of a payload of `len` bytes, before pad length and next header.
    #[inline(always)]
    pub(crate) fn padding(&self, len: usize) -> usize {
        self.layout.padding(len)
    }

    /// Payload length with TFC padding, without ESP padding.
    #[inline(always)]
    pub(crate) fn padded(&self, len: usize) -> usize {
        len.max(self.tfc_len.into())
    }

    /// Length of a packet of `len` bytes after this layer, including a header that a socket leaves
    /// out.
    #[inline(always)]
    pub(crate) fn sealed_len(&self, len: usize, inner: &InnerInfo) -> usize {
        let text = self.padded(len - self.clear_len(inner));
        self.headroom()
            + self.clear_len(inner)
            + text
            + self.padding(text)
            + esp::TRAILER_LEN
            + self.icv_len()
    }

    /// Largest packet that fits into `mtu` bytes after this layer.
    pub(crate) fn inner_mtu(&self, mtu: usize) -> usize {
        self.sa.overhead().map_or(0, |overhead| overhead.inner_mtu(mtu))
    }

    /// Properties of the packet after this layer.
    #[inline(always)]
    pub(crate) fn after(&self, inner: &InnerInfo) -> InnerInfo {
        let mut after = *inner;
        self.apply_to(&mut after);
        after
    }

    /// Changes the properties of a packet to those after this layer.
    #[inline(always)]
    pub(crate) fn apply_to(&self, inner: &mut InnerInfo) {
        let EncapMode::Tunnel(outer) = &self.wrap else { return };
        (inner.version, inner.esp_offset, inner.next_header_at) = match outer {
            TunnelHeader::V4(..) => (Version::V4, 20, 9),
            TunnelHeader::V6(_) => (Version::V6, 40, 6),
        };
        inner.tos = self.layout.tos.outer(inner.tos);
        inner.dont_fragment = self.dont_fragment(inner);
    }

    /// Whether the outer header gets DF (`xfrm4_tunnel_encap_add`).
    #[inline(always)]
    pub(crate) fn dont_fragment(&self, inner: &InnerInfo) -> bool {
        inner.dont_fragment && self.layout.pmtu_discovery
    }

    /// Source and destination of the outer header; `None` where the packet keeps its own.
    #[inline(always)]
    pub(crate) fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        match &self.wrap {
            EncapMode::Transport => None,
            EncapMode::Tunnel(TunnelHeader::V4(header, _)) => {
                Some((header.source().into(), header.destination().into()))
            }
            EncapMode::Tunnel(TunnelHeader::V6(header)) => {
                Some((header.source().into(), header.destination().into()))
            }
        }
    }

    /// UDP path of a payload for a socket. `after` is [`after`](Self::after) this layer; `ends` are
    /// the packet's own addresses, which transport mode keeps.
    pub(crate) fn udp_path(&self, after: &InnerInfo, ends: (IpAddr, IpAddr)) -> Option<UdpPath> {
        let shape = self.udp.as_ref().filter(|_| self.outside == OuterForm::SocketPayload)?;
        let (source, destination) = self.ends().unwrap_or(ends);
        Some(UdpPath {
            local: SocketAddr::new(source, shape.header.source.get()),
            remote: SocketAddr::new(destination, shape.header.destination.get()),
            tos: after.tos,
            dont_fragment: after.dont_fragment,
        })
    }

    /// Like [`Self::udp_path`], for tunnel mode, which has its own addresses.
    #[inline(never)]
    pub(crate) fn tunnel_path(&self, after: &InnerInfo) -> Option<UdpPath> {
        const UNKNOWN: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        self.udp_path(after, (UNKNOWN, UNKNOWN))
    }

    /// Upper sequence number half and IV for the crypto library.
    #[inline(always)]
    pub(crate) fn seq_high_and_iv(&self, sequence: u64) -> (SeqHigh, Iv) {
        let counter = self.iv_prefix.counter(sequence);
        let counter = counter.unwrap_or_else(|| self.sa.iv_counter(sequence));
        (self.high(sequence), Iv::Counter(counter))
    }

    /// The half of a sequence number that is not on the wire.
    #[inline(always)]
    pub(crate) fn high(&self, sequence: u64) -> SeqHigh {
        if self.extended { SeqHigh::Esn(high_word(sequence)) } else { SeqHigh::None }
    }

    /// Whether sealed packets need [`finish`](super::headers::finish).
    #[inline(always)]
    pub(crate) fn needs_finish(&self) -> bool {
        self.udp.is_some() && self.outside == OuterForm::Packet
    }

    /// The same for packets of this version: UDP over IPv4 has no checksum.
    #[inline(always)]
    pub(crate) fn needs_finish_of(&self, version: Version) -> bool {
        let outside = match &self.wrap {
            EncapMode::Transport => version,
            EncapMode::Tunnel(TunnelHeader::V4(..)) => Version::V4,
            EncapMode::Tunnel(TunnelHeader::V6(_)) => Version::V6,
        };
        self.needs_finish() && outside == Version::V6
    }

    /// Whether the UDP source port is taken from the flow.
    pub(crate) fn uses_flow_ports(&self) -> bool {
        self.udp.is_some_and(|shape| shape.uses_flow_ports)
    }

    pub(crate) fn udp_header_len(&self) -> usize {
        if self.udp.is_some() { udp::HEADER_LEN } else { 0 }
    }

    /// Bytes between UDP and ESP.
    pub(crate) fn marker(&self) -> &'static [u8] {
        self.udp.map_or(&[], |shape| shape.kind.properties().marker)
    }
}

/// The lifecycle state to compare with later. An SA that just expired differs from it.
fn lifecycle(sa: &Sa) -> Lifecycle {
    sa.lifecycle().clamp(Lifecycle::Valid, Lifecycle::Dying)
}

/// An offset within a packet.
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

/// Protocol number of an IP packet inside an outer header.
pub(crate) const fn ip_in_ip(inner: Version) -> Protocol {
    match inner {
        Version::V4 => Protocol::IPIP,
        Version::V6 => Protocol::IPV6,
    }
}
