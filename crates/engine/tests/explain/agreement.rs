//! Whatever states and policies there are, the data path does what the explanation says.

use std::net::IpAddr;

use uxfrm_engine::explain::inbound::{InboundExplanation, InboundOutcome, ReceivedEsp};
use uxfrm_engine::explain::outbound::{OutboundExplanation, OutboundOutcome};
use uxfrm_engine::{
    Action, DefaultActions, Direction, DropReason, Family, FlowKey, Lifecycle, Mark, Mode, Policy,
    PolicyKind, PortMask, Prefix, Priority, Reqid, SaConfig, Selector, SoftHardLimit, Spi,
    TemplateLevel,
};
use uxfrm_packet::{IpPacket, PacketBuf};
use uxfrm_testkit::{
    FIRST_SPI, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets,
};

const SEEDS: u64 = 3000;

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len())].clone()
}

fn flow_of(packet: &PacketBuf) -> FlowKey {
    let bytes = packet.bytes();
    FlowKey::of(packet, &IpPacket::parse(bytes).unwrap(), bytes)
}

/// A policy like the setup's, changed in a few respects.
fn random_policy(rng: &mut Rng, base: Policy) -> Policy {
    let mut policy = base;
    let sources = ["10.1.0.0/16", "10.1.0.1/32", "0.0.0.0/0", "10.3.0.0/16"];
    if rng.permille(400) {
        policy.selector.source = prefix(pick(rng, &sources));
    }
    if rng.permille(300) {
        policy.selector.protocol = pick(rng, &[6, 17]);
        policy.selector.destination_port =
            pick(rng, &[PortMask::default(), PortMask::exactly(9), PortMask::exactly(10)]);
    }
    policy.priority = Priority(pick(rng, &[50, 100, 150]));
    if rng.permille(150) {
        policy.kind = PolicyKind::Sub;
    }
    if rng.permille(150) {
        policy.action = Action::Block;
    }
    if rng.permille(150) {
        policy.mark = Mark { value: 1, mask: 1 };
    }
    match rng.below(10) {
        0 => policy.templates.clear(),
        1 => policy.templates[0].reqid = Reqid(2),
        2 => policy.templates[0].level = TemplateLevel::Use,
        3 => policy.templates[0].mode = Mode::Transport,
        4 => policy.templates[0].source = Family::V4.unspecified(),
        5 => policy.templates[0].spi = Spi(FIRST_SPI),
        6 => policy.templates[0].destination = "192.0.2.9".parse().unwrap(),
        _ => {}
    }
    policy
}

fn prefix(text: &str) -> Prefix {
    let (address, len) = text.split_once('/').unwrap();
    Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
}

fn random_sa(rng: &mut Rng, base: SaConfig) -> SaConfig {
    let mut sa = base;
    match rng.below(9) {
        0 => sa.reqid = Reqid(2),
        1 => sa.mode = Mode::Transport,
        2 => sa.source = Family::V4.unspecified(),
        3 => sa.direction = Some(Direction::In),
        4 => sa.selector = Some(Selector { protocol: 6, ..Selector::any(Family::V4) }),
        5 => sa.mark = Mark { value: 1, mask: 1 },
        6 => sa.limits.packets = SoftHardLimit { soft: u64::MAX, hard: 0 },
        _ => {}
    }
    sa
}

fn random_defaults(rng: &mut Rng) -> DefaultActions {
    let one = |rng: &mut Rng| if rng.permille(150) { Action::Block } else { Action::Allow };
    DefaultActions { inbound: one(rng), forward: one(rng), outbound: one(rng) }
}

/// Policies of one direction that the database takes, and some states.
fn fill(rng: &mut Rng, gateway: &mut TestGateway, setup: &IpsecSetup, direction: Direction) {
    let now = gateway.now;
    let defaults = random_defaults(rng);
    gateway.database.apply(now, |change| change.set_defaults(defaults));
    for _ in 0..rng.below(5) {
        let policy = random_policy(rng, setup.policy(direction, PairDirection::LeftToRight));
        // Two of one name: the second is refused.
        let _ = gateway.database.apply(now, |change| change.add_policy(policy));
    }
}

#[test]
fn outbound_explanation_agrees_with_data_path() {
    let setup = IpsecSetup::tunnel4();
    let mut outcomes = [0; 4];
    for seed in 0..SEEDS {
        let rng = &mut Rng::new(seed);
        let mut left = TestGatewayPair::without_sas(&setup).left;
        let kind = PolicyKind::Main;
        left.database.apply(left.now, |change| change.flush_policies(kind));
        fill(rng, &mut left, &setup, Direction::Out);
        for spi in 0..rng.below(3) {
            let spi = FIRST_SPI + u32::try_from(spi).unwrap();
            left.add_sa(random_sa(rng, setup.sa(PairDirection::LeftToRight, spi)));
        }
        if rng.permille(300) {
            left.listen([]);
        }
        let source = pick(rng, &["10.1.0.1:7", "10.1.0.5:7", "10.3.0.1:7"]);
        let destination = pick(rng, &["10.2.0.1:9", "10.2.0.1:10"]);
        let mut packet = packets::udp(source, destination, b"payload");
        packet.mark = pick(rng, &[0, 1]);
        let flow = flow_of(&packet);

        let snapshot = left.database.snapshot();
        let settings = left.worker.settings();
        let explained = OutboundExplanation::of(&snapshot, settings, &flow, left.now);
        let (wire, _) = left.outbound(vec![packet]);
        let drops = left.reasons();
        let context = format!("seed {seed}: {:?}, wire {wire:?}, {drops:?}", explained.outcome);
        let place = match &explained.outcome {
            OutboundOutcome::Plain => {
                assert_eq!(wire.first().map(flow_of), Some(flow), "{context}");
                0
            }
            OutboundOutcome::Protected(protection) => {
                let exhausted =
                    protection.states.iter().any(|sa| sa.lifecycle() == Lifecycle::Expired);
                let outer = wire.first().map(flow_of);
                match outer {
                    Some(outer) => {
                        assert_eq!(outer.protocol, 50, "{context}");
                        assert_eq!((outer.source, outer.destination), protection.ends, "{context}");
                    }
                    // A limit of no packets is known only once one was sent.
                    None => assert!(
                        exhausted || drops == [(DropReason::OutStateExpired, 1)],
                        "{context}"
                    ),
                }
                1
            }
            OutboundOutcome::Waits(_) => {
                assert_eq!((wire.len(), left.worker.waiting()), (0, 1), "{context}");
                2
            }
            OutboundOutcome::Dropped(reason) => {
                assert_eq!(drops, [(*reason, 1)], "{context}");
                3
            }
        };
        outcomes[place] += 1;
    }
    assert!(outcomes.iter().all(|count| *count > 100), "all kinds were met: {outcomes:?}");
}

#[test]
fn inbound_explanation_agrees_with_data_path() {
    let setup = IpsecSetup::tunnel4();
    let mut passed = 0;
    let mut reasons = std::collections::BTreeMap::new();
    for seed in 0..SEEDS {
        let rng = &mut Rng::new(seed);
        let mut pair = TestGatewayPair::new(&setup);
        let source = pick(rng, &["10.1.0.1:7", "10.1.0.5:7"]);
        let destination = pick(rng, &["10.2.0.1:9", "10.2.0.1:10", "10.2.0.7:9"]);
        let packet = packets::udp(source, destination, b"payload");
        let flow = flow_of(&packet);
        let is_plain = rng.permille(300);
        let wire = if is_plain { vec![packet] } else { pair.left.outbound(vec![packet]).0 };

        let mut right = TestGatewayPair::without_sas(&setup).right;
        right.database.apply(right.now, |change| change.flush_policies(PolicyKind::Main));
        for direction in [Direction::In, Direction::Forward] {
            fill(rng, &mut right, &setup, direction);
        }
        if rng.permille(900) {
            let sa = random_sa(rng, setup.sa(PairDirection::LeftToRight, FIRST_SPI));
            // In transport mode another packet would come out: one of IPIP.
            right.add_sa(SaConfig { mode: Mode::Tunnel, ..sa });
        }
        let (from, to): (IpAddr, IpAddr) = setup.gateways(PairDirection::LeftToRight);
        let esp = ReceivedEsp { source: from, destination: to, spi: Spi(FIRST_SPI), mark: 0 };
        let snapshot = right.database.snapshot();
        let settings = right.worker.settings();
        let esp = (!is_plain).then_some(esp);
        let explained = InboundExplanation::of(&snapshot, settings, esp, &flow);
        let host = right.inbound(wire);
        let drops = right.reasons();
        let context =
            format!("seed {seed}: {:?}, {} out, {drops:?}", explained.outcome, host.len());
        match explained.outcome {
            InboundOutcome::Passes => {
                // A limit of no packets is known only once one has come.
                let is_late = drops == [(DropReason::InStateExpired, 1)];
                assert!(host.len() == 1 || is_late, "{context}");
                passed += 1;
            }
            InboundOutcome::Dropped(reason) => {
                let is_late = drops == [(DropReason::InStateExpired, 1)];
                assert!(is_late || drops == [(reason, 1)], "{context}");
                *reasons.entry(reason).or_insert(0) += 1;
            }
        }
    }
    assert!(passed > 300 && reasons.len() >= 5, "{passed} passed, {reasons:?}");
}
