//! Packets of interleaved flows and SAs take a fast path, whose result must not differ from that of
//! single packets. Two gateways get the same packets of all kinds: one in batches, the other one by
//! one and without flow cache.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use uxfrm_engine::{
    Action, CacheMode, CacheSettings, Direction, DropReason, Event, Family, IfId, LifetimeLimits,
    Mark, Mode, Moment, Output, Policy, PolicyKind, PortMask, Prefix, Priority, Reqid, Sa,
    SaConfig, SaFlags, Selector, SoftHardLimit, Stage, StageWatch, Template, TemplateLevel,
    UdpEncapKind,
};
use uxfrm_packet::{Batch, Checksum, PacketBuf, PacketMeta, Protocol, Segments};
use uxfrm_testkit::{
    EspSuite, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets,
};

/// Tunnels of a hub, each to its own peer and network. From the first odd one on, encapsulation
/// differs.
const TUNNELS: usize = 40;
const FIRST_ODD: usize = 32;
/// Packets to this port are blocked, or protected by another policy of the same tunnel.
const BLOCKED: u16 = 9999;
const SPECIAL: u16 = 53;
/// The tunnel with a sub policy before its policy.
const SUB: usize = 3;

struct Twins {
    together: TestGateway,
    output: Output,
    ways: Ways,
    alone: TestGateway,
    events: Vec<Event>,
    /// SPI of each tunnel's SA, 0 without one.
    spis: Vec<u32>,
    next_spi: u32,
    changed: Option<usize>,
    limits: LifetimeLimits,
    sent: u64,
    rng: Rng,
}

/// How many packets took each path.
#[derive(Default)]
struct Ways {
    parsed: usize,
    looked_up: usize,
}

impl StageWatch for Ways {
    fn stage_done(&mut self, stage: Stage) {
        self.parsed += usize::from(stage == Stage::Parse);
        self.looked_up += usize::from(stage == Stage::LookUp);
    }
}

fn setup(tunnel: usize) -> IpsecSetup {
    let tunnel4 = IpsecSetup { suite: EspSuite::NullSha1, ..IpsecSetup::tunnel4() };
    match tunnel - FIRST_ODD.min(tunnel) {
        0 => IpsecSetup { suite: [EspSuite::Gcm128, EspSuite::NullSha1][tunnel % 2], ..tunnel4 },
        1 => IpsecSetup { encap: Some(UdpEncapKind::Esp), ..tunnel4 },
        2 => IpsecSetup {
            suite: EspSuite::Gcm128,
            ..IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4)
        },
        3 => IpsecSetup {
            suite: EspSuite::Gcm128,
            ..IpsecSetup::new(Mode::Tunnel, Family::V4, Family::V6)
        },
        4 => IpsecSetup { tfc_padding: 200, ..tunnel4 },
        5 => IpsecSetup { flags: SaFlags::ESN, suite: EspSuite::Gcm128, ..tunnel4 },
        6 => IpsecSetup { flags: SaFlags::NOPMTUDISC, ..tunnel4 },
        _ => tunnel4,
    }
}

fn network(tunnel: usize) -> String {
    match setup(tunnel).inner {
        Family::V4 => format!("10.2.{tunnel}"),
        Family::V6 => format!("fd00:2:{tunnel}:"),
    }
}

fn peer(tunnel: usize) -> IpAddr {
    match setup(tunnel).outer {
        Family::V4 => format!("192.0.2.{}", 10 + tunnel).parse().unwrap(),
        Family::V6 => format!("2001:db8::{}", 10 + tunnel).parse().unwrap(),
    }
}

fn policy(tunnel: usize) -> Policy {
    let mut policy = setup(tunnel).policy(Direction::Out, PairDirection::LeftToRight);
    let (net, len) = match setup(tunnel).inner {
        Family::V4 => (format!("{}.0", network(tunnel)), 24),
        Family::V6 => (format!("{}:", network(tunnel)), 48),
    };
    policy.selector.destination = Prefix::new(net.parse().unwrap(), len).unwrap();
    policy.templates[0].destination = peer(tunnel);
    // Before the policy for all networks.
    policy.priority = Priority(50);
    policy
}

fn state(tunnel: usize, spi: u32, limits: LifetimeLimits) -> SaConfig {
    let mut state = SaConfig { limits, ..setup(tunnel).sa(PairDirection::LeftToRight, spi) };
    state.id.destination = peer(tunnel);
    if tunnel == FIRST_ODD + 7 {
        state.output_mark = Mark { value: 6, mask: 7 };
    }
    state
}

fn gateway(mode: CacheMode) -> TestGateway {
    let mut setup = IpsecSetup::tunnel4();
    setup.settings.cache = CacheSettings { mode, flows: 4096 }.into();
    let mut gateway = TestGatewayPair::without_sas(&setup).left;
    for tunnel in 0..TUNNELS {
        let plain = policy(tunnel);
        let to_port = |port| Selector {
            destination_port: PortMask::exactly(port),
            protocol: Protocol::UDP.0,
            ..plain.selector
        };
        let (action, templates) = (Action::Block, Vec::new());
        let blocked = Policy { selector: to_port(BLOCKED), action, templates, ..plain.clone() };
        gateway.add_policy(Policy { priority: Priority(1), ..blocked });
        let special = Policy { selector: to_port(SPECIAL), ..plain.clone() };
        gateway.add_policy(Policy { priority: Priority(2), ..special });
        let (priority, mark) = (Priority(1), Mark { value: 9, mask: u32::MAX });
        let blocked = || Policy { action, templates: Vec::new(), priority, ..plain.clone() };
        gateway.add_policy(Policy { if_id: IfId(9), ..blocked() });
        gateway.add_policy(Policy { mark, ..blocked() });
        gateway.add_policy(plain);
    }
    let (kind, templates) = (PolicyKind::Sub, Vec::new());
    gateway.add_policy(Policy { kind, templates, ..policy(SUB) });
    gateway
}

impl Twins {
    fn new(limits: LifetimeLimits, seed: u64) -> Self {
        let mut twins = Self {
            together: gateway(CacheMode::On),
            output: Output::default(),
            ways: Ways::default(),
            alone: gateway(CacheMode::Off),
            events: Vec::new(),
            spis: vec![0; TUNNELS],
            next_spi: 0x1000,
            changed: None,
            limits,
            sent: 0,
            rng: Rng::new(seed),
        };
        (0..TUNNELS).for_each(|tunnel| twins.rekey(tunnel, 0));
        twins
    }

    fn both(&mut self, change: impl Fn(&mut TestGateway)) {
        change(&mut self.together);
        change(&mut self.alone);
    }

    /// Replaces a tunnel's SA by one that has sent so many packets.
    fn rekey(&mut self, tunnel: usize, sent: u64) {
        self.next_spi += 1;
        let (spi, limits) = (self.next_spi, self.limits);
        self.both(|gateway| {
            let mut new = state(tunnel, spi, limits);
            new.replay.sent = sent;
            gateway.add_sa(new);
        });
        self.delete(tunnel);
        self.spis[tunnel] = self.next_spi;
    }

    fn delete(&mut self, tunnel: usize) {
        let spi = std::mem::take(&mut self.spis[tunnel]);
        let id = state(tunnel, spi, self.limits).id;
        // It may have expired and been removed.
        self.both(|gateway| {
            let now = gateway.now;
            let _gone =
                gateway.database.apply(now, |to| to.delete_sa(id, Mark::default()).map(drop));
        });
    }

    fn decide(&mut self, tunnel: usize, action: Action) {
        self.both(|gateway| {
            let policy = Policy { action, ..policy(tunnel) };
            let now = gateway.now;
            gateway.database.apply(now, |to| to.update_policy(policy).map(drop)).unwrap();
        });
    }

    /// Changes between two batches; the previous ones are undone.
    fn change(&mut self) {
        let tunnel = self.rng.below(TUNNELS);
        if let Some(before) = self.changed.replace(tunnel) {
            self.rekey(before, 0);
            self.decide(before, Action::Allow);
        }
        match self.rng.below(7) {
            0 => self.rekey(tunnel, 0),
            1 => self.rekey(tunnel, u64::from(u32::MAX) - 5),
            2 => self.delete(tunnel),
            3 => self.decide(tunnel, Action::Block),
            4 => self.decide(tunnel, Action::Allow),
            _ => self.both(|gateway| gateway.now = Moment(gateway.now.0 + 700_000)),
        }
    }

    /// The next packet; about `often` of a thousand are uncommon.
    fn packet(&mut self, often: usize) -> PacketBuf {
        let is_odd = self.rng.permille(if often > 1 { 40 } else { 0 });
        let tunnel = match is_odd {
            true => FIRST_ODD + self.rng.below(TUNNELS - FIRST_ODD),
            false => self.rng.below(FIRST_ODD),
        };
        let port = match self.rng.below(2000 / often.max(1)) {
            0 => BLOCKED,
            1..4 => SPECIAL,
            _ => 9,
        };
        let host = 1 + self.rng.below(2);
        let (from, to) = match setup(tunnel).inner {
            Family::V4 => ("10.1.0.1:7".to_owned(), format!("{}.{host}:{port}", network(tunnel))),
            Family::V6 => {
                ("[fd00:1::1]:7".to_owned(), format!("[{}:{host}]:{port}", network(tunnel)))
            }
        };
        self.sent += 1;
        let mut payload = self.sent.to_be_bytes().to_vec();
        payload.resize(8 + self.rng.below(200), 5);
        let packet = packets::udp(&from, &to, &payload);
        if self.rng.permille(often) { self.disturbed(packet, (&from, &to)) } else { packet }
    }

    fn disturbed(&mut self, mut packet: PacketBuf, (from, to): (&str, &str)) -> PacketBuf {
        let is_v4 = packet.bytes()[0] >> 4 == 4;
        match self.rng.below(11) {
            0 => packet.mark = 9,
            1 => packet.if_id = 9,
            2 => {
                let start = if is_v4 { 20 } else { 40 };
                packet.checksum = Checksum::Partial { start, offset: 6 };
            }
            3 => packet.append(3).unwrap().fill(0xee),
            4 => packet = within(&packet, self.rng.below(60), 400),
            5 => packet = within(&packet, 200, self.rng.below(60)),
            6 if is_v4 => packet = packets::fragments(packet.bytes(), 24).swap_remove(0),
            7 => packet = packets::tcp_super(from, to, &[5; 3000], 1000),
            8 => packet.trim(packet.len() - 1),
            9 if is_v4 && self.limits == LifetimeLimits::default() => {
                packet = packets::dont_fragment(packets::udp(from, to, &[5; 1460]));
            }
            _ if is_v4 => packet = packets::with_tos(packet, self.rng.next_u64().to_le_bytes()[0]),
            _ => packet.checksum = Checksum::Verified,
        }
        packet
    }

    fn send(&mut self, packets: usize, often: usize) {
        let mut batch: Vec<_> = (0..packets).map(|_| self.packet(often)).collect();
        if self.rng.permille(200) {
            // Some consecutive packets of one flow.
            let one = &batch[batch.len() / 2];
            let more: Vec<_> = (0..self.rng.below(12)).map(|_| within(one, 200, 400)).collect();
            batch.splice(batch.len() / 3..batch.len() / 3, more);
        }
        self.take(batch);
    }

    fn take(&mut self, batch: Vec<PacketBuf>) {
        let (mut wire, mut host) = (Vec::new(), Vec::new());
        for packet in &batch {
            let again = within(packet, packet.headroom(), packet.tailroom());
            let (to_wire, to_host) = self.alone.outbound(vec![again]);
            wire.extend(to_wire);
            host.extend(to_host);
        }
        let TestGateway { worker, pool, now, .. } = &mut self.together;
        let mut batch: Batch = batch.into_iter().collect();
        worker.outbound_watched(&mut batch, *now, pool, &mut self.output, &mut self.ways);
        let told = self.output.events.drain(..);
        self.events.extend(told.inspect(|event| self.together.database.observe(event)));
        assert_same(self.output.wire.as_slice(), &wire, "on the wire");
        assert_same(self.output.host.as_slice(), &host, "back to the host");
        (self.output.wire, self.output.host) = (Batch::new(), Batch::new());
        assert_eq!(reasons(&self.together), reasons(&self.alone));
        assert_eq!(self.together.worker.outward(), self.alone.worker.outward());
        self.together.assert_packets_accounted();
        self.both(|gateway| gateway.worker.settle());
        let [together, alone] = [&self.together, &self.alone].map(counts);
        let differ = together.iter().zip(&alone).filter(|(one, other)| one != other);
        assert_eq!(differ.collect::<Vec<_>>(), [] as [(&String, &String); 0]);
    }
}

/// Drop reasons. Which of two reasons an expired SA gives depends on what was known before the
/// batch.
fn reasons(gateway: &TestGateway) -> BTreeMap<DropReason, u64> {
    let mut reasons: BTreeMap<_, _> = gateway.reasons().into_iter().collect();
    let expired = reasons.remove(&DropReason::OutStateExpired).unwrap_or(0);
    *reasons.entry(DropReason::OutNoState).or_default() += expired;
    reasons
}

/// Packets, bytes and times of each policy and SA.
fn counts(gateway: &TestGateway) -> Vec<String> {
    let snapshot = gateway.database.snapshot();
    let policies = snapshot
        .spd
        .iter()
        .map(|entry| format!("{} {} {:?}", entry.packets(), entry.bytes(), entry.last_used()));
    let states = snapshot.sad.iter().map(|sa| {
        let (usage, sent) = (sa.usage(), sa.sequence().last());
        format!(
            "{:?} {} {} {sent} {:?}",
            sa.id(),
            usage.packets(),
            usage.bytes(),
            usage.last_used()
        )
    });
    let mut counts: Vec<_> = policies.chain(states).collect();
    counts.sort_unstable();
    counts
}

/// The same packet and metadata in a buffer with this headroom and tailroom.
fn within(packet: &PacketBuf, before: usize, behind: usize) -> PacketBuf {
    let mut other = PacketBuf::with_capacity(before + packet.len() + behind, before);
    other.append(packet.len()).unwrap().copy_from_slice(packet.bytes());
    other.inherit(packet);
    other
}

fn assert_same(some: &[PacketBuf], others: &[PacketBuf], place: &str) {
    for (at, (one, other)) in some.iter().zip(others).enumerate() {
        assert_eq!(seen(one), seen(other), "{place}, {at}");
    }
    assert_eq!(some.len(), others.len(), "{place}");
}

/// A packet without the identification of outer headers and its checksum: the one encapsulated
/// first has the lower identification.
fn seen(packet: &PacketBuf) -> String {
    let PacketMeta { segments, checksum, mark, if_id, udp } = **packet;
    let mut bytes = packet.bytes().to_vec();
    let frame = match segments {
        Segments::Burst { stride } => stride.into(),
        Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => bytes.len(),
    };
    for frame in bytes.chunks_mut(frame) {
        match frame[0] >> 4 {
            4 => [4..6, 10..12].into_iter().for_each(|field| frame[field].fill(0)),
            6 if frame[6] == Protocol::FRAGMENT.0 => frame[44..48].fill(0),
            _ => {}
        }
    }
    format!("{segments:?} {checksum:?} {mark} {if_id} {udp:?} {bytes:02x?}")
}

#[test]
fn interleaved_flows_agree_with_single_packets() {
    let mut reasons = BTreeSet::new();
    for seed in 0..6 {
        let mut twins = Twins::new(LifetimeLimits::default(), seed);
        for round in 0..300 {
            let packets = [16, 40, 64, 150, 240][twins.rng.below(5)];
            let often = [1, 8, 50][round / 100];
            twins.send(packets, often);
            if twins.rng.permille(30) {
                twins.change();
            }
        }
        let Ways { parsed, looked_up } = twins.ways;
        assert!(looked_up - parsed > 25, "{looked_up} - {parsed} times together");
        assert_eq!(twins.events, twins.alone.events);
        reasons.extend(twins.alone.reasons().into_iter().map(|(reason, _)| reason));
    }
    assert!(reasons.len() >= 5, "{reasons:?}");
}

#[test]
fn interleaved_flows_stop_at_limits() {
    let packets = |soft, hard| LifetimeLimits {
        packets: SoftHardLimit { soft, hard },
        ..LifetimeLimits::default()
    };
    let bytes = |soft, hard| LifetimeLimits {
        bytes: SoftHardLimit { soft, hard },
        ..LifetimeLimits::default()
    };
    for (seed, limits) in
        (0..).zip([packets(50, 200), packets(20, 233), bytes(5000, 20_000), bytes(300, 25_000)])
    {
        let mut twins = Twins::new(limits, seed);
        for round in 1..=240 {
            twins.send([40, 64, 150, 240][round % 4], [1, 20][round % 2]);
            if round % 80 == 0 {
                (0..TUNNELS).for_each(|tunnel| twins.rekey(tunnel, 0));
            }
        }
        let Ways { parsed, looked_up } = twins.ways;
        assert!(looked_up - parsed > 20, "{looked_up} - {parsed} times together");
        assert!(twins.together.drops(DropReason::OutStateExpired) > 0, "mid-batch");
        let told = |events: &[Event]| {
            let mut told: Vec<_> = events.iter().map(|event| format!("{event:?}")).collect();
            told.sort_unstable();
            told
        };
        assert_eq!(told(&twins.events), told(&twins.alone.events));
    }
}

/// Numbers that end within a batch.
#[test]
fn sa_stops_at_last_sequence_number() {
    let mut twins = Twins::new(LifetimeLimits::default(), 9);
    (0..8).for_each(|_| twins.send(240, 1));
    for tunnel in 0..8 {
        twins.rekey(tunnel, u64::from(u32::MAX) - 150 - tunnel as u64);
    }
    (0..30).for_each(|_| twins.send(240, 1));
    let reasons = twins.together.reasons();
    assert!(twins.together.drops(DropReason::OutSequenceOverflow) > 50, "{reasons:?}");
    let Ways { parsed, looked_up } = twins.ways;
    assert!(looked_up - parsed > 10, "{looked_up} - {parsed} times together");
}

/// Each SA's numbers are in order on the wire, each once, also with two policies.
#[test]
fn sa_numbers_are_assigned_in_order() {
    let mut twins = Twins::new(LifetimeLimits::default(), 10);
    (0..8).for_each(|_| twins.send(240, 20));
    let batch: Vec<_> = (0..250).map(|_| twins.packet(20)).collect();
    let mut latest: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for packet in twins.together.outbound(batch).0 {
        let bytes = packet.bytes();
        if bytes[0] != 0x45 || bytes[9] != Protocol::ESP.0 {
            continue;
        }
        let count = match packet.segments {
            Segments::Burst { stride } => {
                u32::try_from(bytes.len()).unwrap().div_ceil(stride.into())
            }
            Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => 1,
        };
        let first = u32::from_be_bytes(*bytes[24..].first_chunk().unwrap());
        let before = latest.insert(bytes[20..24].to_vec(), first + count - 1);
        assert!(before.is_none_or(|before| first == before + 1), "{before:?} {first}");
    }
    assert!(latest.len() > 20);
}

/// Batches of packets to all tunnels but the odd ones, in turn: how many leave by each.
fn send_in_turn(gateway: &mut TestGateway, output: &mut Output, batches: usize) -> Vec<usize> {
    let batch = |_| {
        let packet = |at: usize| {
            let to = format!("{}.1:9", network(at % FIRST_ODD));
            packets::udp("10.1.0.1:7", &to, &at.to_be_bytes())
        };
        let mut batch: Batch = (0..2 * FIRST_ODD).map(packet).collect();
        gateway.worker.outbound(&mut batch, gateway.now, &mut gateway.pool, output);
        output.wire.drain().len()
    };
    (0..batches).map(batch).collect()
}

fn with_states(limits: LifetimeLimits, change: impl Fn(&mut Policy)) -> TestGateway {
    let mut gateway = TestGatewayPair::without_sas(&IpsecSetup::tunnel4()).left;
    gateway.listen([]);
    for tunnel in 0..FIRST_ODD {
        let mut policy = policy(tunnel);
        change(&mut policy);
        gateway.add_policy(policy);
        gateway.add_sa(state(tunnel, 0x1000, limits));
    }
    gateway
}

/// Also before the database removes it.
#[test]
fn expired_sa_is_not_used_by_next_batch() {
    let packets = SoftHardLimit { soft: 50, hard: 75 };
    let mut gateway = with_states(LifetimeLimits { packets, ..LifetimeLimits::default() }, |_| {});
    gateway.database.set_acquires(uxfrm_engine::AcquireView::default());
    let sent = send_in_turn(&mut gateway, &mut Output::default(), 40);
    assert_eq!(sent.iter().sum::<usize>(), 75 * FIRST_ODD);
    assert_eq!(gateway.drops(DropReason::OutStateExpired), FIRST_ODD as u64);
    assert_eq!(gateway.drops(DropReason::OutNoState), (2 * FIRST_ODD * 2) as u64);
}

#[test]
fn optional_acquires_are_repeated() {
    let mut gateway = with_states(LifetimeLimits::default(), |policy| {
        let reqid = Reqid(7);
        let (level, mode) = (TemplateLevel::Use, Mode::Transport);
        policy.templates.push(Template { reqid, level, mode, ..policy.templates[0] });
    });
    let mut output = Output::default();
    for _ in 0..4 {
        let sent = send_in_turn(&mut gateway, &mut output, 40);
        assert_eq!(sent.iter().sum::<usize>(), 40 * 2 * FIRST_ODD);
        assert_eq!(std::mem::take(&mut output.events).len(), FIRST_ODD, "one for each tunnel");
        gateway.now = gateway.now.plus(std::time::Duration::from_secs(31));
    }
}

/// Two packets per batch match each policy: they are counted together for a while.
#[test]
fn policy_counters_are_deferred_and_complete() {
    let mut gateway = with_states(LifetimeLimits::default(), |_| {});
    let counted = |gateway: &TestGateway| {
        let snapshot = gateway.database.snapshot();
        snapshot.spd.iter().map(|policy| policy.packets()).sum::<u64>()
    };
    let batch = 2 * FIRST_ODD as u64;
    let after: Vec<u64> = (0..12)
        .map(|_| {
            send_in_turn(&mut gateway, &mut Output::default(), 1);
            counted(&gateway) / batch
        })
        .collect();
    assert_eq!(after, [1, 1, 1, 1, 1, 1, 1, 1, 9, 9, 9, 9], "16 packets each are enough");
    gateway.now = Moment(gateway.now.0 + 1_000_000);
    send_in_turn(&mut gateway, &mut Output::default(), 1);
    assert_eq!(counted(&gateway), 13 * batch);
    send_in_turn(&mut gateway, &mut Output::default(), 1);
    gateway.worker.settle();
    assert_eq!(counted(&gateway), 14 * batch);
}

/// Shared counters are not written for each packet. SAs with limits count at once:
/// `interleaved_flows_stop_at_limits`.
#[test]
fn sa_counters_are_deferred_and_complete() {
    let mut gateway = with_states(LifetimeLimits::default(), |_| {});
    let batch = 2 * FIRST_ODD as u64;
    let counted = |gateway: &TestGateway| {
        let snapshot = gateway.database.snapshot();
        snapshot.sad.iter().map(|sa| sa.usage().packets()).sum::<u64>() / batch
    };
    let after = |gateway: &mut TestGateway, microseconds: u64| {
        gateway.now = Moment(gateway.now.0 + microseconds * 1000);
        send_in_turn(gateway, &mut Output::default(), 1);
        counted(gateway)
    };
    // Sparse packets.
    assert_eq!([0, 0].map(|more| after(&mut gateway, more)), [1, 2]);
    let counts: Vec<u64> = (1..=101).map(|_| after(&mut gateway, 99)).collect();
    assert_eq!(counts, [2; 101]);
    assert_eq!(after(&mut gateway, 99), 104, "ten milliseconds");
    assert_eq!([50, 0, 100].map(|more| after(&mut gateway, more)), [104, 104, 107], "time for it");
    assert_eq!([50, 50].map(|more| after(&mut gateway, more)), [107, 107]);
    assert!(gateway.worker.has_deferred());
    gateway.worker.settle();
    assert!(!gateway.worker.has_deferred());
    assert_eq!(counted(&gateway), 109, "who has nothing to do owes nothing");
    assert_eq!(after(&mut gateway, 0), 109);
    gateway.add_sa(state(FIRST_ODD, 0x1000, LifetimeLimits::default()));
    assert_eq!(after(&mut gateway, 0), 111, "nothing is owed from before a change");
    let owes = |gateway: &mut TestGateway| counted(gateway) == after(gateway, 0);
    assert!((0..100).any(|_| owes(&mut gateway)), "as before");
    let snapshot = gateway.database.snapshot();
    drop(gateway);
    let sent = |sa: &Sa| (sa.usage().packets(), sa.sequence().last());
    assert!(snapshot.sad.iter().all(|sa| sent(sa).0 == sent(sa).1), "nor by a worker that ends");
}
