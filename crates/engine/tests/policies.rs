//! Which packets policies pass and drop, and the drop reasons.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::time::Duration;

use uxfrm_engine::{
    Action, DefaultActions, Direction, DropReason, Event, Family, LifetimeLimits, Mark, Mode,
    Output, Policy, PolicyFlags, Priority, Reqid, SaProtocol, Selector, SoftHardLimit,
    TemplateLevel,
};
use uxfrm_packet::PacketBuf;
use uxfrm_testkit::{
    FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, inbound_outcome, packets,
};

fn datagram() -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload")
}

/// A datagram for a host behind the right gateway.
fn forwarded() -> PacketBuf {
    packets::udp("10.1.0.5:7", "10.2.0.5:9", b"payload")
}

/// Sealed as a good peer seals it.
fn sealed(packet: PacketBuf) -> Vec<PacketBuf> {
    TestGatewayPair::new(&IpsecSetup::tunnel4()).left.outbound(vec![packet]).0
}

/// The right gateway with its states, and one policy changed.
fn right_with(direction: Direction, change: impl Fn(&mut Policy)) -> TestGateway {
    let setup = IpsecSetup::tunnel4();
    let mut right = TestGatewayPair::new(&setup).right;
    let mut policy = setup.policy(direction, PairDirection::LeftToRight);
    change(&mut policy);
    right.database.apply(right.now, |to| to.update_policy(policy)).unwrap();
    right
}

#[test]
fn template_is_satisfied_only_by_matching_sa() {
    type Transaction = fn(&mut Policy);
    let refused = Err(DropReason::InOtherState);
    let cases: [(&str, Transaction, Result<(), DropReason>); 14] = [
        ("as it is", |_| {}, Ok(())),
        ("any source", |p| p.templates[0].source = Family::V4.unspecified(), Ok(())),
        ("other source", |p| p.templates[0].source = "192.0.2.9".parse().unwrap(), refused),
        (
            "other destination",
            |p| p.templates[0].destination = "192.0.2.9".parse().unwrap(),
            Ok(()),
        ),
        ("any reqid", |p| p.templates[0].reqid = Reqid(0), Ok(())),
        ("other reqid", |p| p.templates[0].reqid = Reqid(9), refused),
        ("its spi", |p| p.templates[0].spi.0 = FIRST_SPI, Ok(())),
        ("other spi", |p| p.templates[0].spi.0 = 77, refused),
        ("any protocol", |p| p.templates[0].protocol = SaProtocol::Any, refused),
        ("transport", |p| p.templates[0].mode = Mode::Transport, refused),
        ("use", |p| p.templates[0].level = TemplateLevel::Use, Ok(())),
        ("none wanted", |p| p.templates.clear(), refused),
        ("blocked", |p| p.action = Action::Block, Err(DropReason::InPolicyBlock)),
        (
            "two wanted",
            |p| {
                let outer = p.templates[0];
                p.templates.push(outer);
            },
            refused,
        ),
    ];
    for (name, change, expected) in cases {
        let local = inbound_outcome(right_with(Direction::In, change), sealed(datagram()));
        let forward = inbound_outcome(right_with(Direction::Forward, change), sealed(forwarded()));
        assert_eq!((local, forward), (expected, expected), "{name}");
    }
}

#[test]
fn plain_packet_under_protect_policy_is_dropped() {
    let refused = Err(DropReason::InUnprotected);
    for packet in [datagram, forwarded] {
        assert_eq!(
            inbound_outcome(TestGatewayPair::new(&IpsecSetup::tunnel4()).right, vec![packet()]),
            refused
        );
    }
    let optional =
        right_with(Direction::In, |policy| policy.templates[0].level = TemplateLevel::Use);
    assert_eq!(inbound_outcome(optional, vec![datagram()]), Ok(()));
    let other = packets::udp("172.16.0.1:7", "10.2.0.1:9", b"not protected");
    assert_eq!(
        inbound_outcome(TestGatewayPair::new(&IpsecSetup::tunnel4()).right, vec![other]),
        Ok(())
    );
}

#[test]
fn tunnel_without_policy_is_refused() {
    let bare = |setup: &IpsecSetup| {
        let mut gateway = TestGatewayPair::new(setup).right;
        let kind = uxfrm_engine::PolicyKind::Main;
        gateway.database.apply(gateway.now, |change| change.flush_policies(kind));
        gateway
    };
    let refused = Err(DropReason::InNoPolicy);
    assert_eq!(inbound_outcome(bare(&IpsecSetup::tunnel4()), sealed(datagram())), refused);
    assert_eq!(inbound_outcome(bare(&IpsecSetup::tunnel4()), vec![datagram()]), Ok(()));
    let transport = IpsecSetup::transport4();
    let packet = packets::udp("192.0.2.1:7", "192.0.2.2:9", b"payload");
    let wire = TestGatewayPair::new(&transport).left.outbound(vec![packet]).0;
    assert_eq!(inbound_outcome(bare(&transport), wire), Ok(()));
    let mut closed = bare(&IpsecSetup::tunnel4());
    let defaults =
        DefaultActions { inbound: Action::Block, forward: Action::Block, outbound: Action::Block };
    closed.database.apply(closed.now, |change| change.set_defaults(defaults));
    assert!(closed.outbound(vec![datagram()]).0.is_empty());
    assert_eq!(closed.drops(DropReason::OutDefaultBlock), 1);
    assert!(closed.inbound(vec![datagram()]).is_empty());
    assert_eq!(closed.drops(DropReason::InDefaultBlock), 1);
}

#[test]
fn sa_selector_filters_inner_packets() {
    let setup = IpsecSetup::tunnel4();
    let mut right = TestGatewayPair::without_sas(&setup).right;
    let mut config = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
    config.selector = Some(Selector { protocol: 6, ..Selector::any(Family::V4) });
    right.add_sa(config);
    assert_eq!(inbound_outcome(right, sealed(datagram())), Err(DropReason::InSelectorMismatch));
}

/// However often other flows have passed by the same state under the same policy.
#[test]
fn sa_selector_filters_each_flow() {
    let setup = IpsecSetup::tunnel4();
    for together in [1, 40] {
        let mut pair = TestGatewayPair::without_sas(&setup);
        pair.left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
        let mut config = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        let destination_port = uxfrm_engine::PortMask::exactly(9);
        config.selector = Some(Selector { destination_port, ..Selector::any(Family::V4) });
        pair.right.add_sa(config);
        let to = |port: u16| {
            let destination = format!("10.2.0.1:{port}");
            let one = || packets::udp("10.1.0.1:7", &destination, b"payload");
            std::iter::repeat_with(one).take(together).collect::<Vec<_>>()
        };
        for _ in 0..4 {
            assert_eq!(pair.left_to_right(to(9)).len(), together);
            assert!(pair.left_to_right(to(10)).is_empty());
        }
        let count = 4 * together as u64;
        assert_eq!(pair.right.reasons(), [(DropReason::InSelectorMismatch, count)]);
    }
}

/// From the outermost state inward, none is passed over but in transport mode (`xfrm_policy_ok`).
#[test]
fn every_tunnel_needs_a_template() {
    let setup = IpsecSetup::tunnel4();
    let template = |reqid| uxfrm_engine::Template {
        reqid: Reqid(reqid),
        ..setup.template(PairDirection::LeftToRight)
    };
    let state = |reqid| {
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI + reqid);
        state.reqid = Reqid(reqid);
        state
    };
    let refused = Err(DropReason::InOtherState);
    let cases: [(&[u32], _); 5] =
        [(&[1, 2], Ok(())), (&[1], refused), (&[2], refused), (&[2, 1], refused), (&[], refused)];
    for (asked, expected) in cases {
        let mut left = TestGatewayPair::without_sas(&setup).left;
        let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
        policy.templates = vec![template(1), template(2)];
        left.database.apply(left.now, |change| change.update_policy(policy)).unwrap();
        let mut right = right_with(Direction::In, |policy| {
            policy.templates = asked.iter().map(|one| template(*one)).collect()
        });
        for reqid in [1, 2] {
            left.add_sa(state(reqid));
            right.add_sa(state(reqid));
        }
        let wire = left.outbound(vec![datagram()]).0;
        assert_eq!(inbound_outcome(right, wire), expected, "{asked:?}");
    }
}

#[test]
fn packets_without_sa_never_leave_plain() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    for _ in 0..3 {
        assert!(left.outbound(vec![datagram(), datagram()]).0.is_empty());
    }
    assert_eq!(left.drops(DropReason::OutNoState), 6);
    left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
    assert_eq!(left.outbound(vec![datagram()]).0.len(), 1);
}

#[test]
fn policy_with_lowest_priority_decides() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::new(&setup).left;
    let mut pass = setup.policy(Direction::Out, PairDirection::LeftToRight);
    (pass.priority, pass.selector.protocol) = (Priority(1), 17);
    pass.templates.clear();
    left.add_policy(pass);
    let (wire, _) = left.outbound(vec![
        datagram(),
        packets::echo("10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap(), b"hi"),
    ]);
    assert_eq!(wire[0].bytes(), datagram().bytes(), "the exception passes as it is");
    assert_eq!(wire[1].bytes()[9], 50, "all else is ESP");
}

#[test]
fn hard_limits_are_exact_and_reported_once() {
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: 5, hard: 10 },
        ..LifetimeLimits::default()
    };
    let setup = IpsecSetup { limits, ..IpsecSetup::tunnel4() };
    for batch in [1, 3, 7, 64] {
        let mut left = TestGatewayPair::new(&setup).left;
        let mut sent = 0;
        for _ in 0..64 / batch {
            sent += left.outbound((0..batch).map(|_| datagram()).collect()).0.len();
        }
        assert_eq!(sent, 10, "batches of {batch}");
        let count = |event: fn(&Event) -> bool| left.events.iter().filter(|e| event(e)).count();
        assert_eq!(count(|event| matches!(event, Event::SaSoftLimit(_))), 1, "{:?}", left.events);
        assert_eq!(count(|event| matches!(event, Event::SaHardLimit(_))), 1, "{:?}", left.events);
        left.assert_packets_accounted();
    }
}

#[test]
fn expired_sa_opens_nothing_in_next_batch() {
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: u64::MAX, hard: 3 },
        ..LifetimeLimits::default()
    };
    let mut right = TestGatewayPair::new(&IpsecSetup { limits, ..IpsecSetup::tunnel4() }).right;
    let mut wire = TestGatewayPair::new(&IpsecSetup::tunnel4())
        .left
        .outbound((0..5).map(|_| datagram()).collect())
        .0;
    let mut forged = wire.pop().unwrap();
    *forged.bytes_mut().last_mut().unwrap() ^= 1;
    // The database is not told of the limit, so the state stays where it is.
    let TestGateway { worker, pool, now, .. } = &mut right;
    let mut out = Output::default();
    for packets in [wire, vec![forged]] {
        worker.inbound(&mut packets.into_iter().collect(), *now, pool, &mut out);
    }
    assert_eq!(out.host.as_slice().len(), 3);
    assert_eq!(right.reasons(), [(DropReason::InStateExpired, 2)], "its ICV is not looked at");
    right.assert_packets_accounted();
}

#[test]
fn expired_sa_among_prefetched_ones_opens_nothing() {
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: u64::MAX, hard: 3 },
        ..LifetimeLimits::default()
    };
    let setup = IpsecSetup { limits, ..IpsecSetup::tunnel4() };
    let mut right = TestGatewayPair::new(&setup).right;
    (0..200).for_each(|other| right.add_sa(setup.sa(PairDirection::LeftToRight, 5000 + other)));
    let mut wire = TestGatewayPair::new(&IpsecSetup::tunnel4())
        .left
        .outbound((0..6).map(|_| datagram()).collect())
        .0;
    let mut rest = wire.split_off(4);
    rest.iter_mut().for_each(|forged| *forged.bytes_mut().last_mut().unwrap() ^= 1);
    let mut out = Output::default();
    for (packets, spi) in [(wire, 6000), (rest, 6001)] {
        let TestGateway { worker, pool, now, .. } = &mut right;
        worker.inbound(&mut packets.into_iter().collect(), *now, pool, &mut out);
        // What the worker remembers of states is of another generation now.
        right.add_sa(setup.sa(PairDirection::LeftToRight, spi));
    }
    assert_eq!(out.host.as_slice().len(), 3);
    assert_eq!(right.reasons(), [(DropReason::InStateExpired, 3)], "no ICV is looked at");
}

#[test]
fn single_packets_are_counted_by_policy_soon() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::new(&setup).left;
    // Packets counted by the policies after this many more, in batches of this size.
    let mut after = |change: &mut dyn FnMut(&mut TestGateway), batches: &[usize]| {
        change(&mut left);
        for count in batches {
            let TestGateway { worker, pool, now, .. } = &mut left;
            let mut batch = (0..*count).map(|_| datagram()).collect();
            worker.outbound(&mut batch, *now, pool, &mut Output::default());
        }
        left.database.snapshot().spd.iter().map(|entry| entry.packets()).sum::<u64>()
    };
    let nothing = &mut |_: &mut TestGateway| {};
    assert_eq!(after(nothing, &[1]), 1, "the first for long");
    assert_eq!(after(nothing, &[1, 1, 1]), 1, "soon");
    assert_eq!(after(&mut |left| left.worker.settle(), &[]), 4, "nothing else is to do");
    assert_eq!(after(nothing, &[1; 15]), 4, "soon");
    assert_eq!(after(nothing, &[1]), 20, "they are many");
    assert_eq!(after(nothing, &[30]), 50, "they come together");
    assert_eq!(after(nothing, &[1]), 50, "soon");
    let later = &mut |left: &mut TestGateway| left.now = left.now.plus(Duration::from_millis(1));
    assert_eq!(after(later, &[1]), 52, "long enough");
    assert_eq!(after(nothing, &[1]), 52, "soon");
    let changed = &mut |left: &mut TestGateway| {
        left.add_policy(Policy {
            mark: Mark { value: 5, mask: u32::MAX },
            ..setup.policy(Direction::Out, PairDirection::RightToLeft)
        });
    };
    assert_eq!(after(changed, &[0]), 53, "before the policies are others");
}

#[test]
fn super_packet_is_cut_at_hard_limit() {
    let limits = LifetimeLimits {
        packets: SoftHardLimit { soft: u64::MAX, hard: 10 },
        ..LifetimeLimits::default()
    };
    let setup = IpsecSetup { limits, ..IpsecSetup::tunnel4() };
    let mut left = TestGatewayPair::new(&setup).left;
    let sent = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[0; 30_000], 1000);
    left.outbound(vec![sent]);
    assert_eq!(left.worker.outward().sent, 10);
    assert_eq!(left.drops(DropReason::OutStateExpired), 20);
    left.assert_packets_accounted();
}

#[test]
fn inbound_hard_limits_are_exact() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::without_sas(&setup);
    pair.left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
    let mut limited = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
    limited.limits.packets = SoftHardLimit { soft: 3, hard: 10 };
    pair.right.add_sa(limited);
    let arrived: usize =
        (0..5).map(|_| pair.left_to_right((0..4).map(|_| datagram()).collect()).len()).sum();
    assert_eq!(arrived, 10);
    assert_eq!(pair.right.events.len(), 2);
    pair.assert_accounts();
}

#[test]
fn nat_remapping_raises_mapping_event() {
    let setup =
        IpsecSetup { encap: Some(uxfrm_engine::UdpEncapKind::Esp), ..IpsecSetup::tunnel4() };
    let mut pair = TestGatewayPair::new(&setup);
    let mut wire = pair.left.outbound(vec![datagram()]).0;
    wire[0].bytes_mut()[20..22].copy_from_slice(&40_000_u16.to_be_bytes());
    assert_eq!(pair.right.inbound(wire).len(), 1);
    let [Event::Mapping { from, .. }] = pair.right.events[..] else { panic!() };
    assert_eq!(from, "192.0.2.1:40000".parse().unwrap());
}

#[test]
fn marks_select_sas_and_output_marks_apply() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::without_sas(&setup);
    for gateway in [&mut pair.left, &mut pair.right] {
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        state.mark = Mark { value: 5, mask: 0xff };
        state.output_mark = Mark { value: 0x900, mask: 0xf00 };
        gateway.add_sa(state);
    }
    let marked = |mark| {
        let mut packet = datagram();
        packet.mark = mark;
        packet
    };
    // The policy's mark chooses, not the packet's, as in Linux: one for all marks finds no state
    // for some.
    assert!(pair.left.outbound(vec![marked(0), marked(5)]).0.is_empty());
    assert_eq!(pair.left.drops(DropReason::OutNoState), 2);
    let mut of_mark = setup.policy(Direction::Out, PairDirection::LeftToRight);
    // Only masked bits count.
    of_mark.mark = Mark { value: 0xa05, mask: 0xff };
    of_mark.priority = Priority(0);
    pair.left.add_policy(of_mark);
    assert!(pair.left.outbound(vec![marked(0), marked(6)]).0.is_empty());
    assert_eq!(pair.left.drops(DropReason::OutNoState), 4);
    let wire = pair.left.outbound(vec![marked(5), marked(0x1005)]).0;
    assert_eq!(wire.iter().map(|packet| packet.mark).collect::<Vec<_>>(), [0x905, 0x1905]);
    let unmarked = PacketBuf::from_slice(wire[0].bytes());
    assert!(pair.right.inbound(vec![unmarked]).is_empty());
    assert_eq!(pair.right.drops(DropReason::InNoState), 1);
    assert_eq!(pair.right.inbound(wire)[0].mark, 0x905);
}

#[test]
fn if_id_selects_policies() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::new(&setup).left;
    let mut block = setup.policy(Direction::Out, PairDirection::LeftToRight);
    (block.if_id, block.action) = (uxfrm_engine::IfId(3), Action::Block);
    left.add_policy(block);
    let through = |if_id| {
        let mut packet = datagram();
        packet.if_id = if_id;
        packet
    };
    assert_eq!(left.outbound(vec![through(0)]).0.len(), 1);
    assert!(left.outbound(vec![through(3)]).0.is_empty());
    assert_eq!(left.drops(DropReason::OutPolicyBlock), 1);
}

#[test]
fn held_policy_has_its_own_drop_reason() {
    let hold = |policy: &mut Policy| {
        (policy.action, policy.flags) = (Action::Block, PolicyFlags::HELD);
        policy.templates.clear();
    };
    let held = right_with(Direction::In, hold);
    assert_eq!(inbound_outcome(held, sealed(datagram())), Err(DropReason::InHeld));
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::new(&setup).left;
    let live = setup.policy(Direction::Out, PairDirection::LeftToRight);
    let mut held = live.clone();
    hold(&mut held);
    left.database.apply(left.now, |to| to.update_policy(held)).unwrap();
    assert!(left.outbound(vec![datagram()]).0.is_empty());
    assert_eq!(left.drops(DropReason::OutHeld), 1);
    left.add_policy(live);
    assert_eq!(left.outbound(vec![datagram()]).0.len(), 1, "it makes room");
}

#[test]
fn sub_policy_needs_main_policy() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::new(&setup).left;
    let mut sub = setup.policy(Direction::Out, PairDirection::LeftToRight);
    sub.kind = uxfrm_engine::PolicyKind::Sub;
    sub.templates.clear();
    left.add_policy(sub);
    assert_eq!(left.outbound(vec![datagram()]).0[0].bytes()[9], 50, "the main one asks for ESP");
    let mut block = setup.policy(Direction::Out, PairDirection::LeftToRight);
    block.action = Action::Block;
    left.database.apply(left.now, |change| change.update_policy(block)).unwrap();
    assert!(left.outbound(vec![datagram()]).0.is_empty());
}

#[test]
fn blocking_main_policy_overrides_sub_policy() {
    for direction in [Direction::In, Direction::Forward] {
        let right = || {
            let mut right = right_with(direction, |policy| policy.action = Action::Block);
            let mut sub = IpsecSetup::tunnel4().policy(direction, PairDirection::LeftToRight);
            sub.kind = uxfrm_engine::PolicyKind::Sub;
            sub.templates.clear();
            right.add_policy(sub);
            right
        };
        let packet = if direction == Direction::In { datagram } else { forwarded };
        for packets in [vec![packet()], sealed(packet())] {
            assert_eq!(
                inbound_outcome(right(), packets),
                Err(DropReason::InPolicyBlock),
                "{direction:?}"
            );
        }
    }
}

/// A state that an update has given another interface id is no more what the policies of the former
/// ask for.
#[test]
fn sa_needs_if_id_of_policy() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::without_sas(&setup);
    pair.left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
    let state = |if_id| {
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        state.if_id = uxfrm_engine::IfId(if_id);
        // So that it is known of each flow alone whether it passes.
        state.selector = Some(Selector { protocol: 17, ..Selector::any(Family::V4) });
        state
    };
    pair.right.add_sa(state(3));
    let mut policy = setup.policy(Direction::In, PairDirection::LeftToRight);
    policy.if_id = uxfrm_engine::IfId(3);
    pair.right.add_policy(policy);
    let mut arrives = |right: &mut TestGateway| {
        let mut wire = pair.left.outbound(vec![datagram()]).0;
        wire[0].if_id = 3;
        right.inbound(wire).len()
    };
    for _ in 0..4 {
        assert_eq!(arrives(&mut pair.right), 1);
    }
    pair.right.database.apply(pair.right.now, |change| change.update_sa(state(4))).unwrap();
    assert_eq!(arrives(&mut pair.right), 0);
    assert_eq!(pair.right.reasons(), [(DropReason::InOtherState, 1)]);
}

/// One with the SPI of another, for another address of the gateway, is not what the policy asks
/// for, even right behind packets of the same flow that came by that other.
#[test]
fn sas_of_one_spi_are_distinguished() {
    let setup = IpsecSetup::tunnel4();
    let other = || {
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        state.id.destination = "192.0.2.3".parse().unwrap();
        state.reqid = Reqid(9);
        state
    };
    let mut pair = TestGatewayPair::new(&setup);
    let mut stranger = TestGatewayPair::without_sas(&setup).left;
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    (policy.templates[0].destination, policy.templates[0].reqid) =
        (other().id.destination, Reqid(9));
    stranger.database.apply(stranger.now, |change| change.update_policy(policy)).unwrap();
    stranger.add_sa(other());
    pair.right.add_sa(other());
    for packets in [1, 3, 20] {
        let mut batch = pair.left.outbound((0..packets).map(|_| datagram()).collect()).0;
        batch.extend(stranger.outbound((0..packets).map(|_| datagram()).collect()).0);
        assert_eq!(pair.right.inbound(batch).len(), packets);
    }
    assert_eq!(pair.right.reasons(), [(DropReason::InOtherState, 24)]);
}

#[test]
fn tunnel_sa_refuses_transport_packet() {
    let setup = IpsecSetup::transport4();
    let packet = packets::udp("192.0.2.1:7", "192.0.2.2:9", b"payload");
    let wire = TestGatewayPair::new(&setup).left.outbound(vec![packet]).0;
    let mut right = TestGatewayPair::without_sas(&setup).right;
    right.add_sa(uxfrm_engine::SaConfig {
        mode: Mode::Tunnel,
        ..setup.sa(PairDirection::LeftToRight, FIRST_SPI)
    });
    assert_eq!(inbound_outcome(right, wire), Err(DropReason::InModeMismatch));
}

/// An error from a router behind the left gateway, about a datagram that came from behind the right
/// one.
fn router_error(about: &PacketBuf) -> PacketBuf {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(&about.bytes()[..28]);
    let checksum = uxfrm_packet::checksum::Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let (router, sender) = ("10.1.0.254".parse().unwrap(), "10.2.0.5".parse().unwrap());
    let protocol = uxfrm_packet::Protocol::ICMP;
    PacketBuf::from_slice(&packets::ip(router, sender, protocol, &message))
}

#[test]
fn icmp_errors_pass_by_icmp_flag() {
    let setup = IpsecSetup::tunnel4();
    let there = packets::udp("10.2.0.5:9", "10.1.0.5:7", b"hello");
    let elsewhere = packets::udp("10.2.0.5:9", "10.9.0.5:7", b"hello");
    let gateway = |state_flag: bool, policy_flag: bool| {
        let mut right = TestGatewayPair::without_sas(&setup).right;
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        let host = |text: &str| uxfrm_engine::Prefix::host(text.parse().unwrap());
        state.selector = Some(Selector { source: host("10.1.0.5"), ..Selector::any(Family::V4) });
        state.flags.set(uxfrm_engine::sa::config::SaFlags::ICMP, state_flag);
        right.add_sa(state);
        let kind = uxfrm_engine::PolicyKind::Main;
        right.database.apply(right.now, |change| change.flush_policies(kind));
        let mut policy = setup.policy(Direction::Forward, PairDirection::LeftToRight);
        policy.selector.source = host("10.1.0.5");
        policy.flags.set(PolicyFlags::ICMP, policy_flag);
        right.add_policy(policy);
        right
    };
    let error = |about| sealed(router_error(about));
    assert_eq!(inbound_outcome(gateway(true, true), error(&there)), Ok(()));
    assert_eq!(inbound_outcome(gateway(true, false), error(&there)), Err(DropReason::InNoPolicy));
    assert_eq!(
        inbound_outcome(gateway(false, true), error(&there)),
        Err(DropReason::InSelectorMismatch)
    );
    assert_eq!(
        inbound_outcome(gateway(true, true), error(&elsewhere)),
        Err(DropReason::InSelectorMismatch)
    );
}

/// The same for errors about what the host itself sent: of Linux's flags only the state's counts
/// there (`net/ipv4/icmp.c: icmp_rcv`).
#[test]
fn icmp_errors_for_host_pass_by_icmp_flag() {
    let setup = IpsecSetup::tunnel4();
    let host = |text: &str| uxfrm_engine::Prefix::host(text.parse().unwrap());
    let gateway = |state_flag: bool, action: Action| {
        let mut right = TestGatewayPair::without_sas(&setup).right;
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        state.selector = Some(Selector { source: host("10.1.0.5"), ..Selector::any(Family::V4) });
        state.flags.set(uxfrm_engine::sa::config::SaFlags::ICMP, state_flag);
        right.add_sa(state);
        let kind = uxfrm_engine::PolicyKind::Main;
        right.database.apply(right.now, |change| change.flush_policies(kind));
        let mut policy = setup.policy(Direction::In, PairDirection::LeftToRight);
        policy.selector = Selector { source: host("10.1.0.5"), ..Selector::any(Family::V4) };
        policy.action = action;
        right.add_policy(policy);
        right
    };
    let error = |to: &str| {
        let about = packets::udp("192.0.2.2:9", to, b"hello");
        let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
        message.extend(&about.bytes()[..28]);
        let checksum = uxfrm_packet::checksum::Sum::of(&message).checksum();
        message[2..4].copy_from_slice(&checksum.to_be_bytes());
        let (router, sender) = ("10.1.0.254".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let bytes = packets::ip(router, sender, uxfrm_packet::Protocol::ICMP, &message);
        let mut left = TestGatewayPair::new(&setup).left;
        let mut all = setup.policy(Direction::Out, PairDirection::LeftToRight);
        all.selector = Selector::any(Family::V4);
        left.add_policy(all);
        left.outbound(vec![PacketBuf::from_slice(&bytes)]).0
    };
    let (there, elsewhere) = ("10.1.0.5:7", "10.9.0.5:7");
    assert_eq!(inbound_outcome(gateway(true, Action::Allow), error(there)), Ok(()));
    let mismatch = Err(DropReason::InSelectorMismatch);
    assert_eq!(inbound_outcome(gateway(false, Action::Allow), error(there)), mismatch);
    assert_eq!(inbound_outcome(gateway(true, Action::Allow), error(elsewhere)), mismatch);
    assert_eq!(
        inbound_outcome(gateway(true, Action::Block), error(there)),
        Err(DropReason::InNoPolicy)
    );
}

/// What has passed for the sake of one flow says nothing of another error, which differs in nothing
/// but the flow that it is about.
#[test]
fn passed_icmp_error_caches_nothing() {
    let setup = IpsecSetup::tunnel4();
    let mut pair = TestGatewayPair::without_sas(&setup);
    pair.left.add_sa(setup.sa(PairDirection::LeftToRight, FIRST_SPI));
    let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
    let source = uxfrm_engine::Prefix::host("10.1.0.5".parse().unwrap());
    state.selector = Some(Selector { source, ..Selector::any(Family::V4) });
    state.flags |= uxfrm_engine::sa::config::SaFlags::ICMP;
    pair.right.add_sa(state);
    let error = |to: &str| router_error(&packets::udp("10.2.0.5:9", to, b"hello"));
    for _ in 0..4 {
        assert_eq!(pair.left_to_right(vec![error("10.1.0.5:7")]).len(), 1);
        assert!(pair.left_to_right(vec![error("10.9.0.5:7")]).is_empty());
    }
    assert_eq!(pair.right.reasons(), [(DropReason::InSelectorMismatch, 4)]);
}

/// Packets that no policy is for do not vouch for an error that has one by the flow that it is
/// about.
#[test]
fn icmp_error_is_checked_behind_uncovered_packets() {
    let setup = IpsecSetup::transport4();
    let through = "192.0.2.9".parse().unwrap();
    let state = || {
        let mut state = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        state.id.destination = through;
        state
    };
    let policy = |direction| {
        let mut policy = setup.policy(direction, PairDirection::LeftToRight);
        policy.selector.destination = uxfrm_engine::Prefix::host(through);
        policy
    };
    let mut pair = TestGatewayPair::without_sas(&setup);
    pair.left.add_sa(state());
    pair.left.add_policy(policy(Direction::Out));
    pair.right.add_sa(state());
    let mut block = policy(Direction::Forward);
    block.selector.source = uxfrm_engine::Prefix::host("10.7.0.1".parse().unwrap());
    (block.action, block.flags) = (Action::Block, PolicyFlags::ICMP);
    block.templates.clear();
    pair.right.add_policy(block);
    let about = packets::udp("192.0.2.9:9", "10.7.0.1:7", b"hello");
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    message.extend(&about.bytes()[..28]);
    let checksum = uxfrm_packet::checksum::Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let router = "192.0.2.1".parse().unwrap();
    let error = packets::ip(router, through, uxfrm_packet::Protocol::ICMP, &message);
    for _ in 0..4 {
        let plain = packets::udp("192.0.2.1:7", "192.0.2.9:9", b"payload");
        assert_eq!(pair.left_to_right(vec![plain]).len(), 1, "{:?}", pair.right.reasons());
        assert!(pair.left_to_right(vec![PacketBuf::from_slice(&error)]).is_empty());
    }
    assert_eq!(pair.right.reasons(), [(DropReason::InPolicyBlock, 4)]);
}
