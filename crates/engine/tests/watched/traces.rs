//! A trace tells what happened to the packet, on each path.

use uxfrm_crypto::OpenStatus;
use uxfrm_engine::{
    Action, BundleOrigin, CacheAnswer, CacheMode, CacheSettings, DatapathKind, Direction,
    DropReason, PacketTrace, PacketWay, PolicyOutcome, Prefix, Settings, Spi, TRACES_WAITING,
    TapFilter, TracePort, TraceReader, TraceStep, UdpEncapKind,
};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

use crate::{Traces, datagram};

const OUT: PairDirection = PairDirection::LeftToRight;

/// What a test looks at.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    path: Option<DatapathKind>,
    outcome: Option<PolicyOutcome>,
    cache: Option<CacheAnswer>,
    policies: usize,
    origin: Option<BundleOrigin>,
    spis: Vec<u32>,
    sequence: Option<u64>,
    opened: Option<OpenStatus>,
    sent: usize,
    delivered: usize,
    answered: bool,
    waits: bool,
    dropped: Option<DropReason>,
}

fn seen(trace: &PacketTrace) -> Seen {
    let mut seen = Seen::default();
    for step in &trace.steps {
        match step {
            TraceStep::Path(path) => seen.path = Some(*path),
            TraceStep::LookUp { outcome, policies, cache, .. } => {
                (seen.outcome, seen.cache) = (Some(*outcome), *cache);
                seen.policies += policies.len();
            }
            TraceStep::Bundle { origin, states, .. } => {
                seen.origin = Some(*origin);
                seen.spis.extend(states.iter().map(|sa| sa.id.spi.0));
            }
            TraceStep::State { sa, sequence } => {
                seen.spis.push(sa.id.spi.0);
                seen.sequence = Some(*sequence);
            }
            TraceStep::Opened(status) => seen.opened = Some(*status),
            TraceStep::Sent { headers, .. } => {
                seen.sent += 1;
                seen.sequence = headers.esp.map(|esp| esp.sequence.into());
            }
            TraceStep::Delivered { .. } => seen.delivered += 1,
            TraceStep::Answered => seen.answered = true,
            TraceStep::Waits => seen.waits = true,
            TraceStep::Dropped(note) => seen.dropped = Some(note.reason),
            TraceStep::HandedOver(device) => panic!("{device:?}"),
        }
    }
    seen
}

fn cached() -> IpsecSetup {
    let cache = CacheSettings { mode: CacheMode::On, ..CacheSettings::default() };
    let settings = Settings { cache: cache.into(), ..Settings::default() };
    IpsecSetup { settings, ..IpsecSetup::tunnel4() }
}

fn left() -> TestGateway {
    TestGatewayPair::new(&cached()).left
}

fn one_by_one(gateway: &mut TestGateway, count: u16) {
    for _ in 0..count {
        gateway.outbound_watched(vec![datagram(7)]);
    }
}

#[test]
fn first_packet_is_looked_up_and_later_ones_are_cached() {
    let mut left = left();
    let traces = Traces::of(&left, TapFilter::default());
    one_by_one(&mut left, 4);
    let all = traces.all();
    let first = seen(&all[0]);
    assert_eq!(first.path, Some(DatapathKind::Slow));
    assert_eq!(
        (first.origin, first.outcome),
        (Some(BundleOrigin::Resolved), Some(PolicyOutcome::Protect))
    );
    assert_ne!(first.cache, Some(CacheAnswer::Hit));
    assert_eq!((first.policies, &*first.spis, first.sent), (1, &[FIRST_SPI][..], 1));
    let last = seen(&all[3]);
    assert_eq!(last.path, Some(DatapathKind::Fast));
    assert_eq!((last.origin, last.cache), (Some(BundleOrigin::Cached), Some(CacheAnswer::Hit)));
    let numbers: Vec<_> = all.iter().map(|trace| seen(trace).sequence).collect();
    assert_eq!(numbers, [Some(1), Some(2), Some(3), Some(4)], "those that were sealed");
    assert_eq!((all[0].way, all[0].port), (PacketWay::Out, TracePort::Host));
    assert_eq!((all[0].len, all[0].packets), (30, 1));
    assert_eq!(&all[0].bytes[..], datagram(7).bytes());
}

#[test]
fn packets_of_a_batch_keep_their_order_and_others_their_path() {
    for flows in [1, 40] {
        let mut pair = TestGatewayPair::new(&cached());
        let batch = || (0..100_u16).map(|place| datagram(1000 + place % flows));
        // The batch before lets flows into the cache.
        for _ in 0..3 {
            pair.left_to_right(batch().collect());
        }
        let traces = Traces::of(&pair.left, TapFilter { port: Some(7), ..TapFilter::default() });
        let mut watched: Vec<PacketBuf> = batch().collect();
        watched.insert(60, datagram(7));
        watched.insert(20, datagram(7));
        let expected: Vec<Vec<u8>> = watched.iter().map(|packet| packet.bytes().to_vec()).collect();
        let wire = pair.left.outbound_watched(watched).0;
        let numbers: Vec<_> =
            traces.all().iter().map(|trace| seen(trace).sequence.unwrap()).collect();
        assert_eq!(numbers, [321, 362], "{flows}: 300 before, and those before in the batch");
        let arrived = pair.right.inbound(wire);
        let arrived: Vec<_> = arrived.iter().map(|packet| packet.bytes().to_vec()).collect();
        assert_eq!(arrived, expected, "{flows}");
        pair.assert_accounts();
    }
}

#[test]
fn packet_without_state_is_dropped_or_waits() {
    let mut left = TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left;
    let traces = Traces::of(&left, TapFilter::default());
    left.outbound_watched(vec![datagram(7)]);
    let dropped = seen(&traces.only());
    assert_eq!((dropped.dropped, dropped.policies), (Some(DropReason::OutNoState), 1));
    left.listen([]);
    left.outbound_watched(vec![datagram(7)]);
    let waits = seen(&traces.only());
    assert!(waits.waits && waits.dropped.is_none() && waits.sent == 0, "{waits:?}");
    left.add_sa(IpsecSetup::tunnel4().sa(OUT, FIRST_SPI));
    let wire = left.outbound_watched(vec![datagram(8)]).0;
    let sent = seen(&traces.only());
    assert_eq!((wire.len(), sent.sent), (2, 1), "what waited is another packet");
    assert_eq!(sent.sequence, Some(2), "and left before");
}

#[test]
fn packet_of_no_policy_leaves_plain_and_blocked_one_not_at_all() {
    let mut left = left();
    let traces = Traces::of(&left, TapFilter::default());
    let elsewhere = packets::udp("10.1.0.1:7", "10.7.0.1:9", b"x");
    left.outbound_watched(vec![elsewhere]);
    let trace = traces.only();
    let plain = seen(&trace);
    assert_eq!((plain.outcome, plain.sent), (Some(PolicyOutcome::Default), 1));
    assert_eq!((plain.path, plain.sequence), (Some(DatapathKind::Slow), None));
    let mut policy = IpsecSetup::tunnel4().policy(Direction::Out, OUT);
    policy.action = Action::Block;
    left.database.apply(left.now, |to| to.update_policy(policy)).unwrap();
    left.outbound_watched(vec![datagram(7)]);
    let blocked = seen(&traces.only());
    assert_eq!(blocked.outcome, Some(PolicyOutcome::Block));
    assert_eq!((blocked.dropped, blocked.sent), (Some(DropReason::OutPolicyBlock), 0));
}

#[test]
fn too_big_packet_is_answered_and_super_packet_goes_slow() {
    let mut left = left();
    let traces = Traces::of(&left, TapFilter::default());
    let large = packets::udp("10.1.0.1:7", "10.2.0.1:9", &[7; 1460]);
    left.outbound_watched(vec![packets::dont_fragment(large)]);
    let answered = seen(&traces.only());
    assert!(answered.answered && answered.sent == 0, "{answered:?}");
    assert_eq!(answered.dropped, Some(DropReason::OutTooBig));
    let joined = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 3000], 1000);
    left.outbound_watched(vec![joined]);
    let trace = traces.only();
    assert_eq!((trace.packets, seen(&trace).path), (3, Some(DatapathKind::Slow)));
    let is_sent = |step: &&TraceStep| matches!(step, TraceStep::Sent { packets: 3, .. });
    assert_eq!(trace.steps.iter().filter(is_sent).count(), 1, "a burst of three");
}

#[test]
fn packets_that_come_in_are_traced_to_the_host() {
    let mut pair = TestGatewayPair::new(&cached());
    let traces = Traces::of(&pair.right, TapFilter::default());
    let wire: Vec<_> = (0..5).flat_map(|_| pair.left.outbound(vec![datagram(7)]).0).collect();
    let copy = PacketBuf::from_slice(wire[4].bytes());
    for packet in wire {
        assert_eq!(pair.right.inbound_watched(vec![packet]).len(), 1);
    }
    let all = traces.all();
    let (first, last) = (seen(&all[0]), seen(&all[4]));
    assert_eq!((first.path, last.path), (Some(DatapathKind::Slow), Some(DatapathKind::Fast)));
    assert_eq!((first.sequence, last.sequence), (Some(1), Some(5)));
    for seen in [&first, &last] {
        assert_eq!((&*seen.spis, seen.opened), (&[FIRST_SPI][..], Some(OpenStatus::Authentic)));
        assert_eq!((seen.outcome, seen.delivered), (Some(PolicyOutcome::Protect), 1));
    }
    assert_eq!(last.cache, Some(CacheAnswer::Hit));
    assert_eq!((all[0].way, all[0].port), (PacketWay::In, TracePort::Wire));
    assert_eq!(all[0].headers.esp.unwrap().spi, Spi(FIRST_SPI));

    pair.right.inbound_watched(vec![copy]);
    assert_eq!(seen(&traces.only()).dropped, Some(DropReason::InReplay));
    let mut forged = pair.left.outbound(vec![datagram(7)]).0;
    let last = forged[0].len() - 1;
    forged[0].bytes_mut()[last] ^= 1;
    pair.right.inbound_watched(forged);
    let forged = seen(&traces.only());
    assert_eq!(forged.opened, Some(OpenStatus::Forged));
    assert_eq!((forged.dropped, forged.delivered), (Some(DropReason::InForged), 0));
    let plain = vec![datagram(7)];
    pair.right.inbound_watched(plain);
    let plain = seen(&traces.only());
    assert!(plain.dropped.is_some() && plain.opened.is_none(), "{plain:?}");
}

#[test]
fn filter_is_for_what_is_inside_and_outside() {
    let host = |text: [u8; 4]| Some(Prefix::host(text.into()));
    let inside = TapFilter { host: host([10, 2, 0, 1]), ..TapFilter::default() };
    let elsewhere = TapFilter { host: host([10, 2, 0, 9]), ..TapFilter::default() };
    let peer = TapFilter { peer: host([192, 0, 2, 2]), ..TapFilter::default() };
    let spi = TapFilter { spi: Some(Spi(FIRST_SPI)), ..TapFilter::default() };
    let other = TapFilter { spi: Some(Spi(7)), ..TapFilter::default() };
    for (filter, is_wanted) in
        [(inside, true), (elsewhere, false), (peer, true), (spi, true), (other, false)]
    {
        let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
        let (sending, receiving) =
            (Traces::of(&pair.left, filter), Traces::of(&pair.right, filter));
        let wire = pair.left.outbound_watched(vec![datagram(7)]).0;
        assert_eq!(pair.right.inbound_watched(wire).len(), 1);
        let expected = usize::from(is_wanted);
        assert_eq!(
            (sending.all().len(), receiving.all().len()),
            (expected, expected),
            "{filter:?}"
        );
    }
}

#[test]
fn trace_ends_after_its_packets_and_with_its_reader() {
    let mut left = left();
    let reader = TraceReader::new(&[left.worker.tap()], TapFilter::default(), 3);
    assert!(left.worker.is_watched());
    let batch = (0..10).map(|_| datagram(7)).collect();
    assert_eq!(left.outbound_watched(batch).0.len(), 10);
    assert_eq!((reader.left(), std::iter::from_fn(|| reader.take()).count()), (0, 3));
    drop(reader);
    assert!(!left.worker.is_watched());
}

#[test]
fn trace_that_nobody_takes_is_made_of_a_later_packet() {
    let mut left = left();
    let most = u32::try_from(TRACES_WAITING).unwrap();
    let reader = TraceReader::new(&[left.worker.tap()], TapFilter::default(), most + 10);
    left.outbound_watched((0..300).map(|_| datagram(7)).collect());
    assert_eq!((reader.left(), reader.passed_over()), (10, 44));
    assert_eq!(std::iter::from_fn(|| reader.take()).count(), TRACES_WAITING);
    left.outbound_watched((0..300).map(|_| datagram(7)).collect());
    assert_eq!((reader.left(), std::iter::from_fn(|| reader.take()).count()), (0, 10));
}

#[test]
fn flood_is_not_traced_packet_by_packet() {
    let mut left = left();
    let traces = Traces::of(&left, TapFilter { spi: Some(Spi(7)), ..TapFilter::default() });
    for _ in 0..15 {
        let batch: Vec<_> = (0..100).map(|_| datagram(7)).collect();
        assert_eq!(left.outbound_watched(batch).0.iter().map(|_| 1).sum::<u32>(), 100);
    }
    assert_eq!((traces.all().len(), traces.0.passed_over()), (0, 500), "1,000 a second are tried");
}

#[test]
fn esp_in_udp_is_traced_by_its_outer_headers() {
    let setup = IpsecSetup { encap: Some(UdpEncapKind::Esp), ..IpsecSetup::tunnel4() };
    let mut pair = TestGatewayPair::new(&setup);
    let traces = Traces::of(&pair.right, TapFilter::default());
    let wire = pair.left.outbound(vec![datagram(7)]).0;
    pair.right.inbound_watched(wire);
    let trace = traces.only();
    let outer = trace.headers.flow.unwrap();
    assert_eq!((outer.protocol, outer.source_port, outer.destination_port), (17, 4500, 4500));
    assert_eq!(trace.headers.esp.unwrap().sequence, 1);
    assert_eq!(seen(&trace).delivered, 1);
}
