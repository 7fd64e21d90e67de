//! What `uxfrm why` has to find: one thing is wrong, and the explanation names it.

use uxfrm_engine::explain::inbound::{InboundExplanation, InboundOutcome, ReceivedEsp};
use uxfrm_engine::explain::outbound::{AcquireStage, OutboundExplanation, OutboundOutcome};
use uxfrm_engine::explain::policies::{MAX_NEAR_POLICIES, PolicyMisfit};
use uxfrm_engine::explain::states::{MAX_NEAR_STATES, StateMisfit};
use uxfrm_engine::{
    Action, Direction, DropReason, Family, FlowKey, IfId, Mark, Mode, Policy, PolicyKind, PortMask,
    Prefix, Priority, Reqid, SaConfig, Selector, Spi,
};
use uxfrm_packet::IpPacket;
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, PairDirection, TestGateway, TestGatewayPair, packets};

fn flow(source: &str, destination: &str) -> FlowKey {
    let bytes = packets::udp_bytes(source, destination, b"payload");
    FlowKey::of_bytes(&IpPacket::parse(&bytes).unwrap(), &bytes)
}

fn outbound(gateway: &TestGateway, flow: &FlowKey) -> OutboundExplanation {
    let snapshot = gateway.database.snapshot();
    OutboundExplanation::of(&snapshot, gateway.worker.settings(), flow, gateway.now)
}

fn there() -> FlowKey {
    flow("10.1.0.1:7", "10.2.0.1:9")
}

#[test]
fn state_that_nearly_fits_is_named_with_its_misfits() {
    type Change = fn(&mut SaConfig);
    let cases: [(&str, Change, &[StateMisfit]); 8] = [
        ("reqid", |sa| sa.reqid = Reqid(2), &[StateMisfit::Reqid]),
        ("mode", |sa| sa.mode = Mode::Transport, &[StateMisfit::Mode]),
        ("source", |sa| sa.source = "192.0.2.7".parse().unwrap(), &[StateMisfit::Source]),
        (
            "destination",
            |sa| sa.id.destination = "192.0.2.7".parse().unwrap(),
            &[StateMisfit::Destination],
        ),
        ("if_id", |sa| sa.if_id = IfId(3), &[StateMisfit::IfId]),
        ("mark", |sa| sa.mark = Mark { value: 7, mask: 255 }, &[StateMisfit::Mark]),
        ("direction", |sa| sa.direction = Some(Direction::In), &[StateMisfit::Direction]),
        (
            "selector",
            |sa| sa.selector = Some(Selector { protocol: 6, ..sa.selector.unwrap() }),
            &[StateMisfit::Selector],
        ),
    ];
    let setup = IpsecSetup::tunnel4();
    for (name, change, expected) in cases {
        let mut left = TestGatewayPair::without_sas(&setup).left;
        let mut sa = setup.sa(PairDirection::LeftToRight, FIRST_SPI);
        change(&mut sa);
        left.add_sa(sa);
        let explained = outbound(&left, &there());
        assert!(matches!(explained.outcome, OutboundOutcome::Dropped(_)), "{name}");
        let [template] = &explained.templates[..] else { panic!("{name}: {explained:?}") };
        assert!(template.state.is_none(), "{name}");
        let near: Vec<_> = template.near.iter().map(|near| &near.misfits[..]).collect();
        assert_eq!(near, [expected], "{name}");
    }
}

#[test]
fn unrelated_states_are_not_named() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    left.add_sa(setup.sa(PairDirection::RightToLeft, 0x3000));
    for spi in 0..20 {
        let mut sa = setup.sa(PairDirection::LeftToRight, FIRST_SPI + spi);
        sa.source = "198.51.100.1".parse().unwrap();
        sa.id.destination = "198.51.100.2".parse().unwrap();
        sa.reqid = Reqid(90 + spi);
        left.add_sa(sa);
    }
    assert_eq!(outbound(&left, &there()).templates[0].near.len(), 0);
    for spi in 0..20 {
        let mut sa = setup.sa(PairDirection::LeftToRight, 0x2000 + spi);
        sa.reqid = Reqid(2);
        left.add_sa(sa);
    }
    assert_eq!(outbound(&left, &there()).templates[0].near.len(), MAX_NEAR_STATES);
}

#[test]
fn packet_waits_only_where_key_managers_listen() {
    let setup = IpsecSetup::tunnel4();
    let mut left = TestGatewayPair::without_sas(&setup).left;
    let explained = outbound(&left, &there());
    assert!(matches!(explained.outcome, OutboundOutcome::Dropped(DropReason::OutNoState)));
    left.listen([]);
    let explained = outbound(&left, &there());
    assert!(
        matches!(explained.outcome, OutboundOutcome::Waits(AcquireStage::Due)),
        "{explained:?}"
    );
    assert!(explained.templates[0].state.is_none() && explained.templates[0].near.is_empty());
}

#[test]
fn protected_packet_is_told_with_ends_and_mtu() {
    let setup = IpsecSetup::tunnel4();
    let pair = TestGatewayPair::new(&setup);
    let explained = outbound(&pair.left, &there());
    let OutboundOutcome::Protected(protection) = explained.outcome else { panic!("{explained:?}") };
    assert_eq!(protection.ends, setup.gateways(PairDirection::LeftToRight));
    assert_eq!(protection.states[0].id().spi, Spi(FIRST_SPI));
    // 20 outer, 8 ESP, 8 IV, 2 trailer, 16 ICV, and padding to 4 bytes.
    assert_eq!((protection.path_mtu, protection.inner_mtu), (1500, 1446));
    assert_eq!((protection.overhead, protection.limit), (54, 1446));
    let elsewhere = outbound(&pair.left, &flow("172.16.0.1:7", "172.17.0.1:9"));
    assert!(matches!(elsewhere.outcome, OutboundOutcome::Plain));
}

#[test]
fn policy_that_nearly_decides_is_named() {
    type Change = fn(&mut Policy);
    let cases: [(&str, Change, PolicyMisfit); 8] = [
        ("source", |p| p.selector.source = net("10.7.0.0"), PolicyMisfit::Source),
        ("destination", |p| p.selector.destination = net("10.7.0.0"), PolicyMisfit::Destination),
        ("protocol", |p| p.selector.protocol = 6, PolicyMisfit::Protocol),
        (
            "port",
            |p| {
                p.selector.protocol = 17;
                p.selector.destination_port = PortMask::exactly(10);
            },
            PolicyMisfit::DestinationPort,
        ),
        ("mark", |p| p.mark = Mark { value: 1, mask: 1 }, PolicyMisfit::Mark),
        ("if_id", |p| p.if_id = IfId(1), PolicyMisfit::IfId),
        ("interface", |p| p.selector.ifindex = 9, PolicyMisfit::Interface),
        (
            "swapped",
            |p| std::mem::swap(&mut p.selector.source, &mut p.selector.destination),
            PolicyMisfit::WayBack,
        ),
    ];
    let setup = IpsecSetup::tunnel4();
    for (name, change, expected) in cases {
        let mut gateway = TestGateway::new(setup.settings.clone());
        let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
        change(&mut policy);
        gateway.add_policy(policy);
        let explained = outbound(&gateway, &there());
        assert!(matches!(explained.outcome, OutboundOutcome::Plain), "{name}");
        assert!(explained.policies.deciding.is_empty(), "{name}");
        let near: Vec<_> = explained.policies.near.iter().map(|near| near.misfit).collect();
        assert_eq!(near, [expected], "{name}");
    }
}

fn net(address: &str) -> Prefix {
    Prefix::new(address.parse().unwrap(), 16).unwrap()
}

#[test]
fn policies_that_match_and_lose_are_named_first() {
    let setup = IpsecSetup::tunnel4();
    let mut gateway = TestGateway::new(setup.settings.clone());
    let base = setup.policy(Direction::Out, PairDirection::LeftToRight);
    let any = |priority| Policy {
        selector: Selector::any(base.selector.family()),
        priority: Priority(priority),
        ..base.clone()
    };
    gateway.add_policy(base.clone());
    gateway.add_policy(any(200));
    gateway.add_policy(Policy {
        action: Action::Block,
        mark: Mark { value: 1, mask: 1 },
        ..any(1)
    });
    let sub = Policy { kind: PolicyKind::Sub, templates: Vec::new(), ..any(100) };
    let explained = outbound(&gateway, &there());
    let near: Vec<_> = explained.policies.near.iter().map(|near| near.misfit).collect();
    assert_eq!(near, [PolicyMisfit::BehindPriority, PolicyMisfit::Mark]);
    gateway.add_policy(sub);
    let explained = outbound(&gateway, &there());
    assert_eq!(explained.policies.deciding.len(), 2, "sub and main: {explained:?}");
    for third in 0..20 {
        let mut other = base.clone();
        other.selector.destination = net(&format!("10.{}.0.0", 100 + third));
        gateway.add_policy(other);
    }
    assert_eq!(outbound(&gateway, &there()).policies.near.len(), MAX_NEAR_POLICIES);
}

#[test]
fn inbound_packet_meets_its_state_and_policies() {
    let setup = IpsecSetup::tunnel4();
    let right = TestGatewayPair::new(&setup).right;
    let (source, destination) = setup.gateways(PairDirection::LeftToRight);
    let esp = |spi| Some(ReceivedEsp { source, destination, spi: Spi(spi), mark: 0 });
    let explain = |gateway: &TestGateway, esp, flow: &FlowKey| {
        let settings = gateway.worker.settings();
        InboundExplanation::of(&gateway.database.snapshot(), settings, esp, flow)
    };
    let good = explain(&right, esp(FIRST_SPI), &there());
    assert_eq!(good.outcome, InboundOutcome::Passes);
    assert_eq!(good.templates[0].misfits.as_deref(), Some(&[][..]));

    let unknown = explain(&right, esp(77), &there());
    assert_eq!(unknown.outcome, InboundOutcome::Dropped(DropReason::InNoState));
    let near = &unknown.state.unwrap().near;
    assert_eq!(near[0].misfits, [StateMisfit::Spi], "another SPI between the same ends");

    let plain = explain(&right, None, &there());
    assert_eq!(plain.outcome, InboundOutcome::Dropped(DropReason::InUnprotected));
    assert!(plain.templates[0].misfits.is_none());
}

#[test]
fn policy_in_where_fwd_is_missing_is_named() {
    let setup = IpsecSetup::tunnel4();
    let mut right = TestGatewayPair::new(&setup).right;
    let key = right
        .database
        .snapshot()
        .spd
        .iter()
        .find(|entry| entry.direction() == Direction::Forward)
        .map(|entry| entry.key())
        .unwrap();
    right.database.apply(right.now, |change| change.delete_policy(&key)).unwrap();
    let (source, destination) = setup.gateways(PairDirection::LeftToRight);
    let esp = Some(ReceivedEsp { source, destination, spi: Spi(FIRST_SPI), mark: 0 });
    let forwarded = flow("10.1.0.5:7", "10.2.0.5:9");
    let settings = right.worker.settings();
    let explained = InboundExplanation::of(&right.database.snapshot(), settings, esp, &forwarded);
    assert_eq!(explained.outcome, InboundOutcome::Dropped(DropReason::InNoPolicy));
    assert_eq!(explained.policies.direction, Direction::Forward);
    assert_eq!(explained.policies.near[0].misfit, PolicyMisfit::Direction);
}

/// IPv6 senders are never told less than 1280: ESP leaves in fragments then.
#[test]
fn ipv6_passes_up_to_its_least_mtu_where_less_fits() {
    for (mtu, fits, limit) in [(1500, 1446, 1446), (1300, 1246, 1280)] {
        let mut setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
        setup.settings.mtu = mtu;
        let pair = TestGatewayPair::new(&setup);
        let explained = outbound(&pair.left, &flow("[fd00:1::1]:7", "[fd00:2::1]:9"));
        let OutboundOutcome::Protected(path) = explained.outcome else { panic!("{explained:?}") };
        assert_eq!((path.path_mtu, path.inner_mtu, path.limit), (mtu, fits, limit));
        assert_eq!(path.overhead, 54);
    }
}
