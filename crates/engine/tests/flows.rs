//! Flow caches change no result: known faults of other caches one by one, then random traffic,
//! policies and rekeys.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use uxfrm_engine::{
    Action, CacheMode, CacheSettings, CacheStats, DefaultActions, Direction, DropReason, Family,
    FlowKey, HostView, IfId, Mark, Mode, PathMtus, Policy, PolicyKey, PolicyKind, PolicyName,
    PortMask, Prefix, Priority, Reqid, SaConfig, Selector,
};
use uxfrm_packet::{IpPacket, PacketBuf, Protocol};
use uxfrm_testkit::{
    FIRST_SPI, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets, split_burst,
};

fn with_cache(mode: CacheMode, flows: usize) -> IpsecSetup {
    let mut setup = IpsecSetup::tunnel4();
    setup.settings.cache = CacheSettings { mode, flows }.into();
    setup
}

fn datagram() -> PacketBuf {
    packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload")
}

fn is_esp(packet: &PacketBuf) -> bool {
    IpPacket::parse(packet.bytes()).unwrap().protocol == Protocol::ESP
}

/// Sends one packet alone; whether it left, and as ESP.
fn sent(gateway: &mut TestGateway, packet: PacketBuf) -> Option<bool> {
    gateway.outbound(vec![packet]).0.first().map(is_esp)
}

fn key(policy: &Policy) -> PolicyKey {
    PolicyKey {
        direction: policy.direction,
        kind: PolicyKind::Main,
        mark: policy.mark,
        if_id: policy.if_id,
        name: PolicyName::Selector(policy.selector),
    }
}

fn outward(gateway: &TestGateway) -> CacheStats {
    gateway.worker.caches().outbound
}

/// The right gateway's SA and policies change under a flow that is cached as passing.
#[test]
fn cached_pass_ends_with_sa_or_policy_change() {
    let setup = with_cache(CacheMode::On, 64);
    let state = |reqid, protocol| SaConfig {
        reqid: Reqid(reqid),
        selector: Some(Selector { protocol, ..Selector::any(Family::V4) }),
        ..setup.sa(PairDirection::LeftToRight, FIRST_SPI)
    };
    let id = state(1, 0).id;
    let mut pair = TestGatewayPair::without_sas(&setup);
    pair.left.add_sa(state(1, 0));
    pair.right.add_sa(state(1, 17));
    let mut policy = setup.policy(Direction::In, PairDirection::LeftToRight);
    let passes = |pair: &mut TestGatewayPair| {
        (0..4).fold(0, |sum, _| sum + pair.left_to_right(vec![datagram()]).len())
    };
    assert_eq!(passes(&mut pair), 4);

    let exchange = |pair: &mut TestGatewayPair, state| {
        let right = &mut pair.right;
        right.database.apply(right.now, |to| to.delete_sa(id, Mark::default())).unwrap();
        right.add_sa(state);
    };
    exchange(&mut pair, state(1, 6));
    assert_eq!(passes(&mut pair), 0);
    assert_eq!(pair.right.drops(DropReason::InSelectorMismatch), 4);
    exchange(&mut pair, state(1, 17));
    assert_eq!(passes(&mut pair), 4);
    exchange(&mut pair, state(9, 17));
    assert_eq!(passes(&mut pair), 0);
    assert_eq!(pair.right.drops(DropReason::InOtherState), 4);

    policy.templates[0].reqid = Reqid(9);
    let TestGatewayPair { right, .. } = &mut pair;
    right.database.apply(right.now, |to| to.update_policy(policy)).unwrap();
    assert_eq!(passes(&mut pair), 4);
    pair.assert_accounts();
}

#[test]
fn rekey_keeps_cached_verdicts() {
    let setup = with_cache(CacheMode::On, 64);
    let mut pair = TestGatewayPair::new(&setup);
    for _ in 0..4 {
        assert_eq!(pair.left_to_right(vec![datagram()]).len(), 1);
    }
    let before = outward(&pair.left);
    pair.add_sas(&setup, FIRST_SPI + 2);
    assert_eq!(pair.left_to_right(vec![datagram()]).len(), 1);
    let after = outward(&pair.left);
    assert_eq!((after.hits, after.stale, after.misses), (before.hits + 1, 0, before.misses));
}

/// During a rekey both SAs are between the same addresses; each packet is opened by the one of its
/// SPI.
#[test]
fn sas_between_same_addresses_are_distinguished() {
    let setup = with_cache(CacheMode::On, 64);
    let mut pair = TestGatewayPair::new(&setup);
    let old: Vec<_> = (0..6).flat_map(|_| pair.left.outbound(vec![datagram()]).0).collect();
    pair.add_sas(&setup, FIRST_SPI + 2);
    let new: Vec<_> = (0..6).flat_map(|_| pair.left.outbound(vec![datagram()]).0).collect();
    for (old, new) in old.into_iter().zip(new) {
        assert_eq!(pair.right.inbound(vec![old]).len(), 1);
        assert_eq!(pair.right.inbound(vec![new]).len(), 1);
    }
    let inward = pair.right.worker.caches().inbound;
    assert_eq!((inward.entries, inward.hits), (2, 8), "one flow by two SPIs");
    pair.assert_accounts();
}

/// A flow is cached while it waits for an SA, but not that it has none.
#[test]
fn queued_cached_flow_leaves_by_new_sa() {
    let setup = with_cache(CacheMode::On, 64);
    let mut pair = TestGatewayPair::without_sas(&setup);
    pair.left.listen([]);
    for spi in [FIRST_SPI, FIRST_SPI + 2] {
        for _ in 0..4 {
            assert_eq!(sent(&mut pair.left, datagram()), None);
        }
        let before = outward(&pair.left);
        pair.add_sas(&setup, spi);
        assert_eq!(pair.left_to_right(vec![datagram()]).len(), 5, "with those that waited");
        assert_eq!(pair.left_to_right(vec![datagram()]).len(), 1);
        assert!(outward(&pair.left).hits >= before.hits + 2, "it was known");
        let id = setup.sa(PairDirection::LeftToRight, spi).id;
        pair.left.database.apply(pair.left.now, |to| to.delete_sa(id, Mark::default())).unwrap();
    }
}

/// Bundles get new indexes when SAs change: a flow with an old index must not leave by another
/// bundle.
#[test]
fn rekeyed_flows_leave_by_their_own_sas() {
    let setup = with_cache(CacheMode::On, 64);
    let mut left = TestGatewayPair::new(&setup).left;
    let elsewhere = "192.0.2.77".parse().unwrap();
    let mut policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    policy.selector.destination = Prefix::new("10.3.0.0".parse().unwrap(), 16).unwrap();
    policy.templates[0].destination = elsewhere;
    left.add_policy(policy);
    let mut flows = [("10.2.0.1", [192, 0, 2, 2]), ("10.3.0.1", [192, 0, 2, 77])];
    for spi in 0x7000..0x7006 {
        let mut state = setup.sa(PairDirection::LeftToRight, spi);
        state.id.destination = elsewhere;
        left.add_sa(state);
        flows.reverse();
        for _ in 0..3 {
            for (inner, outer) in flows {
                let packet = packets::udp("10.1.0.1:7", &format!("{inner}:9"), b"payload");
                let wire = left.outbound(vec![packet]).0;
                assert_eq!((wire.len(), &wire[0].bytes()[16..20]), (1, &outer[..]), "to {inner}");
            }
        }
    }
    assert!(outward(&left).hits > 24, "they were known");
}

#[test]
fn readded_policy_takes_effect_at_once() {
    let setup = with_cache(CacheMode::On, 64);
    let mut left = TestGatewayPair::new(&setup).left;
    let policy = setup.policy(Direction::Out, PairDirection::LeftToRight);
    for _ in 0..3 {
        for _ in 0..3 {
            assert_eq!(sent(&mut left, datagram()), Some(true));
        }
        left.database.apply(left.now, |to| to.delete_policy(&key(&policy))).unwrap();
        for _ in 0..3 {
            assert_eq!(sent(&mut left, datagram()), Some(false));
        }
        left.add_policy(policy.clone());
    }
}

#[test]
fn flows_without_policy_are_cached() {
    let mut left = TestGatewayPair::new(&with_cache(CacheMode::On, 64)).left;
    let stray = || packets::udp("10.9.0.1:7", "10.9.0.2:9", b"payload");
    for _ in 0..6 {
        assert_eq!(sent(&mut left, stray()), Some(false));
    }
    assert_eq!((outward(&left).misses, outward(&left).hits), (2, 4));
}

/// Plain datagrams, also at the port of ESP in UDP: bytes at the SPI's offset do not belong to
/// their flow.
#[test]
fn plain_datagrams_are_cached() {
    let mut right = TestGatewayPair::new(&with_cache(CacheMode::On, 64)).right;
    for number in 1..=6 {
        let question = [number, number, 1, 2, 3, 4, 5, 6, 7, 8];
        let ike = [0, 0, 0, 0, number, number, 1, 2, 3, 4, 5, 6];
        for (to, payload) in [("192.0.2.2:53", &question[..]), ("192.0.2.2:4500", &ike[..])] {
            let plain = packets::udp("198.51.100.1:4500", to, payload);
            assert_eq!(right.inbound(vec![plain]).len(), 1);
        }
    }
    let inward = right.worker.caches().inbound;
    assert_eq!((inward.entries, inward.misses, inward.hits), (2, 4, 8));
    right.assert_packets_accounted();
}

/// The same addresses and ports through two interfaces with ids: effectively two sets of policies.
#[test]
fn the_same_addresses_in_two_databases_are_two_flows() {
    let setup = with_cache(CacheMode::On, 64);
    let mut left = TestGatewayPair::new(&setup).left;
    let block = Policy {
        action: Action::Block,
        templates: Vec::new(),
        if_id: IfId(7),
        ..setup.policy(Direction::Out, PairDirection::LeftToRight)
    };
    left.add_policy(block);
    for _ in 0..5 {
        assert_eq!(sent(&mut left, datagram()), Some(true));
        let mut other = datagram();
        other.if_id = 7;
        assert_eq!(sent(&mut left, other), None);
    }
    assert_eq!(outward(&left).entries, 2);
}

/// The same addresses and ports under two marks.
#[test]
fn the_same_addresses_under_two_marks_are_two_flows() {
    let setup = with_cache(CacheMode::On, 64);
    let mut left = TestGatewayPair::new(&setup).left;
    let mark = Mark { value: 4, mask: 6 };
    let block = Policy {
        action: Action::Block,
        templates: Vec::new(),
        mark,
        ..setup.policy(Direction::Out, PairDirection::LeftToRight)
    };
    left.add_policy(Policy { priority: Priority(0), ..block });
    let marks = [(0, Some(true)), (4, None), (5, None), (6, Some(true))];
    for _ in 0..5 {
        for (mark, fate) in marks {
            let mut packet = datagram();
            packet.mark = mark;
            assert_eq!(sent(&mut left, packet), fate, "mark {mark}");
        }
    }
    assert_eq!(outward(&left).entries, marks.len() as u64);
}

/// The same packet matches `in` policies while its destination is the host's own, and `fwd` ones
/// when it is not.
#[test]
fn the_same_addresses_in_two_directions_are_two_flows() {
    let mut right = TestGatewayPair::new(&with_cache(CacheMode::On, 64)).right;
    let plain = || packets::udp("198.51.100.1:7", "198.51.100.2:9", b"payload");
    let mut block = IpsecSetup::tunnel4().policy(Direction::Forward, PairDirection::RightToLeft);
    block.selector = Selector::any(Family::V4);
    block.templates.clear();
    block.action = Action::Block;
    right.add_policy(Policy { priority: Priority(0), ..block });
    for _ in 0..3 {
        for (own, passes) in [("198.51.100.2", 1), ("198.51.100.3", 0)] {
            let addresses = std::iter::once(own.parse().unwrap()).collect();
            right.database.set_host(HostView { addresses, mtu: 1500, path_mtus: PathMtus::new() });
            for _ in 0..3 {
                assert_eq!(right.inbound(vec![plain()]).len(), passes, "the host is {own}");
            }
        }
    }
    assert_eq!(right.worker.caches().inbound.entries, 2);
}

/// A sub policy that allows leaves the decision to the main one, for cached flows too.
#[test]
fn cached_flows_follow_sub_and_main_policies() {
    let setup = with_cache(CacheMode::On, 64);
    let mut left = TestGatewayPair::new(&setup).left;
    let of_kind = |kind, action| Policy {
        kind,
        action,
        templates: Vec::new(),
        ..setup.policy(Direction::Out, PairDirection::LeftToRight)
    };
    let protect = setup.policy(Direction::Out, PairDirection::LeftToRight);
    let pass = of_kind(PolicyKind::Main, Action::Allow);
    let block = of_kind(PolicyKind::Main, Action::Block);
    let sub_pass = of_kind(PolicyKind::Sub, Action::Allow);
    let sub_block = of_kind(PolicyKind::Sub, Action::Block);
    let changes = [
        (&sub_pass, Some(true)),
        (&block, None),
        (&pass, Some(false)),
        (&sub_block, None),
        (&protect, None),
        (&sub_pass, Some(true)),
        (&sub_block, None),
    ];
    for (change, fate) in changes {
        left.database.apply(left.now, |to| to.update_policy(change.clone())).unwrap();
        for _ in 0..4 {
            assert_eq!(sent(&mut left, datagram()), fate);
        }
    }
    let gone = PolicyKey { kind: PolicyKind::Sub, ..key(&sub_block) };
    left.database.apply(left.now, |to| to.delete_policy(&gone)).unwrap();
    for _ in 0..4 {
        assert_eq!(sent(&mut left, datagram()), Some(true), "the main one alone");
    }
    assert!(outward(&left).hits > 16, "they were known");
}

/// The cache stores that a flow has no policy, not the default action.
#[test]
fn uncovered_flows_follow_default_action() {
    let mut left = TestGatewayPair::new(&with_cache(CacheMode::On, 64)).left;
    let stray = || packets::udp("10.9.0.1:7", "10.9.0.2:9", b"payload");
    for (outbound, fate) in
        [(Action::Allow, Some(false)), (Action::Block, None), (Action::Allow, Some(false))]
    {
        let defaults = DefaultActions { outbound, ..DefaultActions::default() };
        left.database.apply(left.now, |to| to.set_defaults(defaults));
        for _ in 0..4 {
            assert_eq!(sent(&mut left, stray()), fate);
        }
    }
}

#[test]
fn cache_of_sixteen_slots_is_correct() {
    let mut left = TestGatewayPair::new(&with_cache(CacheMode::On, 16)).left;
    for round in 0..6 {
        for port in 1..200 {
            let (inside, outside) = (format!("10.2.0.{port}:9"), format!("10.9.0.{port}:9"));
            for (to, esp) in [(inside, true), (outside, false)] {
                let packet = || packets::udp("10.1.0.1:7", &to, b"payload");
                assert_eq!(sent(&mut left, packet()), Some(esp), "round {round}");
                assert_eq!(sent(&mut left, packet()), Some(esp), "round {round}");
            }
        }
    }
    assert!(outward(&left).entries <= 32 && outward(&left).evicted > 0);
}

/// Policies count the same packets and bytes, though per batch.
#[test]
fn policies_count_every_packet() {
    let setup = with_cache(CacheMode::On, 64);
    let mut pair = TestGatewayPair::new(&setup);
    for burst in 1..9 {
        pair.left_to_right((0..burst).map(|_| datagram()).collect());
    }
    for (gateway, direction) in [(&pair.left, Direction::Out), (&pair.right, Direction::In)] {
        let snapshot = gateway.database.snapshot();
        let entry = snapshot.spd.iter().find(|entry| entry.direction() == direction);
        assert_eq!(entry.unwrap().packets(), 36, "{direction:?}");
        assert_eq!(entry.unwrap().bytes(), 36 * datagram().len() as u64);
    }
}

/// Two gateways with and without caches, and a list of the policies.
struct Twins {
    cached: TestGatewayPair,
    plain: TestGatewayPair,
    family: Family,
    setup: IpsecSetup,
    policies: Vec<Policy>,
    spi: u32,
    rng: Rng,
}

impl Twins {
    fn new(family: Family, seed: u64) -> Self {
        let pair = |mode| {
            let mut setup = IpsecSetup::new(Mode::Tunnel, family, family);
            // Sometimes enough for all flows, sometimes so little that they evict each other.
            let flows = if seed.is_multiple_of(2) { 4096 } else { 32 };
            setup.settings.cache = CacheSettings { mode, flows }.into();
            TestGatewayPair::new(&setup)
        };
        let setup = IpsecSetup::new(Mode::Tunnel, family, family);
        let policies = vec![setup.policy(Direction::Out, PairDirection::LeftToRight)];
        let (cached, plain) = (pair(CacheMode::On), pair(CacheMode::Off));
        Self { cached, plain, family, setup, policies, spi: FIRST_SPI, rng: Rng::new(seed) }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.below(from.len())]
    }

    fn host(&mut self, network: u8) -> String {
        let host = self.pick(&[1, 2, 3, 130]);
        match self.family {
            Family::V4 => format!("10.{network}.{}.{host}", self.pick(&[0, 1])),
            Family::V6 => format!("fd00:{network}::{host}"),
        }
    }

    fn packet(&mut self) -> PacketBuf {
        let (from, to) = (self.host(1), self.host(2));
        let (near, far) = (self.pick(&[7, 8]), self.pick(&[9, 10, 80]));
        match self.family {
            Family::V4 => {
                packets::udp(&format!("{from}:{near}"), &format!("{to}:{far}"), b"payload")
            }
            Family::V6 => {
                packets::udp(&format!("[{from}]:{near}"), &format!("[{to}]:{far}"), b"payload")
            }
        }
    }

    fn policy(&mut self, direction: Direction) -> Policy {
        let mut policy = self.setup.policy(direction, PairDirection::LeftToRight);
        let lens: [u8; 3] = match self.family {
            Family::V4 => [16, 24, 32],
            Family::V6 => [32, 64, 128],
        };
        let destination = self.host(2).parse().unwrap();
        policy.selector.destination = Prefix::new(destination, self.pick(&lens)).unwrap();
        policy.selector.destination_port =
            self.pick(&[PortMask::default(), PortMask { value: 80, mask: u16::MAX }]);
        policy.priority = Priority(self.pick(&[90, 100, 110]));
        policy.action = self.pick(&[Action::Allow, Action::Allow, Action::Block]);
        if policy.action == Action::Block || self.pick(&[true, false]) {
            policy.templates.clear();
        }
        policy
    }

    fn change_policies(&mut self) {
        let mut gateways = [
            &mut self.cached.left,
            &mut self.plain.left,
            &mut self.cached.right,
            &mut self.plain.right,
        ];
        if self.policies.len() > 1 && self.rng.below(2) == 0 {
            let at = self.rng.below(self.policies.len());
            let gone = self.policies.remove(at);
            for gateway in &mut gateways {
                let now = gateway.now;
                let _elsewhere = gateway.database.apply(now, |to| to.delete_policy(&key(&gone)));
            }
            return;
        }
        let new = self.policy(Direction::Out);
        let known = self.policies.iter().any(|policy| policy.selector == new.selector);
        if known {
            return;
        }
        self.policies.push(new.clone());
        let direction = self.pick(&[Direction::In, Direction::Forward]);
        let mut back = self.policy(direction);
        back.selector = new.selector;
        for gateway in [&mut self.cached.left, &mut self.plain.left] {
            gateway.add_policy(new.clone());
        }
        for gateway in [&mut self.cached.right, &mut self.plain.right] {
            let now = gateway.now;
            gateway.database.apply(now, |to| to.update_policy(back.clone())).unwrap();
        }
    }

    fn rekey(&mut self) {
        let old = self.setup.sa(PairDirection::LeftToRight, self.spi).id;
        self.spi += 2;
        for pair in [&mut self.cached, &mut self.plain] {
            pair.add_sas(&self.setup, self.spi);
            for gateway in [&mut pair.left, &mut pair.right] {
                let now = gateway.now;
                gateway.database.apply(now, |to| to.delete_sa(old, Mark::default())).unwrap();
            }
        }
    }

    /// How many packets leave by a scan of the list: plain, and protected.
    fn expected(&self, packets: &[PacketBuf]) -> (usize, usize) {
        let mut expected = (0, 0);
        for packet in packets {
            let ip = IpPacket::parse(packet.bytes()).unwrap();
            let flow = FlowKey::of(packet, &ip, packet.bytes());
            // Of equal priorities the older is first, in the list and to `min_by_key`.
            let fits = self.policies.iter().filter(|policy| policy.selector.matches(&flow));
            match fits.min_by_key(|policy| policy.priority) {
                Some(policy) if policy.action == Action::Block => {}
                Some(policy) if !policy.templates.is_empty() => expected.1 += 1,
                Some(_) | None => expected.0 += 1,
            }
        }
        expected
    }

    fn send(&mut self) {
        let count = 1 + self.rng.below(40);
        let packets: Vec<_> = (0..count).map(|_| self.packet()).collect();
        let again = |packets: &[PacketBuf]| -> Vec<PacketBuf> {
            packets.iter().map(|packet| PacketBuf::from_slice(packet.bytes())).collect()
        };
        let bytes = |packets: &[PacketBuf]| -> Vec<Vec<u8>> {
            packets.iter().map(|packet| packet.bytes().to_vec()).collect()
        };
        let expected = self.expected(&packets);
        let (wire, _) = self.cached.left.outbound(again(&packets));
        let (other, _) = self.plain.left.outbound(packets);
        // Plain and protected packets may be reordered: no flow is both.
        let in_order = |wire: &[PacketBuf]| {
            let (sealed, plain): (Vec<_>, Vec<_>) = wire.iter().partition(|packet| is_esp(packet));
            [sealed, plain]
                .map(|one| one.iter().map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>())
        };
        assert_eq!(in_order(&wire), in_order(&other), "on the wire");
        let protected = wire.iter().filter(|packet| is_esp(packet)).count();
        assert_eq!((wire.len() - protected, protected), expected, "as the list says");
        let wire: Vec<_> = wire.iter().flat_map(split_burst).collect();
        let here = self.cached.right.inbound(again(&wire));
        let there = self.plain.right.inbound(wire);
        assert_eq!(bytes(&here), bytes(&there), "behind the other gateway");
        assert_eq!(self.cached.right.reasons(), self.plain.right.reasons());
    }
}

#[test]
fn caches_change_no_result() {
    for family in [Family::V4, Family::V6] {
        for seed in 0..6_u64 {
            let mut twins = Twins::new(family, seed);
            for _ in 0..400 {
                match twins.rng.below(8) {
                    0 => twins.change_policies(),
                    1 => twins.rekey(),
                    _ => twins.send(),
                }
            }
            let hits = twins.cached.left.worker.caches().outbound.hits;
            let inward = twins.cached.right.worker.caches().inbound.hits;
            let enough = !seed.is_multiple_of(2) || (hits > 300 && inward > 30);
            assert!(enough, "{hits} and {inward} hits: not much of a test");
            assert_eq!(outward(&twins.plain.left).hits, 0);
            twins.cached.assert_accounts();
        }
    }
}
