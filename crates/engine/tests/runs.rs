//! Runs of packets that share a flow and an SA take a fast path, whose result must not differ from
//! that of single packets. Two gateways get the same packets of all kinds: one in batches, the
//! other one by one and without flow cache, so that it has no fast path.

use std::time::Duration;

use uxfrm_engine::{
    Action, CacheMode, CacheSettings, Direction, DropReason, Family, IfId, LifetimeLimits, Mark,
    Mode, Output, Priority, SaExtraFlags, SaFlags, SoftHardLimit, UdpEncapKind, WireHeaders,
};
use uxfrm_packet::{Batch, Checksum, PacketBuf, PacketMeta, Protocol, Segments};
use uxfrm_testkit::{
    EspSuite, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets,
};

struct Twins {
    batched: TestGateway,
    plain: TestGateway,
    inner: Family,
    mode: Mode,
    rng: Rng,
}

/// An outgoing packet with its metadata.
#[derive(Debug, PartialEq)]
struct Left {
    bytes: Vec<u8>,
    segments: Segments,
    checksum: Checksum,
    mark: u32,
    udp: Option<uxfrm_packet::UdpPath>,
}

impl Twins {
    fn new(setup: &IpsecSetup, output_mark: Mark, seed: u64) -> Self {
        let gateway = |mode| {
            let mut setup = setup.clone();
            setup.settings.cache = CacheSettings { mode, flows: 4096 }.into();
            let mut gateway = TestGatewayPair::without_sas(&setup).left;
            let mut sa = setup.sa(PairDirection::LeftToRight, 0x1000);
            sa.output_mark = output_mark;
            gateway.add_sa(sa);
            for (mark, if_id) in [(9, 0), (0, 9)] {
                let mut blocks = setup.policy(Direction::Out, PairDirection::LeftToRight);
                blocks.priority = Priority(1);
                blocks.action = Action::Block;
                blocks.templates.clear();
                blocks.mark = Mark { value: mark, mask: mark };
                blocks.if_id = IfId(if_id);
                gateway.add_policy(blocks);
            }
            gateway
        };
        let (batched, plain) = (gateway(CacheMode::On), gateway(CacheMode::Off));
        Self { batched, plain, inner: setup.inner, mode: setup.mode, rng: Rng::new(seed) }
    }

    fn hosts(&mut self) -> (String, String) {
        let host = 1 + self.rng.below(2);
        match (self.mode, self.inner) {
            (Mode::Tunnel, Family::V4) => ("10.1.0.1:7".into(), format!("10.2.0.{host}:9")),
            (Mode::Tunnel, Family::V6) => ("[fd00:1::1]:7".into(), format!("[fd00:2::{host}]:9")),
            (_, Family::V4) => ("192.0.2.1:7".into(), format!("192.0.2.2:{host}")),
            (_, Family::V6) => ("[2001:db8::1]:7".into(), format!("[2001:db8::2]:{host}")),
        }
    }

    /// A run of one flow, mostly common packets.
    fn run(&mut self, into: &mut Vec<PacketBuf>) {
        let (from, to) = self.hosts();
        for _ in 0..1 + self.rng.below(30) {
            let most = if self.rng.permille(900) { 300 } else { 1700 };
            let payload = vec![7; self.rng.below(most)];
            let mut packet = packets::udp(&from, &to, &payload);
            if self.inner == Family::V4 && self.rng.permille(300) {
                packet = packets::dont_fragment(packet);
            }
            if self.rng.permille(300) {
                let tos = self.rng.next_u64().to_le_bytes()[0];
                packet = with_tos(packet, tos);
            }
            if self.rng.permille(150) {
                self.disturb(&from, &to, &mut packet, into);
            }
            into.push(packet);
        }
    }

    /// Makes the packet uncommon, or puts one before it.
    fn disturb(&mut self, from: &str, to: &str, packet: &mut PacketBuf, into: &mut Vec<PacketBuf>) {
        match self.rng.below(11) {
            0 => packet.mark = 9,
            1 => packet.if_id = 9,
            2 => {
                let start = if self.inner == Family::V4 { 20 } else { 40 };
                packet.checksum = Checksum::Partial { start, offset: 6 };
            }
            3 => packet.append(3).expect("room behind it").fill(0xee),
            4 => *packet = within(packet, self.rng.below(60), 400),
            5 => *packet = within(packet, 200, self.rng.below(60)),
            6 if self.inner == Family::V4 => into.extend(packets::fragments(packet.bytes(), 64)),
            6 => *packet = first_fragment(packet),
            7 => into.push(packets::tcp_super(from, to, &[5; 3000], 1000)),
            8 => packet.trim(packet.len() - 1),
            9 => packet.checksum = Checksum::Verified,
            _ if self.inner == Family::V4 => *packet = with_option(packet),
            _ => packet.mark = 1,
        }
    }

    fn send(&mut self) {
        let mut batch = Vec::new();
        for _ in 0..self.rng.below(4) {
            self.run(&mut batch);
        }
        batch.truncate(if self.rng.permille(200) { 1 } else { 200 });
        let (mut wire, mut host) = (Vec::new(), Vec::new());
        for packet in &batch {
            let again = within(packet, packet.headroom(), packet.tailroom());
            let (to_wire, to_host) = self.plain.outbound(vec![again]);
            wire.extend(to_wire);
            host.extend(to_host);
        }
        let (batched, batched_host) = self.batched.outbound(batch);
        assert_same(&batched, &wire, "on the wire");
        // Single packets see the end of an SA sooner, before a packet is too big for it.
        if self.plain.drops(DropReason::OutNoState) == 0 {
            assert_same(&batched_host, &host, "back to the host");
            assert_eq!(self.batched.worker.outward(), self.plain.worker.outward());
        }
        assert_eq!(counts(&self.batched), counts(&self.plain));
        self.batched.assert_packets_accounted();
    }
}

/// The same packet and metadata in a buffer with this headroom and tailroom.
fn within(packet: &PacketBuf, before: usize, behind: usize) -> PacketBuf {
    let mut other = PacketBuf::with_capacity(before + packet.len() + behind, before);
    other.append(packet.len()).expect("room for it").copy_from_slice(packet.bytes());
    other.inherit(packet);
    other
}

fn with_tos(mut packet: PacketBuf, tos: u8) -> PacketBuf {
    if packet.bytes()[0] >> 4 == 4 {
        return packets::with_tos(packet, tos);
    }
    packet.bytes_mut()[0] = 0x60 | tos >> 4;
    packet.bytes_mut()[1] = tos << 4;
    packet
}

/// An IPv6 packet as the first of several fragments.
fn first_fragment(packet: &PacketBuf) -> PacketBuf {
    let bytes = packet.bytes();
    let mut longer = [&bytes[..40], &[bytes[6], 0, 0, 1, 0, 0, 0, 5], &bytes[40..]].concat();
    longer[6] = Protocol::FRAGMENT.0;
    let len = u16::from_be_bytes([longer[4], longer[5]]) + 8;
    longer[4..6].copy_from_slice(&len.to_be_bytes());
    PacketBuf::from_slice(&longer)
}

/// An IPv4 packet with a no-operation option.
fn with_option(packet: &PacketBuf) -> PacketBuf {
    let bytes = packet.bytes();
    let mut longer = [&bytes[..20], &[1, 1, 1, 0], &bytes[20..]].concat();
    longer[0] = 0x46;
    let len = u16::from_be_bytes([longer[2], longer[3]]) + 4;
    longer[2..4].copy_from_slice(&len.to_be_bytes());
    PacketBuf::from_slice(&longer)
}

fn assert_same(some: &[PacketBuf], others: &[PacketBuf], place: &str) {
    for (at, (one, other)) in some.iter().zip(others).enumerate() {
        assert_eq!(Left::of(one), Left::of(other), "{place}, {at}");
    }
    assert_eq!(some.len(), others.len(), "{place}");
}

/// The packet encapsulated first has the lower identification.
fn forget_identification(frame: &mut [u8]) {
    match frame[0] >> 4 {
        4 => {
            frame[4..6].fill(0);
            // The checksum covers it.
            frame[10..12].fill(0);
        }
        6 if frame[6] == Protocol::FRAGMENT.0 => frame[44..48].fill(0),
        _ => {}
    }
}

impl Left {
    fn of(packet: &PacketBuf) -> Self {
        let PacketMeta { segments, checksum, mark, udp, .. } = **packet;
        let mut bytes = packet.bytes().to_vec();
        let frame = match segments {
            Segments::Burst { stride } => stride.into(),
            Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => bytes.len(),
        };
        if udp.is_none() {
            bytes.chunks_mut(frame).for_each(forget_identification);
        }
        Self { bytes, segments, checksum, mark, udp }
    }
}

/// Packets and bytes of each policy and SA.
fn counts(gateway: &TestGateway) -> Vec<(u64, u64)> {
    let snapshot = gateway.database.snapshot();
    let policies = snapshot.spd.iter().map(|entry| (entry.packets(), entry.bytes()));
    let states = snapshot.sad.iter().map(|sa| (sa.usage().packets(), sa.usage().bytes()));
    policies.chain(states).collect()
}

fn check(setup: &IpsecSetup) {
    let marks = [Mark::default(), Mark { value: 6, mask: 7 }];
    for (seed, mark) in (0..6).zip(marks.into_iter().cycle()) {
        let mut twins = Twins::new(setup, mark, seed);
        for _ in 0..80 {
            twins.send();
            assert_eq!(twins.batched.reasons(), twins.plain.reasons());
        }
        let hits = twins.batched.worker.caches().outbound.hits;
        assert!(hits > 100, "{hits} hits: the fast path was hardly taken");
    }
}

#[test]
fn tunnel_runs_agree_with_single_packets() {
    for inner in [Family::V4, Family::V6] {
        for outer in [Family::V4, Family::V6] {
            for suite in [EspSuite::Gcm128, EspSuite::NullSha1] {
                check(&IpsecSetup { suite, ..IpsecSetup::new(Mode::Tunnel, inner, outer) });
            }
        }
    }
}

#[test]
fn transport_runs_agree_with_single_packets() {
    for family in [Family::V4, Family::V6] {
        check(&IpsecSetup::new(Mode::Transport, family, family));
    }
}

#[test]
fn udp_runs_agree_with_single_packets() {
    for outer in [Family::V4, Family::V6] {
        for mode in [Mode::Tunnel, Mode::Transport] {
            for kind in UdpEncapKind::processed() {
                for headers in [WireHeaders::Engine, WireHeaders::UdpSocket] {
                    let mut setup = IpsecSetup::new(mode, outer, outer);
                    setup.encap = Some(kind);
                    setup.settings.headers = headers;
                    check(&setup);
                }
            }
        }
    }
}

#[test]
fn sa_options_agree_with_single_packets() {
    for flags in [SaFlags::NOECN, SaFlags::NOPMTUDISC, SaFlags::ESN] {
        check(&IpsecSetup { flags, ..IpsecSetup::tunnel4() });
    }
    let extra_flags = SaExtraFlags::DONT_ENCAP_DSCP;
    check(&IpsecSetup { extra_flags, ..IpsecSetup::tunnel4() });
    check(&IpsecSetup { tfc_padding: 200, ..IpsecSetup::tunnel4() });
}

#[test]
fn batch_is_cut_at_hard_limit() {
    for hard in [100, 333] {
        let packets = SoftHardLimit { soft: 50, hard };
        check_to_the_end(&IpsecSetup {
            limits: LifetimeLimits { packets, ..LifetimeLimits::default() },
            ..IpsecSetup::tunnel4()
        });
        let bytes = SoftHardLimit { soft: 5000, hard: hard * 100 };
        check_to_the_end(&IpsecSetup {
            limits: LifetimeLimits { bytes, ..LifetimeLimits::default() },
            ..IpsecSetup::transport4()
        });
    }
}

#[test]
fn single_packets_stop_at_hard_limit() {
    let packets = SoftHardLimit { soft: 50, hard: 70 };
    let limits = LifetimeLimits { packets, ..LifetimeLimits::default() };
    let mut twins = Twins::new(&IpsecSetup { limits, ..IpsecSetup::tunnel4() }, Mark::default(), 1);
    for at in 0..80 {
        let packet = || vec![packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload")];
        let (wire, _) = twins.plain.outbound(packet());
        assert_same(&twins.batched.outbound(packet()).0, &wire, "on the wire");
        assert_eq!(wire.len(), usize::from(at < 70), "packet {at}");
    }
    assert_eq!(twins.batched.events, twins.plain.events);
}

/// Shared counters are not written for each packet of SAs without limits, here and at the peer, but
/// soon.
#[test]
fn single_packets_are_counted_later() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let counted = |pair: &TestGatewayPair| {
        [&pair.left, &pair.right].map(|gateway| {
            let snapshot = gateway.database.snapshot();
            snapshot.sad.iter().map(|sa| sa.usage().packets()).sum::<u64>()
        })
    };
    // Through workers directly: test gateways flush after each batch.
    let mut out = Output::default();
    let mut send = |pair: &mut TestGatewayPair| {
        let mut batch: Batch =
            [packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload")].into_iter().collect();
        let TestGateway { worker, now, pool, .. } = &mut pair.left;
        worker.outbound(&mut batch, *now, pool, &mut out);
        let mut batch: Batch = out.wire.drain().collect();
        let TestGateway { worker, now, pool, .. } = &mut pair.right;
        worker.inbound(&mut batch, *now, pool, &mut out);
        assert_eq!(out.host.drain().count(), 1);
    };
    (0..20).for_each(|_| send(&mut pair));
    let before = counted(&pair);
    assert!(before.iter().all(|packets| (1..20).contains(packets)), "{before:?}");
    pair.wait(Duration::from_micros(100));
    send(&mut pair);
    assert_eq!(counted(&pair), [21, 21]);
    send(&mut pair);
    assert_eq!(counted(&pair), [21, 21]);
    [&mut pair.left, &mut pair.right].into_iter().for_each(|gateway| gateway.worker.settle());
    assert_eq!(counted(&pair), [22, 22], "who has nothing to do owes nothing");
}

fn check_to_the_end(setup: &IpsecSetup) {
    for seed in 0..10 {
        let mut twins = Twins::new(setup, Mark::default(), seed);
        (0..30).for_each(|_| twins.send());
        // The drop reason after expiry depends on whether the flow was cached.
        assert!(twins.batched.drops(DropReason::OutStateExpired) > 0);
        assert_eq!(twins.batched.events, twins.plain.events);
    }
}
