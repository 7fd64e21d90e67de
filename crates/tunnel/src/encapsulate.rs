//! Into the tunnel: `net/ipv4/ip_tunnel.c: ip_tunnel_xmit`, `net/ipv6/sit.c: ipip6_tunnel_xmit`,
//! `net/ipv6/ip6_tunnel.c: ip6_tnl_xmit`, `net/ipv4/fou_core.c: __gue_build_header`.
//!
//! 1 parse → 2 does the tunnel carry this version? → 3 nesting → 4 encapsulation limit → 5 the other end → 6 does it fit? →
//! 7 outer bytes: TOS, TTL, DF, flow label, ports → 8 the checksum that the host left open: sum it, or leave it to the other end →
//! 9 GRE → 10 GUE. Steps 1 to 7 change nothing, so that a refused packet can be told of to its sender.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use uxfrm_packet::checksum::{self, Sum};
use uxfrm_packet::ethernet::EtherType;
use uxfrm_packet::gre::GreFields;
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Version, ipv6};

use crate::config::{
    Config, Field, FlowLabel, Framing, Kind, Octet, PathMtuDiscovery, RemoteOffload, SourcePort,
    UdpEncap,
};
use crate::gue::{Gue, RemoteChecksum};
use crate::outer::{UdpEnds, push};
use crate::tunnel::{IPV4_LEAST, gre_len};
use crate::{DropReason, FlowHash, HashSeed, Message, Outer, Tunnel, ecn, gue, limit, nesting};

/// What a tunnel's packets leave into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// What the path to the other end takes, in bytes of IP packet.
    pub path_mtu: usize,
    /// What the tunnel's interface takes.
    pub device_mtu: usize,
    /// Of the hash that source ports come from.
    pub seed: HashSeed,
    /// The source ports that may be used.
    pub source_ports: RangeInclusive<u16>,
}

/// A packet that did not get into a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub reason: DropReason,
    /// What its sender is to be told; see [`Message::about`].
    pub tell: Option<Message>,
}

impl From<DropReason> for Refused {
    fn from(reason: DropReason) -> Self {
        Self { reason, tell: None }
    }
}

/// A packet that may go in, and all that is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) version: Version,
    pub(crate) outer: Outer,
}

impl Tunnel {
    /// Puts GRE and GUE headers before `packet`, a single IP packet, and works out what is to go before them.
    ///
    /// # Errors
    /// Why the packet can't go in. It is as it was, except where it lacked a byte of headroom in the end.
    pub fn encapsulate(&self, packet: &mut PacketBuf, egress: &Egress) -> Result<Outer, Refused> {
        let len = packet.len();
        let admitted = self.admit(packet.bytes(), len, egress)?;
        self.frame(packet, &admitted)?;
        Ok(admitted.outer)
    }

    /// Steps 1 to 7. `len` is the packet's, or of a super-packet each segment's.
    pub(crate) fn admit(
        &self,
        bytes: &[u8],
        len: usize,
        egress: &Egress,
    ) -> Result<Admitted, Refused> {
        let config = self.config();
        // 1, 2
        let ip = IpPacket::parse(bytes).map_err(|_| DropReason::OutMalformed)?;
        if !config.carries.takes(ip.version) {
            return Err(DropReason::OutWrongVersion.into());
        }
        // 3, 4
        nesting::check(self, &ip, bytes)?;
        let encap_limit = limit::next(config.encap_limit, config.kind.outer(), &ip, bytes)?;
        // 5, 6
        let destination = destination(config, &ip).ok_or(DropReason::OutNoRemote)?;
        let df = self.fits(&ip, len, egress)?;
        // 7
        let flow = FlowHash::of(&ip, bytes, egress.seed);
        let outer = Outer {
            source: config.local,
            destination,
            protocol: config.kind.protocol(ip.version),
            tos: ecn::outward(inherited(config.tos, ip.tos), ip.tos),
            ttl: inherited(config.ttl, ip.ttl),
            dont_fragment: df,
            flow_label: label(config.flow_label, &ip, flow),
            encap_limit,
            udp: config.udp.map(|encap| ends(&encap, config.kind.outer(), flow, egress)),
        };
        Ok(Admitted { version: ip.version, outer })
    }

    /// Steps 8 to 10, for one packet.
    fn frame(&self, packet: &mut PacketBuf, admitted: &Admitted) -> Result<(), DropReason> {
        // 8
        let left_open = self.left_open(packet);
        if left_open.is_none() {
            checksum::complete(packet).map_err(|_| DropReason::OutChecksum)?;
        }
        packet.checksum = Checksum::AsIs;
        push(packet, self.frame_len(left_open))?;
        self.write_frame(packet.bytes_mut(), admitted, left_open)
    }

    /// Bytes of GUE and GRE headers.
    pub(crate) fn frame_len(&self, left_open: Option<RemoteChecksum>) -> usize {
        self.gue_len(left_open)
            + if self.config().kind.is_gre() { gre_len(self.config()) } else { 0 }
    }

    /// Steps 9 and 10: writes GUE and GRE headers to the front of `out`, behind which the inner packet stands already.
    pub(crate) fn write_frame(
        &self,
        out: &mut [u8],
        admitted: &Admitted,
        left_open: Option<RemoteChecksum>,
    ) -> Result<(), DropReason> {
        let no_room = DropReason::OutNoRoom;
        let gue_len = self.gue_len(left_open);
        let (front, behind) = out.split_at_mut_checked(gue_len).ok_or(no_room)?;
        // 9
        if self.config().kind.is_gre() {
            self.write_gre(behind, admitted.version).ok_or(no_room)?;
        }
        // 10
        if gue_len > 0 {
            let protocol = admitted.outer.protocol;
            let gue = match left_open {
                Some(checksum) => Gue::with_checksum(protocol, checksum),
                None => Gue::plain(protocol),
            };
            gue.write(front).ok_or(no_room)?;
        }
        Ok(())
    }

    fn gue_len(&self, left_open: Option<RemoteChecksum>) -> usize {
        match self.config().udp.map(|encap| encap.framing) {
            Some(Framing::Gue) if left_open.is_some() => gue::REMOTE_CHECKSUM_LEN,
            Some(Framing::Gue) => gue::HEADER_LEN,
            Some(Framing::Fou) | None => 0,
        }
    }

    /// A packet's checksum that the other end can sum: what GUE's private field says of it.
    fn left_open(&self, packet: &PacketBuf) -> Option<RemoteChecksum> {
        let config = self.config();
        let Checksum::Partial { start, offset } = packet.checksum else { return None };
        let asked = config.udp.is_some_and(|udp| udp.remote_checksum == RemoteOffload::On);
        let covers = usize::from(start) + usize::from(offset) + 2 <= packet.len();
        if !asked || !covers {
            return None;
        }
        let gre_len = if config.kind.is_gre() { gre_len(config) } else { 0 };
        let start = start.checked_add(u16::try_from(gre_len).ok()?)?;
        Some(RemoteChecksum { start: start.into(), field: start.checked_add(offset)?.into() })
    }

    /// Whether `len` bytes get through; then whether the outer header has DF.
    fn fits(&self, ip: &IpPacket, len: usize, egress: &Egress) -> Result<bool, Refused> {
        let config = self.config();
        let path = egress.path_mtu.saturating_sub(self.overhead());
        let too_big = |mtu: usize| {
            let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
            Refused { reason: DropReason::OutTooBig, tell: Some(Message::TooBig { mtu }) }
        };
        let discovers = config.path_mtu == PathMtuDiscovery::On;
        match (config.kind.outer(), ip.version) {
            (Version::V6, inner) => {
                let least = if inner == Version::V6 { ipv6::LEAST_MTU } else { IPV4_LEAST };
                let mtu = path.max(least);
                // IPv6's 1280 bytes go through a path too narrow for them as well: in fragments.
                if len > mtu { Err(too_big(mtu)) } else { Ok(len <= path) }
            }
            // A path too narrow for IPv6 has to carry 1280 bytes all the same: in fragments.
            (Version::V4, Version::V6) if config.kind == Kind::Sit => {
                let mtu = path.max(ipv6::LEAST_MTU);
                if discovers && len > mtu {
                    Err(too_big(mtu))
                } else {
                    Ok(discovers && mtu == path)
                }
            }
            (Version::V4, inner) => {
                let mtu = if discovers { path } else { egress.device_mtu };
                let told = match inner {
                    Version::V4 => ip.dont_fragment,
                    Version::V6 => mtu >= ipv6::LEAST_MTU,
                };
                if told && len > mtu {
                    return Err(too_big(mtu));
                }
                let copied = inner == Version::V4 && ip.dont_fragment;
                Ok(discovers || copied && config.inner_df == crate::config::InnerDf::Copy)
            }
        }
    }

    fn write_gre(&self, out: &mut [u8], version: Version) -> Option<()> {
        let output = self.config().output;
        let fields = GreFields {
            checksum: (output.checksum == Field::With).then_some(0),
            key: output.key,
            sequence: (output.sequence == Field::With).then(|| self.next_number()),
        };
        let protocol = match version {
            Version::V4 => EtherType::IPV4,
            Version::V6 => EtherType::IPV6,
        };
        fields.write(protocol, out)?;
        if fields.checksum.is_some() {
            let sum = Sum::of(out).checksum();
            out.get_mut(4..6)?.copy_from_slice(&sum.to_be_bytes());
        }
        Some(())
    }
}

/// The other end, for this packet.
fn destination(config: &Config, ip: &IpPacket) -> Option<IpAddr> {
    if !config.remote.is_unspecified() {
        return Some(config.remote);
    }
    match (config.kind, ip.destination) {
        (Kind::Sit, IpAddr::V6(inner)) => {
            let end = config.six_rd.ipv4_in(inner)?;
            let one_host = !end.is_unspecified() && !end.is_multicast() && !end.is_broadcast();
            one_host.then_some(end.into())
        }
        (Kind::Sit | Kind::Ipip | Kind::Gre | Kind::Ip6tnl | Kind::Ip6gre, _) => None,
    }
}

fn inherited(octet: Octet, inner: u8) -> u8 {
    match octet {
        Octet::Inherit => inner,
        Octet::Fixed(value) => value,
    }
}

fn label(label: FlowLabel, ip: &IpPacket, flow: FlowHash) -> u32 {
    match (label, ip.version) {
        (FlowLabel::Fixed(label), _) => label & 0x000f_ffff,
        (FlowLabel::Inherit, Version::V6) => ip.flow_label,
        (FlowLabel::Inherit, Version::V4) | (FlowLabel::Auto, _) => flow.label(),
    }
}

pub(crate) fn ends(encap: &UdpEncap, outer: Version, flow: FlowHash, egress: &Egress) -> UdpEnds {
    UdpEnds {
        source: match encap.source_port {
            SourcePort::Auto => flow.source_port(&egress.source_ports),
            SourcePort::Fixed(port) => port.get(),
        },
        destination: encap.destination_port.get(),
        checksum: match outer {
            Version::V4 => encap.checksum4,
            Version::V6 => encap.checksum6,
        },
    }
}
