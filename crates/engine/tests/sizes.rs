//! Packets that are too large, fragmented, padded, or encapsulated more than once.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::net::IpAddr;
use std::time::Duration;

use uxfrm_engine::sa::config::{SaExtraFlags, SaFlags};
use uxfrm_engine::{
    Direction, DropReason, Event, Family, HostView, Mode, Reqid, Settings, UdpEncapKind,
    WireHeaders,
};
use uxfrm_packet::{Fragment, IpPacket, PacketBuf, Protocol, icmp::Icmp, icmpv6::Icmpv6};
use uxfrm_testkit::{EspSuite, IpsecSetup, PairDirection, TestGatewayPair, packets};

const LEFT: &str = "10.1.0.1:7";
const RIGHT: &str = "10.2.0.1:9";

fn of_length(len: usize) -> PacketBuf {
    packets::udp(LEFT, RIGHT, &vec![b'x'; len - 28])
}

#[test]
fn too_big_packet_is_answered_with_mtu() {
    for (suite, encap, inner_mtu) in [
        (EspSuite::Gcm128, None, 1446),
        (EspSuite::Gcm128, Some(UdpEncapKind::Esp), 1438),
        (EspSuite::CbcSha1, None, 1438),
    ] {
        let setup = IpsecSetup { suite, encap, ..IpsecSetup::tunnel4() };
        let mut pair = TestGatewayPair::new(&setup);
        let fits = packets::dont_fragment(of_length(inner_mtu));
        assert_eq!(pair.left_to_right(vec![fits]).len(), 1);
        assert!(pair.last_on_wire[0].len() <= 1500);
        let (wire, host) =
            pair.left.outbound(vec![packets::dont_fragment(of_length(inner_mtu + 1))]);
        assert!(wire.is_empty());
        let answer = IpPacket::parse(host[0].bytes()).unwrap();
        let message = Icmp::parse(answer.upper(host[0].bytes())).unwrap();
        assert_eq!(message.header.mtu().map(usize::from), Some(inner_mtu));
        assert_eq!(answer.destination, "10.1.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(pair.left.drops(DropReason::OutTooBig), 1);
        pair.assert_accounts();
    }
}

#[test]
fn ipv6_sender_is_told_at_least_minimum_mtu() {
    for (mtu, told) in [(1500, 1426), (1300, 1280)] {
        let mut setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V6);
        setup.settings.mtu = mtu;
        let mut pair = TestGatewayPair::new(&setup);
        let large = packets::udp("[fd00:1::1]:7", "[fd00:2::1]:9", &vec![0; told + 1 - 48]);
        let (wire, host) = pair.left.outbound(vec![large]);
        assert!(wire.is_empty());
        let answer = IpPacket::parse(host[0].bytes()).unwrap();
        let message = Icmpv6::parse(answer.upper(host[0].bytes())).unwrap();
        assert_eq!(message.header.mtu(), Some(u32::try_from(told).unwrap()));
        assert!(host[0].len() <= 1280);
        // What it was told arrives, in outer fragments if need be.
        let fits = packets::udp("[fd00:1::1]:7", "[fd00:2::1]:9", &vec![0; told - 48]);
        assert_eq!(pair.left_to_right(vec![fits]).len(), 1);
        assert!(pair.last_on_wire.iter().all(|packet| packet.len() <= mtu.into()));
        pair.assert_accounts();
    }
}

/// 1280 bytes of IPv6 exceed the MTU once encapsulated: the kernel, which writes the socket's
/// headers, fragments them.
#[test]
fn ipv6_minimum_mtu_is_fragmented_by_socket() {
    for (outer, mtu) in [(Family::V4, 1300), (Family::V6, 1300), (Family::V4, 1500)] {
        let encap = Some(UdpEncapKind::Esp);
        let mut setup = IpsecSetup { encap, ..IpsecSetup::new(Mode::Tunnel, Family::V6, outer) };
        setup.settings.mtu = mtu;
        setup.settings.headers = WireHeaders::UdpSocket;
        let mut pair = TestGatewayPair::new(&setup);
        let datagram =
            |len: usize| packets::udp("[fd00:1::1]:7", "[fd00:2::1]:9", &vec![0; len - 48]);
        let several = packets::tcp_super("[fd00:1::1]:7", "[fd00:2::1]:9", &[7; 4000], 1280 - 60);
        for (packet, fits) in
            [(datagram(1280), mtu > 1400), (datagram(1000), true), (several, mtu > 1400)]
        {
            let (wire, host) = pair.left.outbound(vec![packet]);
            assert!(host.is_empty() && wire.len() == 1);
            assert_eq!(wire[0].udp.map(|path| path.dont_fragment), Some(fits), "{outer:?} {mtu}");
        }
        pair.assert_accounts();
    }
}

/// The kernel's headers count with what it cuts: not a byte more or less.
#[test]
fn socket_datagram_is_whole_within_mtu() {
    let sent = |outer, mtu| {
        let encap = Some(UdpEncapKind::Esp);
        let mut setup = IpsecSetup { encap, ..IpsecSetup::new(Mode::Tunnel, Family::V6, outer) };
        (setup.settings.mtu, setup.settings.headers) = (mtu, WireHeaders::UdpSocket);
        let packet = packets::udp("[fd00:1::1]:7", "[fd00:2::1]:9", &[0; 1280 - 48]);
        let (mut wire, _) = TestGatewayPair::new(&setup).left.outbound(vec![packet]);
        let datagram = wire.remove(0);
        (datagram.len(), datagram.udp.unwrap().dont_fragment)
    };
    for (outer, headers) in [(Family::V4, 28), (Family::V6, 48)] {
        let most = u16::try_from(sent(outer, 1500).0 + headers).unwrap();
        for (mtu, whole) in [(most + 1, true), (most, true), (most - 1, false)] {
            assert_eq!(sent(outer, mtu).1, whole, "{outer:?} {mtu}");
        }
    }
}

/// What routers say of the way to one peer holds for it, and for no other.
#[test]
fn path_mtu_applies_per_peer() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::new(&setup);
    let (_, peer) = setup.gateways(PairDirection::LeftToRight);
    let told = |pair: &mut TestGatewayPair| {
        let (_, host) = pair.left.outbound(vec![packets::dont_fragment(of_length(1500))]);
        let answer = IpPacket::parse(host[0].bytes()).unwrap();
        Icmp::parse(answer.upper(host[0].bytes())).unwrap().header.mtu()
    };
    for (to, path, fits) in [
        (peer, 1300, 1246),
        (peer, 1400, 1346),
        (peer, 9000, 1446),
        ("192.0.2.77".parse().unwrap(), 1300, 1446),
    ] {
        let addresses = setup.settings.addresses.clone();
        let path_mtus = [(to, path)].into_iter().collect();
        pair.left.database.set_host(HostView { addresses, mtu: 1500, path_mtus });
        assert_eq!(told(&mut pair), Some(fits), "{to} takes {path}");
        let (wire, _) = pair.left.outbound(vec![of_length(1446)]);
        let most = if fits == 1446 { 1500 } else { path };
        assert!(wire.iter().all(|packet| packet.len() <= most.into()));
        assert_eq!(wire.len(), if fits == 1446 { 1 } else { 2 }, "in fragments");
    }
}

/// A path MTU below the minimum counts as the minimum: reports raise an event only until the host
/// knows.
#[test]
fn path_mtu_below_minimum_raises_event_until_known() {
    for (outer, least) in [(Family::V4, 552), (Family::V6, 1280)] {
        let setup = IpsecSetup::new(Mode::Tunnel, Family::V4, outer);
        let mut pair = TestGatewayPair::new(&setup);
        let (_, peer) = setup.gateways(PairDirection::LeftToRight);
        let told = |pair: &TestGatewayPair, mtu| {
            let mut events = Vec::new();
            pair.left.worker.learn_path_mtu(peer, mtu, &mut events);
            events == [Event::NarrowPath(peer)]
        };
        assert!([least, 1, least - 1].map(|mtu| told(&pair, mtu)) == [true; 3], "nobody knows yet");
        let addresses = setup.settings.addresses.clone();
        let path_mtus = [(peer, u16::try_from(least).unwrap())].into_iter().collect();
        pair.left.database.set_host(HostView { addresses, mtu: 1500, path_mtus });
        pair.left.outbound(vec![of_length(100)]);
        assert_eq!([least, 1, least - 1].map(|mtu| told(&pair, mtu)), [false; 3], "{outer:?}");
    }
}

#[test]
fn icmp_errors_skip_errors_and_are_rate_limited() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let (left, right) = ("10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap());
    let mut error = vec![3, 4, 0, 0, 0, 0, 0, 0];
    error.resize(1480, 0);
    let error = PacketBuf::from_slice(&packets::ip(left, right, Protocol::ICMP, &error));
    let (_, host) = pair.left.outbound(vec![packets::dont_fragment(error)]);
    assert!(host.is_empty());
    let many = (0..200).map(|_| packets::dont_fragment(of_length(1500))).collect();
    assert!(pair.left.outbound(many).1.len() <= 50);
    assert_eq!(pair.left.drops(DropReason::OutTooBig), 201);
}

#[test]
fn outer_packet_without_df_is_fragmented() {
    for (mode, outer) in
        [(Mode::Tunnel, Family::V4), (Mode::Tunnel, Family::V6), (Mode::Transport, Family::V4)]
    {
        for encap in [None, Some(UdpEncapKind::Esp)] {
            let setup = IpsecSetup { encap, ..IpsecSetup::new(mode, Family::V4, outer) };
            let mut pair = TestGatewayPair::new(&setup);
            let (source, destination) = setup.hosts(PairDirection::LeftToRight);
            let packet = packets::echo(source, destination, &vec![7; 4000]);
            let plain = packet.bytes().to_vec();
            let arrived = pair.left_to_right(vec![packet]);
            assert!(pair.last_on_wire.len() > 2, "{setup:?}");
            assert!(pair.last_on_wire.iter().all(|packet| packet.len() <= 1500));
            assert_eq!(arrived.len(), 1, "{setup:?} {:?}", pair.right.reasons());
            assert!(arrived[0].bytes() == plain, "{setup:?}");
            pair.assert_accounts();
        }
    }
}

#[test]
fn fragments_time_out() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let (mut wire, _) = pair.left.outbound(vec![of_length(4000)]);
    let last = wire.pop().unwrap();
    assert!(pair.right.inbound(wire).is_empty());
    pair.assert_accounts();
    assert_eq!(pair.right.worker.inward().held, 2);
    pair.wait(Duration::from_secs(31));
    assert!(pair.right.inbound(vec![last]).is_empty());
    assert_eq!(pair.right.drops(DropReason::InFragment), 2);
    pair.assert_accounts();
}

#[test]
fn overlapping_fragments_drop_datagram() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let plain = packets::udp_bytes("192.0.2.1:1", "192.0.2.2:2", &[0; 100]);
    let mut fragments = packets::fragments(&plain, 48);
    let overlapping = packets::fragments(&plain, 32).remove(1);
    let rest = fragments.split_off(1);
    assert!(pair.right.inbound(fragments).is_empty());
    assert!(pair.right.inbound(vec![overlapping]).is_empty());
    assert_eq!(pair.right.drops(DropReason::InFragment), 2);
    assert!(pair.right.inbound(rest).is_empty());
    pair.assert_accounts();
}

/// To a host behind the gateway as they are; to the gateway itself put together.
#[test]
fn fragments_travel_through_tunnels() {
    let mut tunnel = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let own = packets::udp_bytes(LEFT, RIGHT, &[9; 1000]);
    let arrived = tunnel.left_to_right(packets::fragments(&own, 400));
    assert!(arrived.len() == 1 && arrived[0].bytes() == own);
    let other = packets::udp_bytes(LEFT, "10.2.0.77:9", &[9; 1000]);
    let arrived = tunnel.left_to_right(packets::fragments(&other, 400));
    assert_eq!(arrived.len(), 3);
    assert!(matches!(
        IpPacket::parse(arrived[2].bytes()).unwrap().fragment,
        Fragment::Later { more: false, .. }
    ));
}

#[test]
fn tfc_padding_hides_lengths() {
    let setup = IpsecSetup { tfc_padding: 1200, ..IpsecSetup::tunnel4() };
    let mut pair = TestGatewayPair::new(&setup);
    let sent = vec![of_length(40), of_length(700), of_length(1100)];
    let plain: Vec<_> = sent.iter().map(|packet| packet.bytes().to_vec()).collect();
    let arrived = pair.left_to_right(sent);
    let lengths: Vec<_> = pair.last_on_wire.iter().map(PacketBuf::len).collect();
    assert!(lengths.iter().all(|len| *len == lengths[0]), "{lengths:?}");
    assert_eq!(arrived.iter().map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>(), plain);
}

#[test]
fn outer_headers_follow_the_flags() {
    let outer = |flags, extra_flags, packet| {
        let mut pair =
            TestGatewayPair::new(&IpsecSetup { flags, extra_flags, ..IpsecSetup::tunnel4() });
        assert_eq!(pair.left_to_right(vec![packet]).len(), 1);
        let ip = IpPacket::parse(pair.last_on_wire[0].bytes()).unwrap();
        (ip.tos, ip.dont_fragment)
    };
    let plain = || packets::dont_fragment(packets::with_tos(of_length(100), 0xba));
    let (none, no_extra) = (SaFlags::empty(), SaExtraFlags::empty());
    assert_eq!(outer(none, no_extra, plain()), (0xba, true));
    assert_eq!(outer(SaFlags::NOECN, no_extra, plain()), (0xb8, true));
    assert_eq!(outer(SaFlags::NOPMTUDISC, no_extra, plain()), (0xba, false));
    assert_eq!(outer(none, SaExtraFlags::DONT_ENCAP_DSCP, plain()), (0x02, true));
    assert_eq!(outer(none, no_extra, of_length(100)), (0, false));
}

/// Transport between the hosts, inside a tunnel between the gateways.
#[test]
fn nested_sas_round_trip() {
    for encap in [None, Some(UdpEncapKind::Esp)] {
        let outer = IpsecSetup { encap, ..IpsecSetup::tunnel4() };
        let mut pair = TestGatewayPair::without_sas(&outer);
        let between_hosts = |way, spi| {
            let mut config = IpsecSetup::transport4().sa(way, spi);
            (config.source, config.id.destination) = outer.hosts(way);
            config.reqid = Reqid(2);
            config
        };
        for gateway in [&mut pair.left, &mut pair.right] {
            for (way, spi) in
                [(PairDirection::LeftToRight, 0x2000), (PairDirection::RightToLeft, 0x2001)]
            {
                gateway.add_sa(outer.sa(way, spi));
                gateway.add_sa(between_hosts(way, spi + 0x1000));
            }
        }
        for (gateway, out, back) in [
            (&mut pair.left, PairDirection::LeftToRight, PairDirection::RightToLeft),
            (&mut pair.right, PairDirection::RightToLeft, PairDirection::LeftToRight),
        ] {
            for (direction, way) in [(Direction::Out, out), (Direction::In, back)] {
                let mut policy = outer.policy(direction, way);
                let mut inner = outer.template(way);
                (inner.mode, inner.reqid) = (Mode::Transport, Reqid(2));
                (inner.source, inner.destination) = outer.hosts(way);
                policy.templates.insert(0, inner);
                gateway.database.apply(gateway.now, |change| change.update_policy(policy)).unwrap();
            }
        }
        for len in [40, 41, 42, 500, 1380] {
            let packet = of_length(len);
            let plain = packet.bytes().to_vec();
            let arrived = pair.left_to_right(vec![packet]);
            assert_eq!(arrived.len(), 1, "{:?} {:?}", pair.left.reasons(), pair.right.reasons());
            assert_eq!(arrived[0].bytes(), plain);
        }
        // Only the outer one is not enough.
        let mut lone = TestGatewayPair::new(&outer);
        let wire = lone.left.outbound(vec![of_length(100)]).0;
        pair.right.add_sa(outer.sa(PairDirection::LeftToRight, uxfrm_testkit::FIRST_SPI));
        assert!(pair.right.inbound(wire).is_empty());
        assert_eq!(pair.right.drops(DropReason::InOtherState), 1);
        pair.assert_accounts();
    }
}

#[test]
fn udp_path_has_outer_header_fields() {
    for (mode, source, destination) in
        [(Mode::Transport, "192.0.2.1:7", "192.0.2.2:9"), (Mode::Tunnel, LEFT, RIGHT)]
    {
        let encap = Some(UdpEncapKind::Esp);
        let mut setup = IpsecSetup { encap, ..IpsecSetup::new(mode, Family::V4, Family::V4) };
        setup.settings.headers = WireHeaders::UdpSocket;
        let mut pair = TestGatewayPair::new(&setup);
        let plain = packets::with_tos(packets::udp(source, destination, b"payload"), 0xba);
        let mut wire = pair.left.outbound(vec![packets::dont_fragment(plain)]).0;
        let path = wire[0].udp.unwrap();
        assert_eq!(
            (path.local, path.remote),
            ("192.0.2.1:4500".parse().unwrap(), "192.0.2.2:4500".parse().unwrap())
        );
        assert_eq!((path.tos, path.dont_fragment), (0xba, true));
        // Congestion on the way reaches the packet inside.
        let (local, remote) = (path.remote, path.local);
        wire[0].udp = Some(uxfrm_packet::UdpPath { local, remote, tos: 0xbb, ..path });
        let arrived = pair.right.inbound(wire);
        assert_eq!(IpPacket::parse(arrived[0].bytes()).unwrap().tos, 0xbb, "{mode:?}");
    }
}

#[test]
fn ce_over_not_ect_drops_packet() {
    for (inner, expected) in [(0x02, 0x03), (0x01, 0x03), (0x03, 0x03)] {
        let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
        let mut wire = pair.left.outbound(vec![packets::with_tos(of_length(100), inner)]).0;
        let marked = packets::with_tos(wire.remove(0), 0x03);
        let arrived = pair.right.inbound(vec![marked]);
        assert_eq!(IpPacket::parse(arrived[0].bytes()).unwrap().tos, expected);
    }
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let wire = pair.left.outbound(vec![of_length(100)]).0.remove(0);
    assert!(pair.right.inbound(vec![packets::with_tos(wire, 0x03)]).is_empty());
    assert_eq!(pair.right.drops(DropReason::InEcn), 1);
}

/// A TUN may take more than the network does (`[host] mtu`), and what policies let pass goes by raw
/// sockets, which cut nothing.
#[test]
fn plain_packet_above_mtu_is_fragmented_or_answered() {
    let settings = Settings { headers: WireHeaders::UdpSocket, ..Settings::default() };
    let setup = IpsecSetup { settings, ..IpsecSetup::tunnel4() };
    let long = || packets::udp("10.1.0.1:7", "198.51.100.1:9", &[7; 4000]);
    let segments = || packets::tcp_super("10.1.0.1:7", "198.51.100.1:9", &[7; 9000], 3000);
    let mut pair = TestGatewayPair::new(&setup);
    for (packet, fragments) in [(long(), 3), (segments(), 9)] {
        let (wire, told) = pair.left.outbound(vec![packet]);
        assert_eq!((wire.len(), told.len()), (fragments, 0));
        assert!(wire.iter().all(|fragment| fragment.len() <= 1500));
    }
    let mut fragments = packets::fragments(long().bytes(), 3200);
    let last = fragments.pop().unwrap();
    let (wire, _) = pair.left.outbound(vec![last, fragments.pop().unwrap()]);
    assert!(wire.iter().all(|fragment| fragment.len() <= 1500));
    let offsets =
        wire.iter().map(|fragment| u16::from_be_bytes([fragment.bytes()[6], fragment.bytes()[7]]));
    assert_eq!(offsets.collect::<Vec<_>>(), [400, 0x2000, 0x2000 + 185, 0x2000 + 370]);
    for whole in [long(), segments()] {
        let (wire, told) = pair.left.outbound(vec![packets::dont_fragment(whole)]);
        assert_eq!((wire.len(), told.len()), (0, 1));
        let [high, low] = *told[0].bytes()[26..].first_chunk().unwrap();
        assert_eq!(
            (told[0].bytes()[20..22].to_vec(), u16::from_be_bytes([high, low])),
            (vec![3, 4], 1500)
        );
    }
    let six = packets::udp("[fd00:1::1]:7", "[2001:db8:9::1]:9", &[7; 2000]);
    let (wire, told) = pair.left.outbound(vec![six]);
    assert_eq!((wire.len(), told.len()), (0, 1));
    pair.left.assert_packets_accounted();
}
