//! Templates of earlier packets change no result: one gateway takes packets in batches, the second
//! one by one, and the third likewise with its templates cleared in between. The SAs neither
//! encrypt nor authenticate, so that changed bytes reach the code behind.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod interleaved;
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use uxfrm_crypto::{KeyMaterial, Transform};
use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{
    Action, DeviceId, DeviceMetadata, DeviceStatus, Direction, DropReason, Event, Family, HostPort,
    HostView, IfId, Mark, Mode, OffloadKind, PathMtus, Policy, PolicyKey, PolicyKind, PolicyName,
    PortMask, Priority, ReceivedPacket, SaConfig, SaTransform, Settings, UdpEncapKind, UdpSuper,
};
use uxfrm_packet::{Checksum, PacketBuf, Protocol, Segments, UdpPath, ipv4};
use uxfrm_testkit::{
    EspSuite, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets,
};

/// Two SAs of each shape with consecutive SPIs, and one whose SPI has the same low bits.
const SPIS: [u32; 3] = [0, 1, 0x100];

/// Outer form of an SA's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outside {
    Ip,
    Udp,
    Socket,
}

#[derive(Clone, Debug)]
struct Shape {
    setup: IpsecSetup,
    outside: Outside,
    spi: u32,
}

fn shapes() -> Vec<Shape> {
    use Family::{V4, V6};
    let mut shapes = Vec::new();
    for (mode, inner, outer) in [
        (Mode::Tunnel, V4, V4),
        (Mode::Tunnel, V6, V6),
        (Mode::Tunnel, V6, V4),
        (Mode::Transport, V4, V4),
        (Mode::Transport, V6, V6),
    ] {
        for outside in [Outside::Ip, Outside::Udp, Outside::Socket] {
            let encap = Some(UdpEncapKind::Esp).filter(|_| outside != Outside::Ip);
            let setup = IpsecSetup { encap, ..IpsecSetup::new(mode, inner, outer) };
            let spi = 0x1000 * (1 + u32::try_from(shapes.len()).unwrap());
            shapes.push(Shape { setup, outside, spi });
        }
    }
    shapes
}

impl Shape {
    fn state(&self, number: usize) -> SaConfig {
        let mut state = self.setup.sa(PairDirection::LeftToRight, self.spi + SPIS[number]);
        state.transform = SaTransform {
            transform: Transform::cipher_auth(None, None).unwrap(),
            encryption_key: KeyMaterial::empty(),
            authentication_key: KeyMaterial::empty(),
        };
        state.replay.window = [64, 8, 0][number];
        match number {
            0 => {}
            1 => state.output_mark = Mark { value: 7, mask: 0xf },
            _ => {
                state.mark = Mark { value: 3, mask: 0xff };
                state.flags = SaFlags::DECAP_DSCP;
            }
        }
        state
    }

    /// A plain packet that its SAs may carry.
    fn plain(&self, port: u16) -> Vec<u8> {
        let (source, destination) = self.setup.hosts(PairDirection::LeftToRight);
        let end = |address: IpAddr, port| match address {
            IpAddr::V4(address) => format!("{address}:{port}"),
            IpAddr::V6(address) => format!("[{address}]:{port}"),
        };
        packets::udp_bytes(&end(source, 7), &end(destination, port), b"payload of a packet")
    }

    /// ESP around a plain packet, and its outer headers.
    fn wrapped(&self, spi: u32, sequence: u32, plain: &[u8]) -> PacketBuf {
        let (header, kind) = match (self.setup.mode, plain[0] >> 4) {
            (Mode::Tunnel, 4) => (0, Protocol::IPIP),
            (Mode::Tunnel, _) => (0, Protocol::IPV6),
            (_, 4) => (20, Protocol(plain[9])),
            (_, _) => (40, Protocol(plain[6])),
        };
        let mut esp = [spi.to_be_bytes(), sequence.to_be_bytes()].concat();
        esp.extend(&plain[header..]);
        let padding = (4 - (esp.len() + 2) % 4) % 4;
        esp.extend((1..=u8::try_from(padding).unwrap()).chain([u8::try_from(padding).unwrap()]));
        esp.push(kind.0);
        let (source, destination) = self.setup.gateways(PairDirection::LeftToRight);
        let len = u16::try_from(8 + esp.len()).unwrap().to_be_bytes();
        let head = [4500_u16.to_be_bytes(), 4500_u16.to_be_bytes(), len, [0, 0]].concat();
        match self.outside {
            Outside::Ip => {
                PacketBuf::from_slice(&packets::ip(source, destination, Protocol::ESP, &esp))
            }
            Outside::Udp => {
                let upper = [head, esp].concat();
                PacketBuf::from_slice(&packets::ip(source, destination, Protocol::UDP, &upper))
            }
            Outside::Socket => {
                let mut packet = PacketBuf::from_slice(&esp);
                let (local, remote) = ((destination, 4500).into(), (source, 4500).into());
                packet.udp = Some(UdpPath { local, remote, tos: 0, dont_fragment: false });
                packet
            }
        }
    }
}

fn gateway() -> TestGateway {
    let addresses = ["192.0.2.2", "2001:db8::2", "10.2.0.1"];
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    let mut gateway = TestGateway::new(Settings { addresses, ..Settings::default() });
    for shape in shapes() {
        (0..SPIS.len()).for_each(|number| gateway.add_sa(shape.state(number)));
    }
    for shape in shapes().iter().filter(|shape| shape.outside == Outside::Ip) {
        if shape.setup.outer != shape.setup.inner {
            continue;
        }
        for direction in [Direction::In, Direction::Forward] {
            let mut policy = shape.setup.policy(direction, PairDirection::LeftToRight);
            policy.templates[0].source = shape.setup.outer.unspecified();
            let blocked = |mark, if_id| Policy {
                priority: Priority(1),
                action: Action::Block,
                mark: Mark { value: mark, mask: if mark == 0 { 0 } else { u32::MAX } },
                if_id: IfId(if_id),
                templates: Vec::new(),
                ..policy.clone()
            };
            let mut to_a_port = blocked(0, 0);
            to_a_port.selector.destination_port = PortMask::exactly(9999);
            gateway.add_policy(to_a_port);
            gateway.add_policy(blocked(7, 0));
            gateway.add_policy(blocked(0, 9));
            gateway.add_policy(policy);
        }
    }
    gateway
}

/// Clears the templates by a change of policies.
fn forget(gateway: &mut TestGateway) {
    let policy = IpsecSetup::tunnel4().policy(Direction::Out, PairDirection::RightToLeft);
    let key = PolicyKey {
        direction: policy.direction,
        kind: PolicyKind::Main,
        mark: policy.mark,
        if_id: policy.if_id,
        name: PolicyName::Selector(policy.selector),
    };
    gateway.add_policy(policy);
    gateway.database.apply(gateway.now, |to| to.delete_policy(&key).map(|_| ())).unwrap();
}

fn copy(packet: &PacketBuf) -> PacketBuf {
    let mut copy = PacketBuf::from_slice(packet.bytes());
    copy.inherit(packet);
    copy
}

/// What came out, by what is seen of it.
fn seen(packets: &[PacketBuf]) -> Vec<String> {
    let seen = |packet: &PacketBuf| format!("{:?} {:02x?}", **packet, packet.bytes());
    packets.iter().map(seen).collect()
}

/// Drop reasons. Which of two reasons a replayed number gets depends on whether the batch has moved
/// the window already.
fn reasons(gateway: &TestGateway) -> BTreeMap<DropReason, u64> {
    let mut reasons: BTreeMap<_, _> = gateway.reasons().into_iter().collect();
    let old = reasons.remove(&DropReason::InTooOld).unwrap_or(0);
    *reasons.entry(DropReason::InReplay).or_default() += old;
    reasons
}

/// All three gateways take the same packets; their output.
struct Three {
    together: TestGateway,
    in_turn: TestGateway,
    alone: TestGateway,
}

impl Three {
    fn new() -> Self {
        Self { together: gateway(), in_turn: gateway(), alone: gateway() }
    }

    fn take(&mut self, batch: Vec<PacketBuf>, what: &str) -> Vec<PacketBuf> {
        let (mut one_by_one, mut in_turn) = (Vec::new(), Vec::new());
        for packet in &batch {
            forget(&mut self.alone);
            one_by_one.extend(self.alone.inbound(vec![copy(packet)]));
            in_turn.extend(self.in_turn.inbound(vec![copy(packet)]));
        }
        let before = format!("{:#?}", seen(&batch));
        let arrived = self.together.inbound(batch);
        assert_eq!(seen(&arrived), seen(&one_by_one), "{what}: {before}");
        assert_eq!(reasons(&self.together), reasons(&self.alone), "{what}: {before}");
        assert_eq!(seen(&in_turn), seen(&one_by_one), "{what}, in turn: {before}");
        assert_eq!(self.in_turn.reasons(), self.alone.reasons(), "{what}, in turn: {before}");
        self.together.assert_packets_accounted();
        self.in_turn.assert_packets_accounted();
        arrived
    }

    /// Counters of SAs and policies, traffic, and events.
    fn assert_same_counts(&self) {
        let counts = |gateway: &TestGateway| {
            let snapshot = gateway.database.snapshot();
            let states = snapshot.sad.iter().map(|sa| {
                (sa.id(), sa.usage().packets(), sa.usage().bytes(), sa.highest_received())
            });
            let states: BTreeSet<_> = states.map(|counts| format!("{counts:?}")).collect();
            let policies = snapshot.spd.iter().map(|entry| (entry.packets(), entry.bytes()));
            let events: BTreeSet<_> =
                gateway.events.iter().map(|event| format!("{event:?}")).collect();
            (states, policies.collect::<Vec<_>>(), gateway.worker.inward(), events)
        };
        assert_eq!(counts(&self.together), counts(&self.alone));
        assert_eq!(counts(&self.in_turn), counts(&self.alone));
    }
}

/// Changes a packet: bytes of the plain one, bytes of the whole, or trailing bytes.
fn change(packet: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(packet.len().min(64));
    match rng.below(9) {
        // The offsets of flow, lengths and fragment bits.
        0 => packet[rng.below(12)] ^= 1 << rng.below(8),
        1 => packet[at] ^= 1 << rng.below(8),
        2 => packet[1] ^= 1 << rng.below(8),
        3 => packet[6] ^= 0x20,
        4 => packet[2..4].copy_from_slice(&[0, [19, 20, 22, 23, 24, 28][rng.below(6)]]),
        5 => packet.truncate(packet.len() - 1 - rng.below(packet.len() - 20)),
        6 => packet.extend([0; 3]),
        7 => packet[8] ^= 0x11,
        _ => packet[9] = [4, 6, 17, 41, 50, 1][rng.below(6)],
    }
    if rng.permille(700) && packet[0] == 0x45 {
        let _cut_short = ipv4::fill_checksum(packet);
    }
}

/// Mostly the next packet of the first SA; about `often` of a thousand differ in each of some ways.
fn next(shape: &Shape, sequence: &mut [u32; 4], often: usize, rng: &mut Rng) -> PacketBuf {
    let number = if rng.permille(often) { rng.below(4) } else { 0 };
    let mut rarely =
        |below| if rng.permille(often) { u32::try_from(rng.below(below)).unwrap() } else { 0 };
    sequence[number] += 1 + rarely(80);
    let replayed = rarely(70);
    let sequence = sequence[number].saturating_sub(replayed);
    let mut plain = shape.plain(if rng.permille(often) { 4500 } else { 9 });
    if rng.permille(often) {
        change(&mut plain, rng);
    }
    plain.resize(plain.len().max(48), 0);
    let spi = shape.spi + SPIS.get(number).unwrap_or(&5);
    let whole = shape.wrapped(spi, sequence, &plain);
    let mut bytes = whole.bytes().to_vec();
    if rng.permille(often) {
        change(&mut bytes, rng);
    }
    let mut packet = PacketBuf::from_slice(&bytes);
    packet.inherit(&whole);
    packet.mark = if number == 2 { 3 } else { 0 };
    match rng.below(16_000 / often) {
        0 => packet.mark ^= 3,
        1 => packet.mark = 7,
        2 => packet.if_id = 9,
        3 => packet.segments = Segments::Burst { stride: u16::try_from(bytes.len() / 2).unwrap() },
        4..8 => packet.udp.iter_mut().for_each(|path| path.remote.set_port(1234)),
        8 => packet.udp.iter_mut().for_each(|path| path.local.set_ip([192, 0, 2, 9].into())),
        9 => packet.udp.iter_mut().for_each(|path| path.tos = 3),
        _ => {}
    }
    packet
}

/// Batches of packets of which about `often` in a thousand differ in each of some ways. Returns how
/// many passed.
fn batches_as_one_by_one(often: usize, sizes: [usize; 5], seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let mut passed = 0;
    for shape in shapes() {
        for round in 0..10 {
            let (mut three, mut sequence) = (Three::new(), [0; 4]);
            for batch in 0..8 {
                let size = sizes[rng.below(5)];
                let mut next = || next(&shape, &mut sequence, often, &mut rng);
                let packets = (0..size).map(|_| next()).collect();
                passed += three.take(packets, &format!("{shape:?} {round} {batch}")).len();
            }
            three.assert_same_counts();
        }
    }
    passed
}

#[test]
fn batches_agree_with_single_packets() {
    let passed = batches_as_one_by_one(80, [1, 2, 5, 40, 150], 35);
    assert!(passed > 8000, "{passed} passed");
}

/// All shapes and SAs in turn, so that each is found by its SPI.
#[test]
fn alternating_sas_agree_with_single_packets() {
    let mut three = Three::new();
    let shapes = shapes();
    let mut passed = 0;
    for sequence in 1..200 {
        let batch = shapes.iter().enumerate().flat_map(|(at, shape)| {
            let spis = SPIS.iter().take(if sequence % 3 == 0 { 3 } else { 1 + at % 2 });
            spis.map(move |spi| {
                let mut packet = shape.wrapped(shape.spi + spi, sequence, &shape.plain(9));
                packet.mark = if *spi == SPIS[2] { 3 } else { 0 };
                packet
            })
        });
        passed += three.take(batch.collect(), "in turn").len();
    }
    three.assert_same_counts();
    assert!(passed > 2000, "{passed} passed, {:?}", three.together.reasons());
}

/// Each packet differs from the others in one field that matters.
#[test]
fn any_field_difference_leaves_fast_path() {
    type Twist = fn(&Shape, &mut PacketBuf);
    let twists: [(&str, Option<DropReason>, Twist); 14] = [
        ("nothing", None, |_, _| {}),
        ("outer SPI", Some(DropReason::InNoState), |_, packet| packet.bytes_mut()[23] = 0x77),
        ("outer checksum", Some(DropReason::InChecksum), |_, packet| packet.bytes_mut()[10] ^= 1),
        ("outer length", Some(DropReason::InMalformed), |_, packet| packet.trim(packet.len() - 1)),
        ("outer TTL", None, |_, packet| {
            packet.bytes_mut()[8] = 9;
            ipv4::fill_checksum(packet.bytes_mut()).unwrap();
        }),
        ("outer destination", None, |_, packet| {
            packet.bytes_mut()[19] = 9;
            ipv4::fill_checksum(packet.bytes_mut()).unwrap();
        }),
        ("congestion", Some(DropReason::InEcn), |_, packet| {
            packet.bytes_mut()[1] = 3;
            ipv4::fill_checksum(packet.bytes_mut()).unwrap();
        }),
        ("mark", Some(DropReason::InPolicyBlock), |_, packet| packet.mark = 7),
        ("if_id", Some(DropReason::InPolicyBlock), |_, packet| packet.if_id = 9),
        ("inner checksum", Some(DropReason::InInnerChecksum), |_, packet| {
            packet.bytes_mut()[38] ^= 1
        }),
        ("inner source", Some(DropReason::InNoPolicy), |_, packet| {
            packet.bytes_mut()[40] = 99;
            ipv4::fill_checksum(&mut packet.bytes_mut()[28..]).unwrap();
        }),
        ("inner length", Some(DropReason::InInnerMalformed), |_, packet| {
            packet.bytes_mut()[31] += 4;
            ipv4::fill_checksum(&mut packet.bytes_mut()[28..]).unwrap();
        }),
        ("inner TTL", None, |_, packet| {
            packet.bytes_mut()[36] = 9;
            ipv4::fill_checksum(&mut packet.bytes_mut()[28..]).unwrap();
        }),
        ("padding", Some(DropReason::InPadding), |_, packet| {
            let last = packet.len() - 2;
            packet.bytes_mut()[last] = 200;
        }),
    ];
    let shape = &shapes()[0];
    for (what, reason, twist) in twists {
        let mut three = Three::new();
        for round in 0..3 {
            let mut batch: Vec<_> = (1..=9)
                .map(|number| shape.wrapped(shape.spi, 10 * round + number, &shape.plain(9)))
                .collect();
            twist(shape, &mut batch[5]);
            let arrived = three.take(batch, what).len();
            assert_eq!(arrived, if reason.is_some() { 8 } else { 9 }, "{what}");
        }
        let reasons: Vec<_> = reason.map(|reason| (reason, 3)).into_iter().collect();
        assert_eq!(three.together.reasons(), reasons, "{what}");
    }
}

/// Packets that end before their ports, with trailing bytes that look like ports.
#[test]
fn trailing_bytes_are_ignored() {
    let shape = &shapes()[0];
    let mut three = Three::new();
    for round in 0..3 {
        let plain = |short: bool| {
            let mut plain = shape.plain(9999);
            if short {
                plain[3] = 22;
                ipv4::fill_checksum(&mut plain).unwrap();
            }
            plain
        };
        let shorts = [true, true, true, false, true, false];
        let batch = (1..)
            .zip(shorts)
            .map(|(at, short)| shape.wrapped(shape.spi, 10 * round + at, &plain(short)));
        assert_eq!(three.take(batch.collect(), "short").len(), 4);
    }
}

/// A payload in transport mode may look like a tunnel's.
#[test]
fn transport_packet_is_not_taken_for_tunnel() {
    let shape = &shapes()[9];
    assert_eq!((shape.setup.mode, shape.outside), (Mode::Transport, Outside::Ip));
    let mut three = Three::new();
    for round in 0..3 {
        let (source, destination) = shape.setup.hosts(PairDirection::LeftToRight);
        let ipip = packets::ip(source, destination, Protocol::IPIP, &shape.plain(9));
        let plain = [shape.plain(9), shape.plain(9), ipip, shape.plain(9)];
        let batch =
            (1..).zip(plain).map(|(at, plain)| shape.wrapped(shape.spi, 10 * round + at, &plain));
        let arrived = three.take(batch.collect(), "IPIP");
        assert_eq!((arrived.len(), arrived[2].bytes()[9]), (4, 4));
    }
}

/// Several packets in one buffer.
#[test]
fn burst_packets_are_delivered_singly() {
    let shape = &shapes()[0];
    let mut together = gateway();
    for round in 0..4_u32 {
        let mut number = 20 * round;
        let mut next = |_: usize| {
            number += 1;
            shape.wrapped(shape.spi, number, &shape.plain(9))
        };
        let mut batch: Vec<_> = (0..2).map(&mut next).collect();
        let segments: Vec<_> = (0..3).flat_map(|at| next(at).bytes().to_vec()).collect();
        let mut burst = PacketBuf::from_slice(&segments);
        burst.segments = Segments::Burst { stride: u16::try_from(segments.len() / 3).unwrap() };
        batch.push(burst);
        batch.extend((0..2).map(&mut next));
        let arrived = together.inbound(batch);
        assert_eq!(arrived.len(), 7);
        assert!(arrived.iter().all(|packet| packet.bytes() == shape.plain(9)), "round {round}");
    }
}

/// A peer that is behind a NAT now: each batch reports it.
#[test]
fn remapped_packets_raise_mapping_events() {
    for shape in [&shapes()[1], &shapes()[2]] {
        let mut together = gateway();
        for round in 0..4 {
            let batch = (1..=3).map(|number| {
                let mut packet = shape.wrapped(shape.spi, 10 * round + number, &shape.plain(9));
                match &mut packet.udp {
                    Some(path) => path.remote.set_port(1234),
                    None => packet.bytes_mut()[20..22].copy_from_slice(&1234_u16.to_be_bytes()),
                }
                packet
            });
            assert_eq!(together.inbound(batch.collect()).len(), 3);
            let told = std::mem::take(&mut together.events);
            assert!(matches!(told[..], [Event::Mapping { .. }]), "{told:?}");
        }
    }
}

/// Packets of one SPI whose SA requires a mark.
#[test]
fn other_mark_finds_other_sa() {
    let shape = &shapes()[0];
    let mut three = Three::new();
    for round in 0..3 {
        let marks = [3, 3, 4, 0, 0x103, 3];
        let marked = (1..).zip(marks).map(|(number, mark)| {
            let mut packet =
                shape.wrapped(shape.spi + SPIS[2], 10 * round + number, &shape.plain(9));
            packet.mark = mark;
            packet
        });
        assert_eq!(three.take(marked.collect(), "marks").len(), 4);
    }
    assert_eq!(three.together.reasons(), [(DropReason::InNoState, 6)]);
}

/// ESP in ESP in ESP has the same headers inside and outside.
#[test]
fn nested_layer_with_same_headers_is_decapsulated() {
    let shape = &shapes()[0];
    let mut three = Three::new();
    for round in 0..3 {
        let mut sequence = 40 * round;
        let mut wrapped = |layers| {
            let mut packet = shape.plain(9);
            for _ in 0..layers {
                sequence += 1;
                packet = shape.wrapped(shape.spi, sequence, &packet).bytes().to_vec();
            }
            PacketBuf::from_slice(&packet)
        };
        let batch = [1, 1, 2, 6, 7, 1].map(&mut wrapped).into();
        assert_eq!(three.take(batch, "layers").len(), 3);
    }
    // No policy has more than one template.
    let reasons = [(DropReason::InTooDeep, 3), (DropReason::InOtherState, 6)];
    assert_eq!(reasons.map(|(reason, _)| (reason, three.together.drops(reason))), reasons);
}

/// An address becomes the host's own between two batches of a flow. Nothing is encrypted, so the
/// forged packet matches inside.
#[test]
fn forged_packet_matching_template_is_dropped() {
    let mut pair =
        TestGatewayPair::new(&IpsecSetup { suite: EspSuite::NullSha1, ..IpsecSetup::tunnel4() });
    let datagram = || packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload");
    for forged in [false, false, false, true, false] {
        let mut wire = pair.left.outbound(vec![datagram()]).0;
        if forged {
            *wire[0].bytes_mut().last_mut().unwrap() ^= 1;
        }
        assert_eq!(pair.right.inbound(wire).len(), usize::from(!forged));
    }
    assert_eq!(pair.right.reasons(), [(DropReason::InForged, 1)]);
    pair.right.assert_packets_accounted();
}

/// The SA is on no device, so the device's verdict is worthless.
#[test]
fn matching_packet_with_foreign_device_mark_is_dropped() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let datagram = || packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload");
    for _ in 0..3 {
        let wire = pair.left.outbound(vec![datagram()]).0;
        assert_eq!(pair.right.inbound(wire).len(), 1);
    }
    let packet = pair.left.outbound(vec![datagram()]).0.remove(0);
    let metadata = Some(DeviceMetadata {
        device: DeviceId(9),
        handle: None,
        kind: OffloadKind::Crypto,
        status: DeviceStatus::Success,
        high: 0,
    });
    assert!(pair.right.inbound_from_device(vec![ReceivedPacket { packet, metadata }]).is_empty());
    assert_eq!(pair.right.reasons(), [(DropReason::InDeviceMark, 1)]);
}

/// As for super-packets.
#[test]
fn lone_packet_keeps_verified_checksum() {
    let host = HostPort::SuperPackets { udp: UdpSuper::Taken };
    let settings = Settings { host, ..Settings::default() };
    let mut pair = TestGatewayPair::new(&IpsecSetup { settings, ..IpsecSetup::tunnel4() });
    for _ in 0..4 {
        let datagram = packets::udp("10.1.0.1:7", "10.2.0.1:9", b"payload");
        let wire = pair.left.outbound(vec![datagram]).0;
        let arrived = pair.right.inbound(wire);
        let checksums: Vec<_> = arrived.iter().map(|packet| packet.checksum).collect();
        assert_eq!(checksums, [Checksum::Verified]);
    }
}

#[test]
fn host_change_clears_templates() {
    let shape = &shapes()[0];
    let mut gateway = gateway();
    let mut sequence = 0;
    let mut passes = |gateway: &mut TestGateway| {
        sequence += 3;
        let packet = |number: u32| shape.wrapped(shape.spi, sequence + number, &shape.plain(4500));
        gateway.inbound((0..3_u32).map(packet).collect()).len()
    };
    let with = |own: &[&str]| HostView {
        addresses: own.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect(),
        mtu: 1500,
        path_mtus: PathMtus::new(),
    };
    gateway.database.set_host(with(&["192.0.2.2"]));
    assert_eq!((passes(&mut gateway), passes(&mut gateway)), (3, 3));
    // Behind port 4500 of its own address, ESP is parsed: of no SA.
    gateway.database.set_host(with(&["192.0.2.2", "10.2.0.1"]));
    assert_eq!(passes(&mut gateway), 0);
    assert_eq!(gateway.reasons(), [(DropReason::InNoState, 3)]);
}
