//! Runs of one SA are opened in place: a packet that differs takes the slow path, in order.

use std::time::Duration;

use uxfrm_engine::{
    DeviceId, DeviceMetadata, DeviceStatus, DropReason, Event, HostPort, Mode, OffloadKind,
    ReceivedPacket, Settings, SoftHardLimit, UdpSuper,
};
use uxfrm_packet::{Checksum, PacketBuf, Protocol, Segments};
use uxfrm_testkit::{EspSuite, IpsecSetup, PairDirection, TestGatewayPair, packets};

use crate::{Outside, batches_as_one_by_one, gateway, shapes};

#[test]
fn long_runs_agree_with_single_packets() {
    let passed = batches_as_one_by_one(5, [1, 20, 64, 150, 256], 36);
    assert!(passed > 80_000, "{passed} passed");
}

fn datagram(number: usize) -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", &number.to_be_bytes())
}

/// Which datagrams these are, by their numbers.
pub(crate) fn numbers(arrived: &[PacketBuf]) -> Vec<usize> {
    let number =
        |packet: &PacketBuf| usize::from_be_bytes(*packet.bytes()[28..].first_chunk().unwrap());
    arrived.iter().map(number).collect()
}

/// Nothing in it is encrypted, so that they look right inside and are forged all the same.
#[test]
fn forged_packets_in_run_are_dropped_alone() {
    for suite in [EspSuite::NullSha1, EspSuite::Gcm128, EspSuite::CbcSha1] {
        let mut pair = TestGatewayPair::new(&IpsecSetup { suite, ..IpsecSetup::tunnel4() });
        for (round, forged) in
            [vec![], vec![], vec![39], vec![20], vec![30, 31, 35], vec![0]].into_iter().enumerate()
        {
            let mut wire = pair.left.outbound((0..40).map(datagram).collect()).0;
            for at in &forged {
                *wire[*at].bytes_mut().last_mut().unwrap() ^= 1;
            }
            let arrived = pair.right.inbound(wire);
            let expected: Vec<_> = (0..40).filter(|at| !forged.contains(at)).collect();
            assert_eq!(numbers(&arrived), expected, "{suite:?}, round {round}");
        }
        assert_eq!(pair.right.reasons(), [(DropReason::InForged, 6)]);
        let snapshot = pair.right.database.snapshot();
        let state = snapshot.sad.iter().find(|state| state.usage().packets() > 0).unwrap();
        assert_eq!(state.usage().failures().integrity_failed, 6);
        assert_eq!(state.usage().packets(), 6 * 40 - 6);
        pair.right.assert_packets_accounted();
    }
}

/// Whoever has no key does not keep a policy in use.
#[test]
fn forged_run_uses_no_policy() {
    let mut pair =
        TestGatewayPair::new(&IpsecSetup { suite: EspSuite::NullSha1, ..IpsecSetup::tunnel4() });
    let used = |pair: &TestGatewayPair| {
        let snapshot = pair.right.database.snapshot();
        let met = snapshot.spd.iter().filter(|policy| policy.packets() > 0);
        met.map(|policy| (policy.packets(), policy.last_used())).collect::<Vec<_>>()
    };
    for _ in 0..3 {
        let wire = pair.left.outbound((0..40).map(datagram).collect()).0;
        assert_eq!(pair.right.inbound(wire).len(), 40);
    }
    let before = used(&pair);
    assert_eq!(before.len(), 1);
    pair.wait(Duration::from_secs(10));
    let mut wire = pair.left.outbound((0..40).map(datagram).collect()).0;
    wire.iter_mut().for_each(|packet| *packet.bytes_mut().last_mut().unwrap() ^= 1);
    assert!(pair.right.inbound(wire).is_empty());
    assert_eq!(used(&pair), before);
    let wire = pair.left.outbound((0..40).map(datagram).collect()).0;
    assert_eq!(pair.right.inbound(wire).len(), 40);
    assert_ne!(used(&pair)[0].1, before[0].1);
}

#[test]
fn replays_in_run_are_dropped_alone() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    for _ in 0..3 {
        let wire = pair.left.outbound((0..40).map(datagram).collect()).0;
        // The tenth one comes again as the twentieth, and once more at the end.
        let again = |packet: &PacketBuf| PacketBuf::from_slice(packet.bytes());
        let copies = [again(&wire[10]), again(&wire[10])];
        let [first, second] = copies;
        let mut wire = wire;
        wire.insert(20, first);
        wire.push(second);
        assert_eq!(numbers(&pair.right.inbound(wire)), (0..40).collect::<Vec<_>>());
    }
    assert_eq!(pair.right.reasons(), [(DropReason::InReplay, 6)]);
    pair.right.assert_packets_accounted();
}

/// Those of another flow stay where they were among the others.
#[test]
fn flows_of_one_sa_keep_their_order() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    for round in 0..40 {
        let other = |number: usize| packets::udp("10.1.0.1:8", "10.2.0.1:9", &number.to_be_bytes());
        let is_other = |number: usize| match round % 4 {
            0 => false,
            1 => number == 30,
            2 => number > 20 && number.is_multiple_of(3),
            _ => number.is_multiple_of(2),
        };
        let packets =
            (0..100).map(|number| if is_other(number) { other(number) } else { datagram(number) });
        let wire = pair.left.outbound(packets.collect()).0;
        let sent: Vec<_> = wire.iter().map(|packet| packet.bytes()[24..28].to_vec()).collect();
        assert!(sent.is_sorted(), "round {round}: numbers in the order of packets");
        assert_eq!(
            numbers(&pair.right.inbound(wire)),
            (0..100).collect::<Vec<_>>(),
            "round {round}"
        );
    }
    pair.assert_accounts();
}

/// It looks as packets of its state do, which are known; what policies say of them is asked for
/// each run.
#[test]
fn blocked_run_does_not_pass() {
    let shape = &shapes()[0];
    let mut gateway = gateway();
    let mut number = 0;
    let mut batch = |port| {
        let next = |_| {
            number += 1;
            shape.wrapped(shape.spi, number, &shape.plain(port))
        };
        (0..40).map(next).collect()
    };
    for (port, passing) in [(9, 40), (9999, 0), (9, 40)] {
        for round in 0..30 {
            let arrived = gateway.inbound(batch(port)).len();
            assert_eq!(arrived, passing, "port {port}, round {round}");
        }
    }
    assert_eq!(gateway.reasons(), [(DropReason::InPolicyBlock, 30 * 40)]);
    gateway.assert_packets_accounted();
}

/// In transport mode a packet may have in it what a tunnel's would look like.
#[test]
fn transport_run_is_not_taken_for_tunnel() {
    let shape = &shapes()[9];
    assert_eq!((shape.setup.mode, shape.outside), (Mode::Transport, Outside::Ip));
    let (source, destination) = shape.setup.hosts(PairDirection::LeftToRight);
    let ipip = packets::ip(source, destination, Protocol::IPIP, &shape.plain(9));
    let mut gateway = gateway();
    let mut number = 0;
    for plain in [&shape.plain(9), &ipip, &ipip, &shape.plain(9)] {
        let next = |_| {
            number += 1;
            shape.wrapped(shape.spi, number, plain)
        };
        let arrived = gateway.inbound((0..40).map(next).collect());
        assert_eq!(arrived.len(), 40);
        assert!(arrived.iter().all(|packet| packet.bytes()[9] == plain[9]));
    }
}

/// The state has no device, so nobody knows what that has done with the packets.
#[test]
fn run_with_foreign_device_mark_is_dropped() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    for _ in 0..3 {
        let wire = pair.left.outbound((0..40).map(datagram).collect()).0;
        assert_eq!(pair.right.inbound(wire).len(), 40);
    }
    let metadata = Some(DeviceMetadata {
        device: DeviceId(9),
        handle: None,
        kind: OffloadKind::Crypto,
        status: DeviceStatus::Success,
        high: 0,
    });
    let wire = pair.left.outbound((0..40).map(datagram).collect()).0;
    let received = wire.into_iter().map(|packet| ReceivedPacket { packet, metadata });
    assert!(pair.right.inbound_from_device(received.collect()).is_empty());
    assert_eq!(pair.right.reasons(), [(DropReason::InDeviceMark, 40)]);
}

/// A limit within a batch is exact, and its event is raised once.
#[test]
fn limit_within_run_is_exact() {
    let shape = &shapes()[0];
    let mut gateway = gateway();
    let mut limited = shape.state(0);
    limited.limits.packets = SoftHardLimit { soft: 50, hard: 70 };
    gateway.database.apply(gateway.now, |to| to.update_sa(limited)).unwrap();
    let mut passed = Vec::new();
    for round in 0..5_u32 {
        let batch =
            (1..=20).map(|number| shape.wrapped(shape.spi, 20 * round + number, &shape.plain(9)));
        passed.push(gateway.inbound(batch.collect()).len());
    }
    assert_eq!(passed, [20, 20, 20, 10, 0]);
    let reasons = [(DropReason::InNoState, 20), (DropReason::InStateExpired, 10)];
    assert_eq!(gateway.reasons(), reasons);
    assert!(matches!(gateway.events[..], [Event::SaSoftLimit(_), Event::SaHardLimit(_)]));
    gateway.assert_packets_accounted();
}

#[test]
fn run_is_coalesced() {
    for (udp, datagrams) in [(UdpSuper::Taken, 1), (UdpSuper::Refused, 40)] {
        let settings = Settings { host: HostPort::SuperPackets { udp }, ..Settings::default() };
        let mut pair = TestGatewayPair::new(&IpsecSetup { settings, ..IpsecSetup::tunnel4() });
        for round in 0..4 {
            let sent = (0..40).map(datagram).map(packets::dont_fragment);
            let wire = pair.left.outbound(sent.collect()).0;
            let arrived = pair.right.inbound(wire);
            assert_eq!(arrived.len(), datagrams, "{udp:?}, round {round}");
            let joined = matches!(arrived[0].segments, Segments::Udp { size: 8 });
            assert_eq!(joined, udp == UdpSuper::Taken);
            assert!(!joined || arrived[0].checksum != Checksum::AsIs);
        }
        let segment = |number: u32| {
            packets::dont_fragment(packets::tcp(
                "10.1.0.1:7",
                "10.2.0.1:9",
                number * 100,
                &[7; 100],
            ))
        };
        for round in 0..4 {
            let wire = pair.left.outbound((0..40).map(segment).collect()).0;
            let arrived = pair.right.inbound(wire);
            assert!(
                matches!(arrived[..], [ref one] if one.segments == Segments::Tcp { mss: 100 }),
                "{udp:?}, round {round}"
            );
        }
        pair.assert_accounts();
    }
}
