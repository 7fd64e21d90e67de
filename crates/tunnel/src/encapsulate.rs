//! Encapsulation: `net/ipv4/ip_tunnel.c: ip_tunnel_xmit`, `net/ipv6/sit.c: ipip6_tunnel_xmit`,
//! `net/ipv6/ip6_tunnel.c: ip6_tnl_xmit`, `net/ipv4/fou_core.c: __gue_build_header`.
//!
//! 1 parse → 2 version → 3 nesting → 4 encapsulation limit → 5 remote address → 6 MTU → 7 outer
//! fields: TOS, TTL, DF, flow label, ports → 8 open checksum: complete it, or leave it to the other
//! end → 9 GRE → 10 GUE. Steps 1 to 7 change nothing, so that a refused packet can be quoted to its
//! sender.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use uxfrm_packet::checksum::{self, Sum};
use uxfrm_packet::ethernet::EtherType;
use uxfrm_packet::gre::GreFields;
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Version, ipv6};

use crate::config::{
    FlowLabel, GreField, HeaderByte, PathMtuDiscovery, RemoteOffload, SourcePort, TunnelConfig,
    TunnelKind, TunnelUdpEncap,
};
use crate::gue::RemoteChecksum;
use crate::outer::{UdpEnds, push};
use crate::tunnel::{IPV4_LEAST, gre_len};
use crate::{DropReason, FlowHash, HashSeed, Message, Outer, Tunnel, ecn, encap_limit, nesting};

/// Outgoing path of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// Path MTU to the other end, in bytes of IP packet.
    pub path_mtu: usize,
    /// MTU of the tunnel's interface.
    pub device_mtu: usize,
    /// Seed of the hash for source ports.
    pub seed: HashSeed,
    /// Allowed source ports.
    pub source_ports: RangeInclusive<u16>,
}

/// A packet that could not be encapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncapRefused {
    /// The reason.
    pub reason: DropReason,
    /// ICMP error for its sender, if any; see [`Message::about`].
    pub tell: Option<Message>,
}

impl From<DropReason> for EncapRefused {
    fn from(reason: DropReason) -> Self {
        Self { reason, tell: None }
    }
}

/// A packet that passed the checks, with the results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncapPlan {
    pub(crate) version: Version,
    pub(crate) outer: Outer,
}

impl Tunnel {
    /// Writes GRE and GUE headers before `packet`, a single IP packet, and computes the outer
    /// headers.
    ///
    /// # Errors
    /// Why the packet was refused. It is unchanged, unless it only lacked headroom.
    pub fn encapsulate(
        &self,
        packet: &mut PacketBuf,
        egress: &Egress,
    ) -> Result<Outer, EncapRefused> {
        let len = packet.len();
        let plan = self.plan_encap(packet.bytes(), len, egress)?;
        self.frame(packet, &plan)?;
        Ok(plan.outer)
    }

    /// Steps 1 to 7. `len` is the packet's length, or each segment's of a super-packet.
    pub(crate) fn plan_encap(
        &self,
        bytes: &[u8],
        len: usize,
        egress: &Egress,
    ) -> Result<EncapPlan, EncapRefused> {
        let config = self.config();
        // 1, 2
        let ip = IpPacket::parse(bytes).map_err(|_| DropReason::OutMalformed)?;
        if !config.carries.takes(ip.version) {
            return Err(DropReason::OutWrongVersion.into());
        }
        // 3, 4
        nesting::check(self, &ip, bytes)?;
        let encap_limit = encap_limit::next(config.encap_limit, config.kind.outer(), &ip, bytes)?;
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
        Ok(EncapPlan { version: ip.version, outer })
    }

    /// Steps 8 to 10, for one packet.
    fn frame(&self, packet: &mut PacketBuf, plan: &EncapPlan) -> Result<(), DropReason> {
        // 8
        let pending_checksum = self.pending_checksum(packet);
        if pending_checksum.is_none() {
            checksum::complete(packet).map_err(|_| DropReason::OutChecksum)?;
        }
        packet.checksum = Checksum::AsIs;
        push(packet, self.frame_len(pending_checksum))?;
        self.write_frame(packet.bytes_mut(), plan, pending_checksum)
    }

    /// Length of GUE and GRE headers.
    pub(crate) fn frame_len(&self, pending_checksum: Option<RemoteChecksum>) -> usize {
        self.framing_len(pending_checksum)
            + if self.config().kind.is_gre() { gre_len(self.config()) } else { 0 }
    }

    /// Steps 9 and 10: writes GUE and GRE headers to the front of `out`, before the inner packet.
    pub(crate) fn write_frame(
        &self,
        out: &mut [u8],
        plan: &EncapPlan,
        pending_checksum: Option<RemoteChecksum>,
    ) -> Result<(), DropReason> {
        let no_room = DropReason::OutNoRoom;
        let framing_len = self.framing_len(pending_checksum);
        let (front, behind) = out.split_at_mut_checked(framing_len).ok_or(no_room)?;
        // 9
        if self.config().kind.is_gre() {
            self.write_gre(behind, plan.version).ok_or(no_room)?;
        }
        // 10
        if let Some(encap) = self.config().udp {
            let written = encap.framing.write(front, plan.outer.protocol, pending_checksum);
            written.ok_or(no_room)?;
        }
        Ok(())
    }

    fn framing_len(&self, pending_checksum: Option<RemoteChecksum>) -> usize {
        let remote = pending_checksum.map_or(RemoteOffload::Off, |_| RemoteOffload::On);
        self.config().udp.map_or(0, |encap| encap.framing.header_len(remote))
    }

    /// GUE's private field for an open checksum that the other end can complete.
    fn pending_checksum(&self, packet: &PacketBuf) -> Option<RemoteChecksum> {
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

    /// Checks `len` against the MTU; returns whether the outer header has DF.
    fn fits(&self, ip: &IpPacket, len: usize, egress: &Egress) -> Result<bool, EncapRefused> {
        let config = self.config();
        let path = egress.path_mtu.saturating_sub(self.overhead());
        let too_big = |mtu: usize| {
            let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
            EncapRefused { reason: DropReason::OutTooBig, tell: Some(Message::TooBig { mtu }) }
        };
        let discovers = config.path_mtu == PathMtuDiscovery::On;
        match (config.kind.outer(), ip.version) {
            (Version::V6, inner) => {
                let least = if inner == Version::V6 { ipv6::LEAST_MTU } else { IPV4_LEAST };
                let mtu = path.max(least);
                // 1280 bytes of IPv6 pass a smaller path in fragments.
                if len > mtu { Err(too_big(mtu)) } else { Ok(len <= path) }
            }
            // 1280 bytes of IPv6 pass a smaller path in fragments.
            (Version::V4, Version::V6) if config.kind == TunnelKind::Sit => {
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
            checksum: (output.checksum == GreField::With).then_some(0),
            key: output.key,
            sequence: (output.sequence == GreField::With).then(|| self.next_sequence()),
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

/// Remote address for this packet.
fn destination(config: &TunnelConfig, ip: &IpPacket) -> Option<IpAddr> {
    if !config.remote.is_unspecified() {
        return Some(config.remote);
    }
    match (config.kind, ip.destination) {
        (TunnelKind::Sit, IpAddr::V6(inner)) => {
            let end = config.six_rd.ipv4_in(inner)?;
            let one_host = !end.is_unspecified() && !end.is_multicast() && !end.is_broadcast();
            one_host.then_some(end.into())
        }
        (
            TunnelKind::Sit
            | TunnelKind::Ipip
            | TunnelKind::Gre
            | TunnelKind::Ip6tnl
            | TunnelKind::Ip6gre,
            _,
        ) => None,
    }
}

fn inherited(octet: HeaderByte, inner: u8) -> u8 {
    match octet {
        HeaderByte::Inherit => inner,
        HeaderByte::Fixed(value) => value,
    }
}

fn label(label: FlowLabel, ip: &IpPacket, flow: FlowHash) -> u32 {
    match (label, ip.version) {
        (FlowLabel::Fixed(label), _) => label & 0x000f_ffff,
        (FlowLabel::Inherit, Version::V6) => ip.flow_label,
        (FlowLabel::Inherit, Version::V4) | (FlowLabel::Auto, _) => flow.label(),
    }
}

pub(crate) fn ends(
    encap: &TunnelUdpEncap,
    outer: Version,
    flow: FlowHash,
    egress: &Egress,
) -> UdpEnds {
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
