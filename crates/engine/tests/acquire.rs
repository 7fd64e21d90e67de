//! Packets without an SA: acquires, queueing, order of release, and time-outs.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::time::Duration;

use uxfrm_engine::{
    AcquireQueueLimits, Action, Cpu, Direction, DropReason, Event, Family, FlowKey, IfId, Mark,
    Mode, Moment, Output, PolicyFlags, PolicyKind, ReplayConfig, Reqid, SaConfig, SaProtocol,
    SaRequest, Spi, Template, TemplateLevel, Worker,
};
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

/// The length identifies the datagram.
fn datagram(number: usize) -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", &vec![0; 100 + number])
}

fn expected(number: usize) -> Vec<u8> {
    datagram(number).bytes().to_vec()
}

/// The left one of two gateways without SAs, with a key manager listening.
fn waiting(setup: &IpsecSetup) -> TestGatewayPair {
    let mut pair = TestGatewayPair::without_sas(setup);
    pair.left.listen([]);
    pair
}

fn wanted_of(gateway: &TestGateway) -> Vec<SaRequest> {
    let wanted = |event: &Event| match event {
        Event::Acquire { wanted, .. } => Some(*wanted),
        Event::SaSoftLimit(_)
        | Event::SaHardLimit(_)
        | Event::PolicySoftLimit(..)
        | Event::PolicyHardLimit(..)
        | Event::Mapping { .. }
        | Event::NarrowPath(_) => None,
    };
    gateway.events.iter().filter_map(wanted).collect()
}

/// Sends an empty batch, so that queued packets may leave.
fn nudge(gateway: &mut TestGateway) -> Vec<PacketBuf> {
    gateway.outbound(Vec::new()).0
}

#[test]
fn packets_of_one_template_send_one_acquire() {
    let setup = IpsecSetup::tunnel4();
    let mut left = waiting(&setup).left;
    assert!(left.outbound(vec![datagram(0), datagram(1)]).0.is_empty());
    let other_flow = packets::tcp("10.1.0.5:1", "10.2.3.4:80", 1, b"syn");
    assert!(left.outbound(vec![other_flow]).0.is_empty());
    assert_eq!((left.events.len(), left.worker.waiting()), (1, 3));
    let (source, destination) = setup.gateways(PairDirection::LeftToRight);
    let wanted = SaRequest {
        source,
        destination,
        protocol: SaProtocol::Esp,
        spi: Spi(0),
        mode: Mode::Tunnel,
        reqid: Reqid(1),
        mark: Mark::default(),
        if_id: IfId(0),
        pcpu: None,
    };
    let flow = FlowKey {
        source: "10.1.0.1".parse().unwrap(),
        destination: "10.2.0.1".parse().unwrap(),
        protocol: 17,
        source_port: 7,
        destination_port: 9,
        mark: 0,
        if_id: 0,
        ifindex: 0,
    };
    let Event::Acquire { policy, template: 0, wanted: told, flow: asked } = left.events[0] else {
        panic!("{:?}", left.events);
    };
    assert_eq!((policy.0 & 7, told, asked), (1, wanted, flow));
    left.assert_packets_accounted();
}

#[test]
fn queued_packets_leave_in_order_before_later_ones() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = waiting(&setup);
    pair.left.outbound(vec![datagram(0), datagram(1)]);
    let long = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 4000], 1000);
    pair.left.outbound(vec![long, datagram(2)]);
    assert_eq!(pair.left.worker.outward().held, 7, "a super-packet is the packets that it holds");
    pair.left.assert_packets_accounted();
    pair.add_sas(&setup, FIRST_SPI);
    let there = pair.left_to_right(vec![datagram(3)]);
    let lens: Vec<_> = there.iter().map(|packet| packet.len()).collect();
    assert_eq!(lens, [128, 129, 1040, 1040, 1040, 1040, 130, 131]);
    assert_eq!(there[0].bytes(), expected(0));
    assert_eq!((pair.left.worker.waiting(), pair.left.worker.outward().held), (0, 0));
    assert_eq!(pair.left.reasons(), []);
    pair.assert_accounts();
}

#[test]
fn queued_packet_is_counted_by_policy_once() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = waiting(&setup);
    pair.left.outbound(vec![datagram(0)]);
    for spi in 1..4 {
        let other = SaConfig { reqid: Reqid(77), ..setup.sa(PairDirection::LeftToRight, spi) };
        pair.left.add_sa(other);
        assert!(nudge(&mut pair.left).is_empty(), "a state of another template");
    }
    pair.add_sas(&setup, FIRST_SPI);
    assert_eq!(nudge(&mut pair.left).len(), 1);
    let snapshot = pair.left.database.snapshot();
    let out =
        |entry: &&std::sync::Arc<uxfrm_engine::PolicyEntry>| entry.direction() == Direction::Out;
    let entry = snapshot.spd.iter().find(out).unwrap();
    assert_eq!((entry.packets(), entry.bytes()), (1, 128));
    assert_eq!(pair.left.events.len(), 1, "asked once all the while");
}

#[test]
fn unanswered_acquire_drops_queued_packets() {
    let mut pair = waiting(&IpsecSetup::tunnel4());
    pair.left.outbound(vec![datagram(0), datagram(1)]);
    pair.wait(Duration::from_millis(29_999));
    pair.left.outbound(vec![datagram(2)]);
    assert_eq!((pair.left.reasons(), pair.left.worker.waiting()), (vec![], 3));
    pair.wait(Duration::from_millis(1));
    assert!(nudge(&mut pair.left).is_empty());
    assert_eq!(pair.left.reasons(), [(DropReason::OutAcquireFailed, 3)]);
    pair.left.assert_packets_accounted();
    pair.left.outbound(vec![datagram(3)]);
    assert_eq!((pair.left.events.len(), pair.left.worker.waiting()), (2, 1), "asked again");
}

#[test]
fn queue_timeout_is_larval_lifetime() {
    let mut left = waiting(&IpsecSetup::tunnel4()).left;
    left.outbound(vec![datagram(0)]);
    let wanted = wanted_of(&left)[0];
    left.listen([(wanted, Moment::from_secs(100))]);
    left.now = Moment::from_secs(99);
    nudge(&mut left);
    assert_eq!((left.reasons(), left.worker.waiting()), (vec![], 1));
    // A key manager gave up and deleted the larval SA.
    left.listen([]);
    nudge(&mut left);
    assert_eq!(left.reasons(), [(DropReason::OutAcquireFailed, 1)]);
    assert_eq!(left.events.len(), 1, "what is given up is not asked for by what was waiting");
}

#[test]
fn packets_without_key_manager_are_dropped_at_once() {
    let mut left = TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left;
    assert!(left.outbound(vec![datagram(0)]).0.is_empty());
    assert_eq!(left.reasons(), [(DropReason::OutNoState, 1)]);
    assert_eq!((left.events.len(), left.worker.waiting()), (0, 0));
}

#[test]
fn workers_share_pending_acquires() {
    let mut left = waiting(&IpsecSetup::tunnel4()).left;
    left.outbound(vec![datagram(0)]);
    let wanted = wanted_of(&left)[0];
    left.listen([(wanted, Moment::from_secs(31))]);
    let settings = left.worker.settings().clone();
    let mut other = Worker::new(settings, &left.database.published()).unwrap();
    let (mut pool, mut out) = (Pool::new(), Output::default());
    let mut send = |at| {
        let mut batch: Batch = [datagram(1)].into_iter().collect();
        other.outbound(&mut batch, Moment::from_secs(at), &mut pool, &mut out);
        (other.waiting(), out.events.len())
    };
    assert_eq!(send(20), (1, 0), "it waits, and does not ask");
    // All queues expire at once.
    left.listen([]);
    assert_eq!(send(31), (1, 1), "the old one is dropped, the new one asks");
}

#[test]
fn full_queue_drops_newest_packet() {
    let patience = |patience: AcquireQueueLimits| {
        let mut setup = IpsecSetup::tunnel4();
        setup.settings.acquire_queue = patience;
        let mut pair = waiting(&setup);
        pair.left.outbound((0..150).map(datagram).collect());
        let full = pair.left.drops(DropReason::OutWaitFull);
        pair.left.assert_packets_accounted();
        pair.add_sas(&setup, FIRST_SPI);
        let there = pair.left_to_right(Vec::new());
        assert_eq!(there.len() as u64 + full, 150);
        for (number, packet) in there.iter().enumerate() {
            assert_eq!(packet.bytes(), expected(number), "the oldest are kept, in order");
        }
        there.len()
    };
    let plenty = AcquireQueueLimits {
        bytes_per_sa: 1 << 30,
        bytes: 1 << 30,
        packets_per_sa: 999,
        packets: 999,
    };
    let size = datagram(0).capacity();
    assert_eq!(patience(AcquireQueueLimits::default()), 100, "as many as in Linux");
    assert_eq!(patience(plenty), 150);
    assert_eq!(patience(AcquireQueueLimits { packets_per_sa: 3, ..plenty }), 3);
    assert_eq!(patience(AcquireQueueLimits { packets: 4, ..plenty }), 4);
    assert_eq!(patience(AcquireQueueLimits { bytes_per_sa: size + 1, ..plenty }), 1);
    assert_eq!(patience(AcquireQueueLimits { bytes: 2 * size + 1, ..plenty }), 2);
}

#[test]
fn queued_packets_never_leave_plain() {
    let mut left = waiting(&IpsecSetup::tunnel4()).left;
    left.outbound(vec![datagram(0)]);
    left.database.apply(left.now, |change| change.flush_policies(PolicyKind::Main));
    assert!(nudge(&mut left).is_empty());
    assert_eq!(left.reasons(), [(DropReason::OutPolicyGone, 1)]);
    assert_eq!(left.outbound(vec![datagram(0)]).0.len(), 1, "what comes later passes");
}

#[test]
fn block_policy_sends_no_acquire() {
    let setup = IpsecSetup::tunnel4();
    let mut left = waiting(&setup).left;
    let mut block = setup.policy(Direction::Out, PairDirection::LeftToRight);
    block.action = Action::Block;
    left.database.apply(left.now, |change| change.update_policy(block)).unwrap();
    left.outbound(vec![datagram(0)]);
    assert_eq!((left.reasons(), left.events.len()), (vec![(DropReason::OutPolicyBlock, 1)], 0));
}

#[test]
fn packets_of_every_mode_and_family_are_queued() {
    let both = [Family::V4, Family::V6];
    let tunnels = both.map(|inner| both.map(|outer| IpsecSetup::new(Mode::Tunnel, inner, outer)));
    let transports = both.map(|family| IpsecSetup::new(Mode::Transport, family, family));
    for setup in tunnels.into_iter().flatten().chain(transports) {
        let mut pair = waiting(&setup);
        let (source, destination) = setup.hosts(PairDirection::LeftToRight);
        assert!(pair.left.outbound(vec![packets::echo(source, destination, b"one")]).0.is_empty());
        let [wanted] = wanted_of(&pair.left)[..] else { panic!("{:?}", pair.left.events) };
        assert_eq!((wanted.source, wanted.destination), setup.gateways(PairDirection::LeftToRight));
        assert_eq!(wanted.mode, setup.mode);
        pair.add_sas(&setup, FIRST_SPI);
        let there = pair.left_to_right(vec![packets::echo(source, destination, b"two")]);
        assert_eq!(there.len(), 2);
        assert_eq!(there[0].bytes(), packets::echo(source, destination, b"one").bytes());
    }
}

#[test]
fn template_without_source_requests_host_address() {
    let setup = IpsecSetup::tunnel4();
    let mut left = waiting(&setup).left;
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    policy.templates[0].source = Family::V4.unspecified();
    left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
    left.outbound(vec![datagram(0)]);
    let own = left.worker.settings().addresses.like("192.0.2.2".parse().unwrap());
    assert_eq!(Some(wanted_of(&left)[0].source), own);
}

#[test]
fn acquire_has_mark_and_if_id_of_policy() {
    let setup = IpsecSetup::tunnel4();
    let mut left = waiting(&setup).left;
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    policy.mark = Mark { value: 5, mask: 0xff };
    policy.if_id = IfId(42);
    left.add_policy(policy);
    let marked = || {
        let mut packet = datagram(0);
        (packet.mark, packet.if_id) = (0x105, 42);
        packet
    };
    left.outbound(vec![marked()]);
    left.outbound(vec![datagram(0)]);
    let all = wanted_of(&left);
    let words: Vec<_> = all.iter().map(|wanted| (wanted.mark, wanted.if_id)).collect();
    assert_eq!(words, [(Mark { value: 5, mask: 0xff }, IfId(42)), (Mark::default(), IfId(0))]);
    let sa = SaConfig {
        mark: Mark { value: 5, mask: 0xff },
        if_id: IfId(42),
        ..setup.sa(PairDirection::LeftToRight, FIRST_SPI)
    };
    left.add_sa(sa);
    assert_eq!((nudge(&mut left).len(), left.worker.waiting()), (1, 1));
    assert_eq!(left.outbound(vec![marked()]).0.len(), 1);
}

#[test]
fn templates_are_acquired_one_after_another() {
    let setup = IpsecSetup::tunnel4();
    let mut left = waiting(&setup).left;
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    policy.templates.push(Template {
        mode: Mode::Transport,
        reqid: Reqid(2),
        ..policy.templates[0]
    });
    left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
    left.outbound(vec![datagram(0)]);
    left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
    assert!(nudge(&mut left).is_empty());
    let reqids: Vec<_> = wanted_of(&left).iter().map(|wanted| wanted.reqid).collect();
    assert_eq!(reqids, [Reqid(1), Reqid(2)]);
    let (reqid, mode) = (Reqid(2), Mode::Transport);
    left.add_sa(SaConfig { reqid, mode, ..setup.sa(PairDirection::LeftToRight, FIRST_SPI + 2) });
    let wire = nudge(&mut left);
    assert_eq!((wire.len(), wire[0].bytes()[9]), (1, 50));
    assert_eq!(left.reasons(), []);
}

/// A gateway whose worker needs its own SA, and its setup.
fn with_cpu_acquire() -> (IpsecSetup, TestGateway) {
    let mut setup = IpsecSetup::tunnel4();
    setup.settings.cpu = Cpu(3);
    let mut left = waiting(&setup).left;
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    policy.flags |= PolicyFlags::CPU_ACQUIRE;
    left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
    (setup, left)
}

/// `flag cpu-acquire` (RFC 9611): the first SA is for all; then each worker acquires its own, and
/// sends by the first meanwhile.
#[test]
fn cpu_acquire_uses_fallback_meanwhile() {
    let (setup, mut left) = with_cpu_acquire();
    left.outbound(vec![datagram(0)]);
    let state = |spi, pcpu| SaConfig {
        direction: Some(Direction::Out),
        replay: ReplayConfig::default(),
        pcpu,
        ..setup.sa(PairDirection::LeftToRight, spi)
    };
    left.add_sa(state(FIRST_SPI, None));
    let spi_of = |wire: &[PacketBuf]| wire[0].bytes()[20..24].to_vec();
    let spi = |number: u32| number.to_be_bytes().to_vec();
    assert_eq!(spi_of(&nudge(&mut left)), spi(FIRST_SPI), "what waited leaves by the fallback");
    let asked: Vec<_> = wanted_of(&left).iter().map(|wanted| wanted.pcpu).collect();
    assert_eq!(asked, [None, Some(Cpu(3))]);
    left.add_sa(state(FIRST_SPI + 2, Some(Cpu(2))));
    assert_eq!(spi_of(&left.outbound(vec![datagram(1)]).0), spi(FIRST_SPI), "not by another's");
    left.add_sa(state(FIRST_SPI + 4, Some(Cpu(3))));
    assert_eq!(spi_of(&left.outbound(vec![datagram(2)]).0), spi(FIRST_SPI + 4));
    assert_eq!((left.reasons(), left.worker.waiting()), (vec![], 0));
    left.assert_packets_accounted();
}

/// A flow cached with the fallback acquires again once the larval SA has gone, alone and in
/// batches.
#[test]
fn cpu_acquire_is_repeated_for_cached_flow() {
    let (setup, mut left) = with_cpu_acquire();
    left.add_sa(SaConfig {
        direction: Some(Direction::Out),
        replay: ReplayConfig::default(),
        ..setup.sa(PairDirection::LeftToRight, FIRST_SPI)
    });
    for (times, count) in [1, 3, 1, 3].into_iter().enumerate() {
        for _ in 0..4 {
            let (wire, _) = left.outbound((0..count).map(|_| datagram(0)).collect());
            assert_eq!(wire.len(), count);
        }
        assert_eq!(wanted_of(&left).len(), times + 1, "with {count} packets");
        left.now = left.now.plus(Duration::from_secs(30));
    }
}

#[test]
fn optional_template_sends_acquire_and_passes() {
    let setup = IpsecSetup::transport4();
    let mut left = waiting(&setup).left;
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    policy.templates[0].level = TemplateLevel::Use;
    left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
    let packet = || packets::udp("192.0.2.1:7", "192.0.2.2:9", b"plain");
    for _ in 0..3 {
        let (wire, _) = left.outbound(vec![packet(), packet()]);
        assert_eq!((wire.len(), wire[0].bytes()[9]), (2, 17));
    }
    assert_eq!(left.events.len(), 1);
    left.now = left.now.plus(Duration::from_secs(30));
    left.outbound(vec![packet()]);
    assert_eq!(left.events.len(), 2, "again when the larval state has gone");
    left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
    assert_eq!(left.outbound(vec![packet()]).0[0].bytes()[9], 50);
}

#[test]
fn wrong_sa_with_template_spi_sends_no_acquire() {
    let setup = IpsecSetup::tunnel4();
    let mut left = waiting(&setup).left;
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    policy.templates[0].spi = Spi(FIRST_SPI);
    left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
    left.add_sa(SaConfig { reqid: Reqid(9), ..setup.sa(PairDirection::LeftToRight, FIRST_SPI) });
    left.outbound(vec![datagram(0)]);
    assert_eq!((left.reasons(), left.events.len()), (vec![(DropReason::OutNoState, 1)], 0));
}
