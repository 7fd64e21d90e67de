//! Encapsulation and decapsulation of every kind; refusals and their reasons.

mod wccp;

use std::net::IpAddr;
use std::num::NonZeroU16;

use proptest::prelude::*;
use uxfrm_packet::{
    Batch, Checksum, Ecn, HEADROOM, IpPacket, PacketBuf, Pool, Protocol, Version, checksum,
};
use uxfrm_testkit::packets;

use crate::config::{
    CarriedVersions, GreField, GreOptions, HeaderByte, InnerDf, PathMtuDiscovery, RemoteOffload,
    SourcePort, TunnelConfig, TunnelKind, TunnelUdpEncap, UdpChecksum, UdpFraming,
};
use crate::ports::{PortRequest, ZeroChecksum6};
use crate::{
    ALL_PORTS, DecapPort, DecapPorts, Decapsulation, DropReason, Egress, EncapRefused, Error,
    HashSeed, Message, Outer, SixRd, Tunnel, Tunnels,
};

const PORT: NonZeroU16 = NonZeroU16::new(5555).unwrap();

fn egress() -> Egress {
    Egress { path_mtu: 1500, device_mtu: 1400, seed: HashSeed(1), source_ports: ALL_PORTS }
}

fn ends(version: Version) -> [IpAddr; 2] {
    match version {
        Version::V4 => ["192.0.2.1", "192.0.2.2"],
        Version::V6 => ["2001:db8::1", "2001:db8::2"],
    }
    .map(|text| text.parse().unwrap())
}

fn config(kind: TunnelKind) -> TunnelConfig {
    let [local, remote] = ends(kind.outer());
    TunnelConfig::new(kind, local, remote)
}

/// The same tunnel as configured at the other end.
fn turned(config: &TunnelConfig) -> TunnelConfig {
    let (input, output) = (config.output, config.input);
    TunnelConfig { local: config.remote, remote: config.local, input, output, ..config.clone() }
}

fn tunnel(config: &TunnelConfig) -> Tunnel {
    Tunnel::new("tun1", config.clone()).unwrap()
}

fn only(config: &TunnelConfig) -> Tunnels {
    let mut tunnels = Tunnels::new();
    tunnels.add(tunnel(config)).unwrap();
    tunnels
}

/// Receive ports for a tunnel's packets.
fn ports_for(config: &TunnelConfig, carried: Version) -> DecapPorts {
    let mut ports = DecapPorts::new();
    if let Some(encap) = config.udp {
        let (kind, protocol) = (encap.framing.properties().number, config.kind.protocol(carried).0);
        let family = if config.kind.outer() == Version::V4 { 2 } else { 10 };
        let port = encap.destination_port.get();
        let request =
            PortRequest { family: Some(family), port, kind, protocol, ..PortRequest::default() };
        ports.add(DecapPort::of(&request).unwrap()).unwrap();
    }
    ports
}

fn inner(version: Version) -> Vec<u8> {
    match version {
        Version::V4 => packets::udp_bytes("10.0.0.1:7", "10.0.0.2:9", b"inner payload"),
        Version::V6 => packets::udp_bytes("[fd00::1]:7", "[fd00::2]:9", b"inner payload"),
    }
}

fn in_udp(kind: TunnelKind, framing: UdpFraming, checksum: UdpChecksum) -> TunnelConfig {
    let udp = TunnelUdpEncap {
        checksum4: checksum,
        checksum6: checksum,
        ..TunnelUdpEncap::new(framing, PORT)
    };
    TunnelConfig { udp: Some(udp), ..config(kind) }
}

/// Encapsulates and writes all headers.
fn sent(tunnel: &Tunnel, bytes: &[u8]) -> Result<(PacketBuf, Outer), EncapRefused> {
    let mut packet = PacketBuf::from_slice(bytes);
    let outer = tunnel.encapsulate(&mut packet, &egress())?;
    outer.push(&mut packet)?;
    Ok((packet, outer))
}

fn refusal(config: &TunnelConfig, bytes: &[u8]) -> EncapRefused {
    sent(&tunnel(config), bytes).unwrap_err()
}

fn received(
    config: &TunnelConfig,
    ports: &DecapPorts,
    mut packet: PacketBuf,
) -> Result<Vec<u8>, DropReason> {
    let tunnels = only(config);
    match tunnels.receive(&mut packet, 0, ports)? {
        Decapsulation::Tunnel(_) => Ok(packet.bytes().to_vec()),
        Decapsulation::Other(protocol) => panic!("nobody's: {protocol}"),
    }
}

fn kinds() -> impl Strategy<Value = TunnelKind> {
    proptest::sample::select(TunnelKind::ALL.to_vec())
}

fn gres() -> impl Strategy<Value = GreOptions> {
    let field = || prop_oneof![Just(GreField::Without), Just(GreField::With)];
    (any::<Option<u32>>(), field(), field()).prop_map(|(key, sequence, checksum)| GreOptions {
        key,
        sequence,
        checksum,
    })
}

fn encaps() -> impl Strategy<Value = Option<TunnelUdpEncap>> {
    let checksum = || prop_oneof![Just(UdpChecksum::Zero), Just(UdpChecksum::Computed)];
    let framing = proptest::sample::select(UdpFraming::ALL.to_vec());
    let source = prop_oneof![Just(SourcePort::Auto), Just(SourcePort::Fixed(PORT))];
    let udp =
        (framing, source, checksum(), checksum()).prop_map(|(framing, source_port, c4, c6)| {
            TunnelUdpEncap {
                source_port,
                checksum4: c4,
                checksum6: c6,
                ..TunnelUdpEncap::new(framing, PORT)
            }
        });
    proptest::option::of(udp)
}

fn configs() -> impl Strategy<Value = TunnelConfig> {
    let octet = || prop_oneof![Just(HeaderByte::Inherit), any::<u8>().prop_map(HeaderByte::Fixed)];
    (kinds(), gres(), gres(), octet(), octet(), encaps(), proptest::option::of(0_u8..9)).prop_map(
        |(kind, input, output, ttl, tos, udp, limit)| {
            let carries =
                if kind == TunnelKind::Ipip { CarriedVersions::V4 } else { CarriedVersions::Both };
            let mut config = TunnelConfig { ttl, tos, udp, carries, ..config(kind) };
            if kind.is_gre() {
                (config.input, config.output) = (input, output);
            }
            if kind.outer() == Version::V6 {
                config.encap_limit = limit;
            }
            config
        },
    )
}

fn inners() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(any::<u8>(), 0..1200);
    (any::<bool>(), any::<bool>(), any::<u8>(), payload).prop_map(|(v4, tcp, tos, payload)| {
        let (from, to) =
            if v4 { ("10.0.0.1:7", "10.0.0.2:9") } else { ("[fd00::1]:7", "[fd00::2]:9") };
        let mut bytes = match tcp {
            true => packets::tcp(from, to, 5, &payload).bytes().to_vec(),
            false => packets::udp_bytes(from, to, &payload),
        };
        if v4 {
            bytes[1] = tos;
            uxfrm_packet::ipv4::fill_checksum(&mut bytes).unwrap();
        } else {
            bytes[0] |= tos >> 4;
            bytes[1] |= tos << 4;
        }
        bytes
    })
}

proptest! {
    #[test]
    fn encapsulation_round_trips(config in configs(), bytes in inners()) {
        let version = IpPacket::parse(&bytes).unwrap().version;
        prop_assume!(config.carries.takes(version));
        let (packet, _) = sent(&tunnel(&config), &bytes).unwrap();
        let outer = IpPacket::parse(packet.bytes()).unwrap();
        prop_assert_eq!(outer.total_len, packet.len());
        prop_assert!(packet.len() - bytes.len() <= tunnel(&config).overhead());
        let unsummed = config.udp.is_some_and(|udp| udp.checksum6 == UdpChecksum::Zero);
        let verdict = checksum::verify(&outer, packet.bytes());
        prop_assert!(verdict != checksum::Verification::Wrong || unsummed && outer.version == Version::V6);
        let out = received(&turned(&config), &ports_for(&config, version), packet).unwrap();
        let mut expected = bytes;
        // Congestion marks by RFC 6040: CE goes out as ECT(0), and comes back unchanged.
        prop_assert_eq!(Ecn::of_tos(IpPacket::parse(&out).unwrap().tos), Ecn::of_tos(IpPacket::parse(&expected).unwrap().tos));
        expected.truncate(out.len());
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn encapsulation_through_socket_round_trips(config in configs(), bytes in inners()) {
        let config = TunnelConfig { encap_limit: None, ..config };
        prop_assume!(config.udp.is_some());
        let version = IpPacket::parse(&bytes).unwrap().version;
        prop_assume!(config.carries.takes(version));
        let mut packet = PacketBuf::from_slice(&bytes);
        let outer = tunnel(&config).encapsulate(&mut packet, &egress()).unwrap();
        prop_assert!(outer.datagram(&mut packet));
        let path = packet.udp.unwrap();
        packet.udp = Some(uxfrm_packet::UdpPath { local: path.remote, remote: path.local, ..path });
        prop_assert_eq!(received(&turned(&config), &ports_for(&config, version), packet), Ok(bytes));
    }

    #[test]
    fn one_changed_bit_is_seen_by_the_checksum(config in configs(), bytes in inners(), at in any::<usize>(), bit in 0_u8..8) {
        let mut config = config;
        config.udp = config.udp.map(|udp| TunnelUdpEncap { checksum4: UdpChecksum::Computed, checksum6: UdpChecksum::Computed, ..udp });
        prop_assume!(config.udp.is_some());
        let version = IpPacket::parse(&bytes).unwrap().version;
        prop_assume!(config.carries.takes(version));
        let (mut packet, _) = sent(&tunnel(&config), &bytes).unwrap();
        let behind_ports = IpPacket::parse(packet.bytes()).unwrap().header_len + 8;
        let at = behind_ports + at % (packet.len() - behind_ports);
        packet.bytes_mut()[at] ^= 1 << bit;
        packet.checksum = Checksum::AsIs;
        let out = received(&turned(&config), &ports_for(&config, version), packet);
        prop_assert_eq!(out, Err(DropReason::InUdpChecksum));
    }
}

#[test]
fn outer_headers_are_what_the_tunnel_says() {
    let mut config = in_udp(TunnelKind::Gre, UdpFraming::Gue, UdpChecksum::Computed);
    config.ttl = HeaderByte::Fixed(225);
    config.tos = HeaderByte::Fixed(0xb8);
    let mut bytes = inner(Version::V4);
    bytes[1] = 0x23;
    let (packet, _) = sent(&tunnel(&config), &bytes).unwrap();
    let ip = IpPacket::parse(packet.bytes()).unwrap();
    // A fixed DSCP, and CE inside is ECT(0) outside.
    assert_eq!((ip.ttl, ip.tos, ip.dont_fragment), (225, 0xba, true));
    let inherits = TunnelConfig { ttl: HeaderByte::Inherit, tos: HeaderByte::Inherit, ..config };
    let inherits = TunnelConfig { path_mtu: PathMtuDiscovery::Off, ..inherits };
    let (packet, _) = sent(&tunnel(&inherits), &bytes).unwrap();
    let ip = IpPacket::parse(packet.bytes()).unwrap();
    assert_eq!((ip.ttl, ip.tos, ip.dont_fragment), (64, 0x22, false));
    // An inner DF is copied, unless it is ignored.
    bytes[6] = 0x40;
    assert!(
        IpPacket::parse(sent(&tunnel(&inherits), &bytes).unwrap().0.bytes()).unwrap().dont_fragment
    );
    let ignores = TunnelConfig { inner_df: InnerDf::Ignore, ..inherits };
    assert!(
        !IpPacket::parse(sent(&tunnel(&ignores), &bytes).unwrap().0.bytes()).unwrap().dont_fragment
    );
}

#[test]
fn too_big_packet_is_answered_as_by_kernel() {
    let v4 = |len: usize, df: bool| {
        let mut bytes = packets::udp_bytes("10.0.0.1:7", "10.0.0.2:9", &vec![0; len - 28]);
        bytes[6] = if df { 0x40 } else { 0 };
        bytes
    };
    let v6 = |len: usize| packets::udp_bytes("[fd00::1]:7", "[fd00::2]:9", &vec![0; len - 48]);
    let off = |kind| TunnelConfig { path_mtu: PathMtuDiscovery::Off, ..config(kind) };
    let on = config;
    for (config, bytes, mtu) in [
        (on(TunnelKind::Ipip), v4(1480, true), None),
        (on(TunnelKind::Ipip), v4(1481, true), Some(1480)),
        (on(TunnelKind::Ipip), v4(1481, false), None),
        (off(TunnelKind::Ipip), v4(1401, true), Some(1400)),
        (off(TunnelKind::Ipip), v4(1401, false), None),
        (on(TunnelKind::Gre), v6(1477), Some(1476)),
        (on(TunnelKind::Sit), v6(1480), None),
        (on(TunnelKind::Sit), v6(1481), Some(1480)),
        (off(TunnelKind::Sit), v6(1481), None),
        (on(TunnelKind::Ip6tnl), v6(1453), Some(1452)),
        (on(TunnelKind::Ip6tnl), v4(1453, false), Some(1452)),
        (in_udp(TunnelKind::Ipip, UdpFraming::Fou, UdpChecksum::Zero), v4(1473, true), Some(1472)),
    ] {
        let made = sent(&tunnel(&config), &bytes).map(|_| ());
        let refused = mtu.map(|mtu| EncapRefused {
            reason: DropReason::OutTooBig,
            tell: Some(Message::TooBig { mtu }),
        });
        assert_eq!(made, refused.map_or(Ok(()), Err), "{config:?}, {} bytes", bytes.len());
    }
    // Below IPv6's minimum it is fragmented.
    let narrow = Egress { path_mtu: 1200, ..egress() };
    let mut packet = PacketBuf::from_slice(&v6(1280));
    let outer = tunnel(&on(TunnelKind::Sit)).encapsulate(&mut packet, &narrow).unwrap();
    assert!(!outer.dont_fragment);
    let narrow = Egress { path_mtu: 1280, ..egress() };
    let in_udp = in_udp(TunnelKind::Ip6tnl, UdpFraming::Fou, UdpChecksum::Computed);
    let in_udp = TunnelConfig { encap_limit: None, ..in_udp };
    let segments = |mss| packets::tcp_super("[fd00::1]:1", "[fd00::2]:2", &[7; 5000], mss);
    for (mss, whole) in [(1280 - 60, false), (1280 - 48 - 60, true)] {
        let (mut pool, mut burst) = (Pool::new(), Batch::new());
        let sent =
            tunnel(&in_udp).encapsulate_super(&segments(mss), &narrow, &mut pool, &mut burst);
        assert_eq!(sent.unwrap().dont_fragment, whole, "segments of {mss}");
        assert!(burst.as_slice().iter().all(|one| one.udp.unwrap().dont_fragment == whole));
    }
}

#[test]
fn refused_packet_is_answered_by_icmp() {
    let mut pool = Pool::new();
    let bytes = inner(Version::V4);
    let told = Message::TooBig { mtu: 1480 }.about(&bytes, &mut pool).unwrap();
    let ip = IpPacket::parse(told.bytes()).unwrap();
    assert_eq!((ip.source, ip.destination), ([10, 0, 0, 2].into(), [10, 0, 0, 1].into()));
    assert_eq!(told.bytes()[20..28], [3, 4, told.bytes()[22], told.bytes()[23], 0, 0, 5, 200]);
    assert_eq!(told.bytes()[28..], bytes);
    assert_eq!(checksum::Sum::of(&told.bytes()[20..]).fold(), 0xffff);
    assert!(
        Message::Unreachable.about(told.bytes(), &mut pool).is_none(),
        "an error about an error"
    );
    let bytes = inner(Version::V6);
    let told = Message::ParameterProblem { pointer: 43 }.about(&bytes, &mut pool).unwrap();
    let ip = IpPacket::parse(told.bytes()).unwrap();
    assert_eq!((ip.protocol, told.bytes()[40], told.bytes()[47]), (Protocol::ICMPV6, 4, 43));
    let sum = checksum::Sum::of_pseudo(ip.source, ip.destination, ip.protocol, 8 + 61);
    assert_eq!(sum.plus_bytes(ip.upper(told.bytes())).fold(), 0xffff);
}

#[test]
fn outbound_refusal_has_its_reason() {
    use DropReason as D;
    let reason = |config: &TunnelConfig, bytes: &[u8]| refusal(config, bytes).reason;
    assert_eq!(reason(&config(TunnelKind::Ipip), b"?"), D::OutMalformed);
    assert_eq!(reason(&config(TunnelKind::Ipip), &inner(Version::V6)), D::OutWrongVersion);
    assert_eq!(reason(&config(TunnelKind::Sit), &inner(Version::V4)), D::OutWrongVersion);
    let nobody = TunnelConfig { remote: TunnelConfig::any(Version::V4), ..config(TunnelKind::Gre) };
    assert_eq!(reason(&nobody, &inner(Version::V4)), D::OutNoRemote);
    let mut open = PacketBuf::from_slice(&inner(Version::V4));
    open.checksum = Checksum::Partial { start: 300, offset: 6 };
    let refused = tunnel(&config(TunnelKind::Ipip)).encapsulate(&mut open, &egress()).unwrap_err();
    assert_eq!(refused.reason, D::OutChecksum);
    let mut tight = PacketBuf::with_capacity(100, 20);
    tight.append(41).unwrap().copy_from_slice(&inner(Version::V4));
    let outer = tunnel(&config(TunnelKind::Ipip)).encapsulate(&mut tight, &egress()).unwrap();
    outer.push(&mut tight).unwrap();
    assert_eq!(outer.push(&mut tight), Err(D::OutNoRoom));
}

#[test]
fn packet_cannot_reenter_its_tunnel() {
    for config in [
        config(TunnelKind::Ipip),
        config(TunnelKind::Gre),
        in_udp(TunnelKind::Ipip, UdpFraming::Fou, UdpChecksum::Zero),
        in_udp(TunnelKind::Gre, UdpFraming::Fou, UdpChecksum::Computed),
        in_udp(TunnelKind::Gre, UdpFraming::Gue, UdpChecksum::Zero),
    ] {
        let (own, _) = sent(&tunnel(&config), &inner(Version::V4)).unwrap();
        assert_eq!(refusal(&config, own.bytes()).reason, DropReason::OutRecursion, "{config:?}");
        // Deeper inside, too.
        let other =
            TunnelConfig { remote: [198, 51, 100, 1].into(), ..self::config(TunnelKind::Gre) };
        let (wrapped, _) = sent(&tunnel(&other), own.bytes()).unwrap();
        assert_eq!(refusal(&config, wrapped.bytes()).reason, DropReason::OutRecursion);
        // A tunnel of another kind between the same addresses is a different one.
        let kind = if config.kind == TunnelKind::Gre { TunnelKind::Ipip } else { TunnelKind::Gre };
        sent(&tunnel(&self::config(kind)), own.bytes()).unwrap();
    }
}

#[test]
fn nesting_is_bounded() {
    let mut bytes = inner(Version::V4);
    for level in 0..crate::MAX_NESTING {
        let remote = [198, 51, 100, u8::try_from(level).unwrap()].into();
        let (packet, _) =
            sent(&tunnel(&TunnelConfig { remote, ..config(TunnelKind::Ipip) }), &bytes).unwrap();
        bytes = packet.bytes().to_vec();
    }
    assert_eq!(refusal(&config(TunnelKind::Gre), &bytes).reason, DropReason::OutTooDeep);
}

#[test]
fn the_encapsulation_limit_is_in_a_destination_option() {
    let config = config(TunnelKind::Ip6tnl);
    let (once, _) = sent(&tunnel(&config), &inner(Version::V6)).unwrap();
    assert_eq!((once.bytes()[6], &once.bytes()[40..48]), (60, &[41, 0, 4, 1, 4, 1, 1, 0][..]));
    let mut bytes = once.bytes().to_vec();
    for limit in (0..4).rev() {
        let remote = format!("2001:db8::1:{limit}").parse().unwrap();
        let (packet, _) =
            sent(&tunnel(&TunnelConfig { remote, ..config.clone() }), &bytes).unwrap();
        assert_eq!(packet.bytes()[44], limit);
        bytes = packet.bytes().to_vec();
    }
    let last = TunnelConfig { remote: "2001:db8::9".parse().unwrap(), ..config };
    let refused = refusal(&last, &bytes);
    // Both limits are exceeded: the depth is checked first.
    assert_eq!(refused.reason, DropReason::OutTooDeep);
    let mut bytes = once.bytes().to_vec();
    bytes[44] = 0;
    let refused = refusal(&last, &bytes);
    assert_eq!(refused.tell, Some(Message::ParameterProblem { pointer: 44 }));
}

#[test]
fn remote_checksum_is_left_to_receiver() {
    for version in [Version::V4, Version::V6] {
        for kind in [TunnelKind::Gre, TunnelKind::Ip6gre] {
            let mut config = in_udp(kind, UdpFraming::Gue, UdpChecksum::Computed);
            config.encap_limit = None;
            config.output = GreOptions { key: Some(3), ..GreOptions::default() };
            config.udp =
                config.udp.map(|udp| TunnelUdpEncap { remote_checksum: RemoteOffload::On, ..udp });
            let whole = inner(version);
            let start = IpPacket::parse(&whole).unwrap().header_len;
            let open = Checksum::Partial { start: u16::try_from(start).unwrap(), offset: 6 };
            let mut bytes = whole.clone();
            let len = u32::try_from(whole.len() - start).unwrap();
            let ip = IpPacket::parse(&whole).unwrap();
            let pseudo =
                checksum::Sum::of_pseudo(ip.source, ip.destination, Protocol::UDP, len).fold();
            bytes[start + 6..start + 8].copy_from_slice(&pseudo.to_be_bytes());
            let mut packet = PacketBuf::from_slice(&bytes);
            packet.checksum = open;
            let outer = tunnel(&config).encapsulate(&mut packet, &egress()).unwrap();
            outer.push(&mut packet).unwrap();
            assert!(packet.len() > whole.len() + 12);
            let far = turned(&config);
            for (nopartial, expected, checksum) in
                [(false, &bytes, open), (true, &whole, Checksum::AsIs)]
            {
                let mut request = ports_for(&config, version).iter().next().unwrap().request();
                request.remcsum_nopartial = nopartial;
                let mut ports = DecapPorts::new();
                ports.add(DecapPort::of(&request).unwrap()).unwrap();
                let mut arrived = PacketBuf::from_slice(packet.bytes());
                only(&far).receive(&mut arrived, 0, &ports).unwrap();
                assert_eq!((arrived.bytes(), arrived.checksum), (&expected[..], checksum));
                checksum::complete(&mut arrived).unwrap();
                assert_eq!(arrived.bytes(), whole);
            }
        }
    }
}

#[test]
fn verified_outer_checksum_verifies_inner() {
    let checksum_of = |config: &TunnelConfig, bytes: &[u8]| {
        let version = IpPacket::parse(bytes).unwrap().version;
        let (packet, _) = sent(&tunnel(config), bytes).unwrap();
        let mut packet = PacketBuf::from_slice(packet.bytes());
        let (tunnels, ports) = (only(&turned(config)), ports_for(config, version));
        tunnels.receive(&mut packet, 0, &ports).unwrap();
        packet.checksum
    };
    for version in [Version::V4, Version::V6] {
        for framing in UdpFraming::ALL {
            let with = in_udp(TunnelKind::Gre, framing, UdpChecksum::Computed);
            let good = inner(version);
            assert_eq!(checksum_of(&with, &good), Checksum::Verified);
            let mut bad = good.clone();
            *bad.last_mut().unwrap() ^= 1;
            assert_eq!(checksum_of(&with, &bad), Checksum::AsIs);
            let without = in_udp(TunnelKind::Gre, framing, UdpChecksum::Zero);
            assert_eq!(checksum_of(&without, &good), Checksum::AsIs);
        }
    }
}

#[test]
fn inbound_refusal_has_its_reason() {
    use DropReason as D;
    let fou = in_udp(TunnelKind::Ipip, UdpFraming::Fou, UdpChecksum::Zero);
    let (far, ports) = (turned(&fou), ports_for(&fou, Version::V4));
    let (good, _) = sent(&tunnel(&fou), &inner(Version::V4)).unwrap();
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = good.bytes().to_vec();
        change(&mut bytes);
        received(&far, &ports, PacketBuf::from_slice(&bytes)).unwrap_err()
    };
    assert_eq!(changed(&|bytes| bytes[0] = 0), D::InMalformed);
    assert_eq!(changed(&|bytes| bytes[6] = 0x20), D::InFragment);
    assert_eq!(changed(&|bytes| bytes[23] = 1), D::InNoPort);
    assert_eq!(changed(&|bytes| bytes[25] = 9), D::InInnerMalformed);
    assert_eq!(changed(&|bytes| bytes[27] = 1), D::InUdpChecksum);
    assert_eq!(changed(&|bytes| bytes[15] = 77), D::InNoTunnel);
    assert_eq!(changed(&|bytes| bytes[28] = 0x65), D::InInnerMalformed);
    assert_eq!(changed(&|bytes| bytes[1] = 3), D::InEcn);

    let gre = TunnelConfig {
        output: GreOptions { key: Some(1), sequence: GreField::With, checksum: GreField::With },
        ..config(TunnelKind::Gre)
    };
    let far = turned(&gre);
    let (good, _) = sent(&tunnel(&gre), &inner(Version::V4)).unwrap();
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut bytes = good.bytes().to_vec();
        change(&mut bytes);
        received(&far, &DecapPorts::new(), PacketBuf::from_slice(&bytes)).unwrap_err()
    };
    assert_eq!(changed(&|bytes| bytes[21] = 1), D::InGreMalformed);
    assert_eq!(changed(&|bytes| bytes[22] = 1), D::InGreProtocol);
    assert_eq!(changed(&|bytes| bytes[31] = 2), D::InNoTunnel);
    assert_eq!(changed(&|bytes| bytes[40] ^= 1), D::InGreChecksum);
    let tunnels = only(&far);
    let again = || {
        let mut packet = PacketBuf::from_slice(good.bytes());
        tunnels.receive(&mut packet, 0, &DecapPorts::new()).map(|_| ())
    };
    assert_eq!((again(), again()), (Ok(()), Err(D::InGreSequence)));
    let unsummed =
        TunnelConfig { output: GreOptions { checksum: GreField::Without, ..gre.output }, ..gre };
    let (bare, _) = sent(&tunnel(&unsummed), &inner(Version::V4)).unwrap();
    assert_eq!(received(&far, &DecapPorts::new(), bare), Err(D::InGreChecksum));

    let any = config(TunnelKind::Ip6tnl);
    let only_v6 = TunnelConfig { carries: CarriedVersions::V6, ..turned(&any) };
    let (packet, _) = sent(&tunnel(&any), &inner(Version::V4)).unwrap();
    assert_eq!(received(&only_v6, &DecapPorts::new(), packet), Err(D::InWrongVersion));
}

#[test]
fn zero_checksums_over_ipv6_come_in_only_where_allowed() {
    let config = in_udp(TunnelKind::Ip6tnl, UdpFraming::Fou, UdpChecksum::Zero);
    let mut port = *ports_for(&config, Version::V4).iter().next().unwrap();
    for (rule, expected) in [
        (ZeroChecksum6::Allow, Ok(inner(Version::V4))),
        (ZeroChecksum6::Refuse, Err(DropReason::InZeroChecksum)),
    ] {
        port.zero_checksum6 = rule;
        let mut ports = DecapPorts::new();
        ports.add(port).unwrap();
        let (packet, _) = sent(&tunnel(&config), &inner(Version::V4)).unwrap();
        let packet = PacketBuf::from_slice(packet.bytes());
        assert_eq!(received(&turned(&config), &ports, packet), expected);
    }
}

#[test]
fn six_rd_finds_remote_and_detects_spoofing() {
    let any = TunnelConfig::any(Version::V4);
    let six_rd =
        SixRd::new("2001:db8::".parse().unwrap(), 32, "10.0.0.0".parse().unwrap(), 8).unwrap();
    let left = TunnelConfig {
        local: [10, 1, 2, 3].into(),
        remote: any,
        six_rd,
        ..config(TunnelKind::Sit)
    };
    let right = TunnelConfig { local: [10, 4, 5, 6].into(), ..left.clone() };
    let bytes = packets::udp_bytes("[2001:db8:102:300::1]:1", "[2001:db8:405:600::1]:2", b"6rd");
    let (packet, outer) = sent(&tunnel(&left), &bytes).unwrap();
    assert_eq!(outer.destination, IpAddr::from([10, 4, 5, 6]));
    let copy = || PacketBuf::from_slice(packet.bytes());
    assert_eq!(received(&right, &DecapPorts::new(), copy()), Ok(bytes));
    let mut liar = copy();
    liar.bytes_mut()[15] = 4;
    assert_eq!(received(&right, &DecapPorts::new(), liar), Err(DropReason::InSpoofed));
    assert_eq!(refusal(&left, &inner(Version::V6)).reason, DropReason::OutNoRemote);
}

#[test]
fn unclaimed_payload_leaves_as_whole_packet() {
    let mut ports = DecapPorts::new();
    for (port, protocol) in [(5555, 50), (5556, 17)] {
        for family in [2, 10] {
            let family = Some(family);
            let request = PortRequest { family, port, protocol, kind: 1, ..PortRequest::default() };
            ports.add(DecapPort::of(&request).unwrap()).unwrap();
        }
    }
    for version in [Version::V4, Version::V6] {
        let [from, to] = ends(version);
        let esp = packets::ip(from, to, Protocol::ESP, &[7; 60]);
        let flow = crate::FlowHash::of(&IpPacket::parse(&esp).unwrap(), &esp, HashSeed(3));
        for checksum in [UdpChecksum::Zero, UdpChecksum::Computed] {
            let encap = in_udp(TunnelKind::Gre, UdpFraming::Fou, checksum).udp.unwrap();
            let mut packet = PacketBuf::from_slice(&esp);
            crate::direct::wrap(&mut packet, &encap, flow, &egress()).unwrap();
            assert_eq!(packet.len(), esp.len() + 8);
            let inside = Tunnels::new().receive(&mut packet, 0, &ports).unwrap().protocol();
            assert_eq!((inside, packet.bytes()), (Some(Protocol::ESP), &esp[..]));
        }
        // UDP in UDP at the greatest depth; the last has no port here, so it is an ordinary
        // datagram.
        let mut packet =
            PacketBuf::from_slice(&packets::ip(from, to, Protocol::UDP, &[0, 1, 0, 2, 0, 8, 0, 0]));
        let whole = packet.bytes().to_vec();
        let nested = TunnelUdpEncap::new(UdpFraming::Fou, NonZeroU16::new(5556).unwrap());
        for depth in 1..=crate::MAX_UDP_LAYERS + 1 {
            crate::direct::wrap(&mut packet, &nested, flow, &egress()).unwrap();
            let mut copy = PacketBuf::from_slice(packet.bytes());
            let inside =
                Tunnels::new().receive(&mut copy, 0, &ports).map(|inside| inside.protocol());
            if depth <= crate::MAX_UDP_LAYERS {
                assert_eq!((inside, copy.bytes()), (Ok(Some(Protocol::UDP)), &whole[..]));
            } else {
                assert_eq!(inside, Err(DropReason::InTooDeep));
            }
        }
    }
}

#[test]
fn headroom_is_enough_for_the_largest_headers() {
    let mut config = in_udp(TunnelKind::Ip6gre, UdpFraming::Gue, UdpChecksum::Computed);
    config.output = GreOptions { key: Some(1), sequence: GreField::With, checksum: GreField::With };
    assert!(tunnel(&config).overhead() <= HEADROOM / 2);
    assert_eq!(Error::TunnelExists.errno(), 17);
}

impl Decapsulation<'_> {
    fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Tunnel(_) => None,
            Self::Other(protocol) => Some(*protocol),
        }
    }
}
