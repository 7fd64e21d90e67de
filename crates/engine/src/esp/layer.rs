//! One SA of a bundle: the headers it writes and the room it needs, worked out once.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{IpPacket, Protocol, UdpPath, Version, esp};
use zerocopy::byteorder::big_endian::U16;

use crate::ecn::TosRule;
use crate::sa::config::SaFlags;
use crate::{DropReason, Mode, Sa, UdpEncap, UdpEncapKind, pmtu};

/// What of a packet the next header outward is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    pub(crate) version: Version,
    /// Where transport mode puts ESP, from the packet's first byte.
    pub(crate) esp_offset: usize,
    /// The byte that names what stands there.
    pub(crate) next_header_at: usize,
    pub(crate) tos: u8,
    pub(crate) dont_fragment: bool,
    pub(crate) flow_label: u32,
}

impl Inside {
    pub(crate) fn of(ip: &IpPacket) -> Self {
        Self {
            version: ip.version,
            esp_offset: ip.esp_offset,
            next_header_at: ip.next_header_at,
            tos: ip.tos,
            dont_fragment: ip.dont_fragment,
            flow_label: ip.flow_label,
        }
    }
}

/// The outer header of tunnel mode, with everything in it that all packets share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outer {
    V4(Ipv4Header),
    V6(Ipv6Header),
}

impl Outer {
    fn new(source: IpAddr, destination: IpAddr, inner: Protocol, hop_limit: u8) -> Option<Self> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4Header::new(source, destination, inner, 0);
                Some(Self::V4(Ipv4Header { ttl: hop_limit, ..header }))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header::new(source, destination, inner, 0);
                Some(Self::V6(Ipv6Header { hop_limit, ..header }))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::V4(_) => ipv4::HEADER_LEN,
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
    pub(crate) marker: usize,
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
        Ok(Self { header, marker })
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

/// One SA and what it writes.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) sa: Arc<Sa>,
    pub(crate) wrap: Wrap,
    pub(crate) udp: Option<UdpShape>,
    pub(crate) outside: Outside,
    pub(crate) tos: TosRule,
    /// ESP header and IV.
    pub(crate) lead: usize,
    pub(crate) icv: usize,
    /// Text is padded to a multiple of this.
    pub(crate) align: usize,
    /// Shorter inner packets are padded to this many bytes (RFC 4303 §2.7).
    pub(crate) tfc: usize,
}

impl Layer {
    /// The layer of `sa` around packets of version `inner`; `source` stands in for a state without one.
    pub(crate) fn new(
        sa: &Arc<Sa>,
        inner: Version,
        source: Option<IpAddr>,
        outside: Outside,
        hop_limit: u8,
    ) -> Result<Self, DropReason> {
        let config = sa.config();
        let transform = sa.transform();
        let destination = sa.id().destination;
        sa.activate();
        let wrap = match config.mode {
            Mode::Transport => Wrap::Transport,
            Mode::Tunnel => {
                let known = Some(sa.source()).filter(|source| !source.is_unspecified());
                let source = known.or(source).ok_or(DropReason::OutBundle)?;
                let outer = Outer::new(source, destination, ip_in_ip(inner), hop_limit);
                Wrap::Tunnel(outer.ok_or(DropReason::OutBundle)?)
            }
            Mode::RouteOptimization | Mode::InTrigger | Mode::Beet | Mode::Iptfs => {
                return Err(DropReason::OutModeMismatch);
            }
        };
        let udp = config.encap.as_ref().map(UdpShape::of).transpose()?;
        Ok(Self {
            sa: Arc::clone(sa),
            wrap,
            udp,
            outside: if udp.is_some() { outside } else { Outside::Packet },
            tos: TosRule::of(config.flags, config.extra_flags),
            lead: esp::HEADER_LEN + transform.iv_len(),
            icv: transform.icv_len(),
            align: transform.block_len().max(4),
            tfc: 0,
        })
    }

    /// Bytes by which the packet's first byte moves forward.
    pub(crate) fn front(&self) -> usize {
        let headers = match (self.outside, &self.wrap) {
            (Outside::SocketPayload, _) => 0,
            (Outside::Packet, Wrap::Transport) => self.udp_header_len(),
            (Outside::Packet, Wrap::Tunnel(outer)) => outer.len() + self.udp_header_len(),
        };
        headers + self.marker() + self.lead
    }

    /// Bytes of the packet that stay outside the text.
    pub(crate) fn kept(&self, inside: &Inside) -> usize {
        match self.wrap {
            Wrap::Transport => inside.esp_offset,
            Wrap::Tunnel(_) => 0,
        }
    }

    /// Padding bytes of a text of `len` bytes, before pad length and next header.
    pub(crate) fn padding(&self, len: usize) -> usize {
        (len + esp::TRAILER_LEN).next_multiple_of(self.align) - len - esp::TRAILER_LEN
    }

    /// Bytes of inner packet with TFC padding, without ESP's own.
    pub(crate) fn padded(&self, len: usize) -> usize {
        len.max(self.tfc)
    }

    /// Bytes of a packet of `len` bytes after this layer, as if the header that a socket leaves out were there still.
    pub(crate) fn sealed_len(&self, len: usize, inside: &Inside) -> usize {
        let text = self.padded(len - self.kept(inside));
        self.front() + self.kept(inside) + text + self.padding(text) + esp::TRAILER_LEN + self.icv
    }

    /// From SPI to the end of the ICV, once the packet `frame[at..at + len]` is wrapped.
    pub(crate) fn esp(&self, at: usize, len: usize, inside: &Inside) -> Range<usize> {
        at + self.kept(inside) - self.lead..at - self.front() + self.sealed_len(len, inside)
    }

    /// The largest packet that fits, if what leaves may have `mtu` bytes: `net/xfrm/xfrm_state.c: __xfrm_state_mtu`.
    pub(crate) fn inner_mtu(&self, mtu: usize) -> usize {
        let (outer, outside) = match &self.wrap {
            Wrap::Tunnel(outer) => (outer.len(), 0),
            Wrap::Transport if self.sa.id().destination.is_ipv4() => (0, ipv4::HEADER_LEN),
            Wrap::Transport => (0, ipv6::HEADER_LEN),
        };
        let around = outer + self.udp_header_len() + self.marker() + self.lead + self.icv;
        pmtu::inner_mtu(mtu, around, outside, self.align)
    }

    /// What the next layer sees.
    pub(crate) fn after(&self, inside: &Inside) -> Inside {
        match &self.wrap {
            Wrap::Transport => *inside,
            Wrap::Tunnel(outer) => {
                let (version, next_header_at) = match outer {
                    Outer::V4(_) => (Version::V4, 9),
                    Outer::V6(_) => (Version::V6, 6),
                };
                Inside {
                    version,
                    esp_offset: outer.len(),
                    next_header_at,
                    tos: self.tos.outer(inside.tos),
                    dont_fragment: self.dont_fragment(inside),
                    flow_label: inside.flow_label,
                }
            }
        }
    }

    /// Whether the outer header forbids fragments (`xfrm4_tunnel_encap_add`).
    pub(crate) fn dont_fragment(&self, inside: &Inside) -> bool {
        inside.dont_fragment && !self.sa.config().flags.contains(SaFlags::NOPMTUDISC)
    }

    /// How the payload goes through a UDP socket. `after` is [`after`](Self::after) this layer; `ends` are the packet's own addresses, which transport
    /// mode keeps.
    pub(crate) fn udp_path(&self, after: &Inside, ends: (IpAddr, IpAddr)) -> Option<UdpPath> {
        let shape = self.udp.as_ref().filter(|_| self.outside == Outside::SocketPayload)?;
        let (source, destination) = match &self.wrap {
            Wrap::Transport => ends,
            Wrap::Tunnel(Outer::V4(header)) => {
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

    pub(crate) fn udp_header_len(&self) -> usize {
        if self.udp.is_some() { udp::HEADER_LEN } else { 0 }
    }

    pub(crate) fn marker(&self) -> usize {
        self.udp.map_or(0, |shape| shape.marker)
    }
}

/// What an outer header calls an IP packet inside.
pub(crate) const fn ip_in_ip(inner: Version) -> Protocol {
    match inner {
        Version::V4 => Protocol::IPIP,
        Version::V6 => Protocol::IPV6,
    }
}
