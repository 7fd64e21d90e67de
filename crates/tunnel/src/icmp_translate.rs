//! Maps ICMP errors of the network to the tunnel and the inner sender (`net/ipv4/ipip.c: ipip_err`,
//! `net/ipv4/ip_gre.c: gre_err`, `net/ipv6/sit.c: ipip6_err`, `net/ipv6/ip6_tunnel.c:
//! ip6_tnl_err`).
//!
//! The quote begins with the outer headers. The sending tunnel decides how to parse behind UDP: GUE
//! only if it sends GUE. (Linux parses FOU's quotes as GUE too: `fou_iptun_ops.err_handler` is
//! `gue_err`.) Routers quote 8 bytes behind the IP header, or much more; if GRE or the inner header
//! is truncated, the tunnel and its path MTU are known, but not the inner sender.
//!
//! 1 ICMP header → 2 quoted outer header → 3 tunnel, by addresses, UDP port and key → 4 inner
//! packet → 5 report.

use std::ops::Range;
use std::sync::Arc;

use uxfrm_packet::gre::Gre;
use uxfrm_packet::icmp::{self, Icmp};
use uxfrm_packet::icmpv6::{self, Icmpv6};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{IpPacket, PacketBuf, Pool, Protocol};
use zerocopy::FromBytes;

use crate::config::TunnelConfig;
use crate::icmp_quote::Quoted;
use crate::{DropReason, Message, Tunnel, Tunnels};

/// An ICMP error about a tunnel.
#[derive(Clone, Debug)]
pub struct IcmpReport<'t> {
    /// The tunnel that sent the quoted packet.
    pub tunnel: &'t Arc<Tunnel>,
    /// The event.
    pub event: PathEvent,
    /// Range of the quoted inner packet in the error; `None` if too little is quoted.
    pub inner: Option<Range<usize>>,
}

/// Events of a tunnel's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// Path MTU of the outer packet; 0 if the router does not tell (RFC 1191 §4).
    PathMtu(u32),
    /// The other end is unreachable: unreachable, TTL exceeded, or a refused header field.
    Unreachable,
}

impl Tunnels {
    /// Finds the tunnel and the inner packet that an ICMP error is about.
    ///
    /// `error` is a whole IP packet. The caller must have verified its ICMP checksum; a host's raw
    /// socket has.
    ///
    /// # Errors
    /// [`DropReason::ErrorMalformed`], [`DropReason::ErrorForeign`].
    pub fn translate(&self, error: &[u8]) -> Result<IcmpReport<'_>, DropReason> {
        // 1
        let malformed = DropReason::ErrorMalformed;
        let ip = IpPacket::parse(error).map_err(|_| malformed)?;
        let (event, quote) = event(&ip, ip.upper(error)).ok_or(malformed)?;
        // 2
        let quoted = Quoted::of(quote).ok_or(malformed)?;
        // 3, 4
        let mut sent = self.iter().filter_map(|tunnel| Some((tunnel, sent_by(tunnel, &quoted)?)));
        let (tunnel, inner) = sent.next().ok_or(DropReason::ErrorForeign)?;
        // 5
        let end = ip.total_len;
        let inner = inner.filter(|inner| Quoted::of(inner).is_some());
        Ok(IcmpReport { tunnel, event, inner: inner.map(|inner| end - inner.len()..end) })
    }
}

impl IcmpReport<'_> {
    /// ICMP error to the inner sender; `error` is the one that was translated.
    ///
    /// As the kernel, which passes on the path MTU less the tunnel's overhead, and "unreachable"
    /// otherwise. `None` if the inner sender is unknown or may not be informed.
    #[must_use]
    pub fn told(&self, error: &[u8], pool: &mut Pool) -> Option<PacketBuf> {
        let inner = error.get(self.inner.clone()?)?;
        let message = match self.event {
            PathEvent::PathMtu(0) => return None,
            PathEvent::PathMtu(mtu) => Message::TooBig { mtu: self.inner_mtu(mtu) },
            PathEvent::Unreachable => Message::Unreachable,
        };
        message.about(inner, pool)
    }

    fn inner_mtu(&self, path_mtu: u32) -> u32 {
        path_mtu.saturating_sub(u32::try_from(self.tunnel.overhead()).unwrap_or(0))
    }
}

/// Event and quote of an ICMP message; `None` for other messages and irrelevant errors (redirects,
/// source quench).
fn event<'a>(ip: &IpPacket, message: &'a [u8]) -> Option<(PathEvent, &'a [u8])> {
    match ip.protocol {
        Protocol::ICMP => {
            let Icmp { header, payload } = Icmp::parse(message).ok()?;
            let event = match (header.kind, header.mtu()) {
                (icmp::UNREACHABLE, Some(mtu)) => PathEvent::PathMtu(mtu.into()),
                (icmp::UNREACHABLE | icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM, _) => {
                    PathEvent::Unreachable
                }
                (_, _) => return None,
            };
            Some((event, payload))
        }
        Protocol::ICMPV6 => {
            let Icmpv6 { header, payload } = Icmpv6::parse(message).ok()?;
            let event = match (header.kind, header.mtu()) {
                (_, Some(mtu)) => PathEvent::PathMtu(mtu),
                (icmpv6::UNREACHABLE | icmpv6::TIME_EXCEEDED | icmpv6::PARAMETER_PROBLEM, _) => {
                    PathEvent::Unreachable
                }
                (_, None) => return None,
            };
            Some((event, payload))
        }
        Protocol(_) => None,
    }
}

/// Whether the tunnel sent the quoted packet; if so, the beginning of the inner packet, if quoted.
fn sent_by<'q>(tunnel: &Tunnel, quoted: &Quoted<'q>) -> Option<Option<&'q [u8]>> {
    let config = tunnel.config();
    let from_us = config.local.is_unspecified() || config.local == quoted.source;
    let to_remote = config.remote == quoted.destination
        || config.remote.is_unspecified()
            && quoted.destination.is_ipv4() == config.remote.is_ipv4();
    if !from_us || !to_remote || quoted.later_fragment {
        return None;
    }
    let (protocol, payload) = match config.udp {
        Some(_) => behind_udp(config, quoted)?,
        None => (Some(quoted.protocol), Some(quoted.upper)),
    };
    match protocol {
        Some(protocol) if !sends(config, protocol) => None,
        Some(Protocol::GRE) => behind_gre(config, payload?),
        Some(_) | None => Some(payload),
    }
}

fn sends(config: &TunnelConfig, protocol: Protocol) -> bool {
    use uxfrm_packet::Version;
    [Version::V4, Version::V6]
        .into_iter()
        .any(|version| config.carries.takes(version) && config.kind.protocol(version) == protocol)
}

/// Quoted payload of a datagram to the tunnel's port: its protocol and bytes, as far as known.
type QuotedPayload<'q> = (Option<Protocol>, Option<&'q [u8]>);

fn behind_udp<'q>(config: &TunnelConfig, quoted: &Quoted<'q>) -> Option<QuotedPayload<'q>> {
    let encap = config.udp?;
    let (header, payload) = UdpHeader::ref_from_prefix(quoted.upper).ok()?;
    debug_assert_eq!(size_of_val(header), udp::HEADER_LEN);
    if quoted.protocol != Protocol::UDP || header.destination.get() != encap.destination_port.get()
    {
        return None;
    }
    let direct = config.kind.is_gre().then_some(Protocol::GRE);
    match encap.framing.parse(payload) {
        Ok(framing) => Some((framing.protocol.or(direct), payload.get(framing.len..))),
        // Truncated: addresses and port must do.
        Err(reason) if encap.framing.truncation() == Some(reason) => Some((None, None)),
        Err(_) => None,
    }
}

/// Payload behind a GRE header with the tunnel's key. A truncated header may be the tunnel's.
fn behind_gre<'q>(config: &TunnelConfig, payload: &'q [u8]) -> Option<Option<&'q [u8]>> {
    match Gre::parse(payload) {
        Ok(gre) if gre.fields.key == config.output.key => Some(Some(gre.payload)),
        Ok(_) => None,
        Err(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use uxfrm_testkit::packets;

    use super::*;
    use crate::config::{TunnelKind, TunnelUdpEncap, UdpFraming};
    use crate::{ALL_PORTS, Egress, HashSeed};

    fn tunnels() -> Tunnels {
        let mut tunnels = Tunnels::new();
        for (number, kind) in (1_u8..).zip(TunnelKind::ALL) {
            for framing in [None, Some(UdpFraming::Fou), Some(UdpFraming::Gue)] {
                let ends: [std::net::IpAddr; 2] = match kind.outer() {
                    uxfrm_packet::Version::V4 => [[192, 0, 2, 1].into(), [192, 0, 2, 9].into()],
                    uxfrm_packet::Version::V6 => {
                        ["2001:db8::1", "2001:db8::9"].map(|end| end.parse().unwrap())
                    }
                };
                let mut config = TunnelConfig::new(kind, ends[0], ends[1]);
                let port =
                    5000 + 10 * u16::from(number) + u16::from(framing == Some(UdpFraming::Gue));
                config.udp = framing
                    .map(|framing| TunnelUdpEncap::new(framing, NonZeroU16::new(port).unwrap()));
                // One tunnel per encapsulation between the same addresses.
                if let Some(udp) = config.udp {
                    config.remote = match config.remote {
                        std::net::IpAddr::V4(_) => {
                            [192, 0, 2, 10 + u8::from(udp.framing == UdpFraming::Gue)].into()
                        }
                        std::net::IpAddr::V6(_) => {
                            let last = 10 + u16::from(udp.framing == UdpFraming::Gue);
                            [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into()
                        }
                    };
                }
                let name = format!("{}-{framing:?}", kind.name());
                tunnels.add(Tunnel::new(&name, config).unwrap()).unwrap();
            }
        }
        tunnels
    }

    fn error_about(quote: &[u8], kind: u8, code: u8, rest: u32) -> Vec<u8> {
        let mut message = vec![kind, code, 0, 0];
        message.extend(rest.to_be_bytes());
        message.extend(quote);
        let (from, to, protocol) = if quote[0] >> 4 == 4 {
            ([203, 0, 113, 1].into(), [192, 0, 2, 1].into(), Protocol::ICMP)
        } else {
            let [from, to] = ["2001:db8::f", "2001:db8::1"].map(|end| end.parse().unwrap());
            (from, to, Protocol::ICMPV6)
        };
        packets::ip(from, to, protocol, &message)
    }

    #[test]
    fn icmp_errors_reach_inner_sender() {
        let (tunnels, mut pool) = (tunnels(), Pool::new());
        let egress =
            Egress { path_mtu: 1500, device_mtu: 1500, seed: HashSeed(1), source_ports: ALL_PORTS };
        let v4 = packets::udp_bytes("10.0.0.1:7", "10.0.0.2:9", &[1; 300]);
        let v6 = packets::udp_bytes("[fd00::1]:7", "[fd00::2]:9", &[1; 300]);
        for tunnel in tunnels.iter() {
            let inner = if tunnel.config().kind == TunnelKind::Sit { &v6 } else { &v4 };
            let mut packet = PacketBuf::from_slice(inner);
            tunnel.encapsulate(&mut packet, &egress).unwrap().push(&mut packet).unwrap();
            let outer_is_v4 = packet.bytes()[0] >> 4 == 4;
            let (kind, code) = if outer_is_v4 { (3, 4) } else { (2, 0) };
            for quoted in [packet.len(), 128] {
                let error = error_about(&packet.bytes()[..quoted], kind, code, 1400);
                let report = tunnels.translate(&error).unwrap();
                assert_eq!(
                    (report.tunnel.name(), report.event),
                    (tunnel.name(), PathEvent::PathMtu(1400))
                );
                let told = report.told(&error, &mut pool).unwrap();
                let ip = IpPacket::parse(told.bytes()).unwrap();
                let about = IpPacket::parse(inner).unwrap();
                assert_eq!((ip.source, ip.destination), (about.destination, about.source));
                let upper = ip.upper(told.bytes());
                let mtu = u32::from_be_bytes(*upper[4..].first_chunk().unwrap());
                assert_eq!(mtu as usize, 1400 - tunnel.overhead(), "{}", tunnel.name());
                let shown = inner.len().min(quoted - (packet.len() - inner.len()));
                assert_eq!(upper[8..], inner[..shown]);
            }
            let unreachable = error_about(packet.bytes(), if outer_is_v4 { 11 } else { 3 }, 0, 0);
            let report = tunnels.translate(&unreachable).unwrap();
            assert_eq!(report.event, PathEvent::Unreachable);
            let told = report.told(&unreachable, &mut pool).unwrap();
            let (kind, code) = if told.bytes()[0] >> 4 == 4 { (3, 1) } else { (1, 3) };
            let upper = IpPacket::parse(told.bytes()).unwrap().header_len;
            assert_eq!(told.bytes()[upper..upper + 2], [kind, code]);
        }
    }

    #[test]
    fn eight_quoted_bytes_identify_tunnel_only() {
        let tunnels = tunnels();
        let egress =
            Egress { path_mtu: 1500, device_mtu: 1500, seed: HashSeed(1), source_ports: ALL_PORTS };
        for name in ["ipip-Some(Fou)", "gre-Some(Gue)", "gre-None"] {
            let tunnel = tunnels.named(name).unwrap();
            let inner = packets::udp_bytes("10.0.0.1:7", "10.0.0.2:9", &[1; 300]);
            let mut packet = PacketBuf::from_slice(&inner);
            tunnel.encapsulate(&mut packet, &egress).unwrap().push(&mut packet).unwrap();
            let error = error_about(&packet.bytes()[..28], 3, 4, 1300);
            let report = tunnels.translate(&error).unwrap();
            assert_eq!((report.tunnel.name(), report.inner), (name, None));
        }
    }

    #[test]
    fn icmp_errors_about_others_are_foreign() {
        let tunnels = tunnels();
        let reason = |error: &[u8]| tunnels.translate(error).map(|_| ()).unwrap_err();
        let foreign = packets::udp_bytes("192.0.2.1:7", "192.0.2.9:9", &[1; 30]);
        assert_eq!(reason(&error_about(&foreign, 3, 4, 1300)), DropReason::ErrorForeign);
        let echo = error_about(&foreign, 8, 0, 0);
        assert_eq!(reason(&echo), DropReason::ErrorMalformed);
        assert_eq!(reason(&error_about(&[0x45, 0], 3, 4, 0)), DropReason::ErrorMalformed);
        assert_eq!(reason(&foreign), DropReason::ErrorMalformed);
        assert_eq!(reason(b""), DropReason::ErrorMalformed);
    }
}
