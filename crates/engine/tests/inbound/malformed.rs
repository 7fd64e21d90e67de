//! Malformed packets inside ESP: each gets the same result among others and in bursts as alone at a
//! fresh gateway, and affects no other packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use uxfrm_engine::{
    Direction, DropReason, Family, HostPort, Mode, Settings, UdpEncapKind, UdpSuper,
};
use uxfrm_packet::{PacketBuf, Protocol, Segments, UdpPath, ipv4};
use uxfrm_testkit::{IpsecSetup, PairDirection, Rng, TestGateway, packets};

use super::open;

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
}

const TUNNELS: u32 = 30;

fn shapes() -> Vec<Shape> {
    use Family::{V4, V6};
    let mut shapes = Vec::new();
    for (mode, inner, outer) in [
        (Mode::Tunnel, V4, V4),
        (Mode::Tunnel, V6, V4),
        (Mode::Tunnel, V4, V6),
        (Mode::Tunnel, V6, V6),
        (Mode::Transport, V4, V4),
        (Mode::Transport, V6, V6),
    ] {
        for outside in [Outside::Ip, Outside::Udp, Outside::Socket] {
            let encap = Some(UdpEncapKind::Esp).filter(|_| outside != Outside::Ip);
            shapes.push(Shape {
                setup: IpsecSetup { encap, ..IpsecSetup::new(mode, inner, outer) },
                outside,
            });
        }
    }
    shapes
}

/// Payload, padding with its length, next header.
type Text = (Vec<u8>, Vec<u8>, u8);

impl Shape {
    fn gateway(&self, host: HostPort) -> TestGateway {
        let addresses =
            ["192.0.2.2", "2001:db8::2"].iter().map(|text| text.parse().unwrap()).collect();
        let mut gateway = TestGateway::new(Settings { addresses, host, ..Settings::default() });
        for direction in [Direction::In, Direction::Forward] {
            gateway.add_policy(self.setup.policy(direction, PairDirection::LeftToRight));
        }
        for tunnel in 0..TUNNELS {
            let mut state = self.setup.sa(PairDirection::LeftToRight, 0x1000 + tunnel);
            (state.transform, state.replay.window) = (open(), 0);
            gateway.add_sa(state);
        }
        gateway
    }

    fn wrapped(
        &self,
        spi: u32,
        sequence: u32,
        (payload, padding, next_header): &Text,
    ) -> PacketBuf {
        let (spi, sequence) = (spi.to_be_bytes(), sequence.to_be_bytes());
        let esp = [&spi[..], &sequence, payload, padding, &[*next_header]].concat();
        let (source, destination) = self.setup.gateways(PairDirection::LeftToRight);
        match self.outside {
            Outside::Ip => {
                PacketBuf::from_slice(&packets::ip(source, destination, Protocol::ESP, &esp))
            }
            Outside::Udp => {
                let len = u16::try_from(8 + esp.len()).unwrap().to_be_bytes();
                let upper =
                    [&4500_u16.to_be_bytes()[..], &4500_u16.to_be_bytes(), &len, &[0; 2], &esp];
                PacketBuf::from_slice(&packets::ip(
                    source,
                    destination,
                    Protocol::UDP,
                    &upper.concat(),
                ))
            }
            Outside::Socket => {
                let mut packet = PacketBuf::from_slice(&esp);
                packet.udp = Some(self.path());
                packet
            }
        }
    }

    fn path(&self) -> UdpPath {
        let (source, destination) = self.setup.gateways(PairDirection::LeftToRight);
        let (local, remote): (SocketAddr, SocketAddr) =
            ((destination, 4500).into(), (source, 4500).into());
        UdpPath { local, remote, tos: 0, dont_fragment: false }
    }

    fn plain(&self, protocol: Protocol, upper: &[u8]) -> Vec<u8> {
        let (source, destination) = self.setup.hosts(PairDirection::LeftToRight);
        packets::ip(source, destination, protocol, upper)
    }

    /// A common packet.
    fn good(&self, len: usize) -> Text {
        let (source, destination) = self.setup.hosts(PairDirection::LeftToRight);
        let end = |address: IpAddr, port| SocketAddr::new(address, port).to_string();
        let plain = packets::udp_bytes(&end(source, 7), &end(destination, 9), &vec![5; len]);
        self.text(plain)
    }

    fn text(&self, plain: Vec<u8>) -> Text {
        let (header, kind) = match (self.setup.mode, self.setup.inner) {
            (Mode::Tunnel, Family::V4) => (0, 4),
            (Mode::Tunnel, Family::V6) => (0, 41),
            (_, Family::V4) => (20, plain[9]),
            (_, Family::V6) => (40, plain[6]),
        };
        let payload = plain[header..].to_vec();
        let padding = padding(payload.len());
        (payload, padding, kind)
    }

    fn odd(&self) -> Vec<(String, Text)> {
        let mut odd = self.odd_trailers();
        match (self.setup.mode, self.setup.inner) {
            (Mode::Tunnel, Family::V4) => odd.extend(self.odd_v4()),
            (Mode::Tunnel, Family::V6) => odd.extend(self.odd_v6()),
            _ => {}
        }
        for (name, protocol, upper) in odd_uppers() {
            let text = self.text(self.plain(Protocol(protocol), &upper));
            odd.push((format!("upper: {name}"), text));
        }
        odd
    }

    fn odd_trailers(&self) -> Vec<(String, Text)> {
        let (payload, _, kind) = self.good(30);
        let mut odd = Vec::new();
        let mut add = |name: &str, text: Text| odd.push((name.to_owned(), text));
        for len in [0, 1, 64, 255] {
            let right: Vec<u8> = (1..=len).chain([len]).collect();
            add(&format!("padding of {len}"), (payload.clone(), right, kind));
        }
        add("padding longer than all", (payload.clone(), vec![255], kind));
        add("padding one longer than all", (vec![1; 9], vec![10], kind));
        add("padding of zeros", (payload.clone(), vec![0, 0, 0, 3], kind));
        add("last byte of padding wrong", (payload.clone(), vec![1, 2, 4, 3], kind));
        add("first byte of padding wrong", (payload.clone(), vec![9, 2, 3, 3], kind));
        add("dummy", (payload.clone(), padding(payload.len()), 59));
        add("dummy of nothing", (vec![], vec![1, 2, 2], 59));
        add("dummy with wrong padding", (payload.clone(), vec![2, 1, 2], 59));
        add("nothing", (vec![], vec![1, 2, 2], kind));
        add("no trailer", (vec![], vec![], 4));
        add("nothing but a next header's place", (vec![], vec![0], kind));
        for next_header in [0, 1, 4, 17, 41, 43, 44, 50, 51, 58, 60, 255] {
            let padding = padding(payload.len());
            add(&format!("next header {next_header}"), (payload.clone(), padding, next_header));
        }
        for len in [1, 4, 40, 500] {
            let padded = [&payload[..], &vec![0xab; len]].concat();
            let padding = padding(padded.len());
            add(&format!("TFC padding of {len}"), (padded, padding, kind));
        }
        for len in 0..payload.len() {
            let cut = payload[..len].to_vec();
            add(&format!("cut to {len}"), (cut, padding(len), kind));
        }
        odd
    }

    fn odd_v4(&self) -> Vec<(String, Text)> {
        let plain = self.plain(
            Protocol::UDP,
            &[0, 7, 0, 9, 0, 20, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        );
        let mut odd = Vec::new();
        let mut with = |name: String, changes: &[(usize, u8)]| {
            for right_checksum in [false, true] {
                let mut plain = plain.clone();
                changes.iter().for_each(|(at, byte)| plain[*at] = *byte);
                if right_checksum && !fill(&mut plain) {
                    continue;
                }
                odd.push((format!("v4 {name} {right_checksum}"), self.text(plain)));
            }
        };
        for first in [0x05, 0x00, 0x40, 0x44, 0x46, 0x4a, 0x4b, 0x4f, 0x55, 0x60, 0x65, 0xf5] {
            with(format!("first byte {first:x}"), &[(0, first)]);
        }
        for len in [0, 1, 19, 20, 21, 27, 28, 39, 40, 41, 43, 44, 255] {
            with(format!("total length {len}"), &[(3, len)]);
        }
        with("total length 65535".to_owned(), &[(2, 255), (3, 255)]);
        with("checksum".to_owned(), &[(10, 1)]);
        for (high, low) in
            [(0x20, 0), (0, 1), (0x20, 1), (0x1f, 0xff), (0x3f, 0xff), (0x80, 0), (0xc0, 0)]
        {
            with(format!("fragment {high:x} {low:x}"), &[(6, high), (7, low)]);
        }
        for protocol in [0, 1, 6, 41, 50, 51, 59, 132, 255] {
            with(format!("protocol {protocol}"), &[(9, protocol)]);
        }
        with("ttl 0".to_owned(), &[(8, 0)]);
        odd
    }

    fn odd_v6(&self) -> Vec<(String, Text)> {
        let mut odd = Vec::new();
        let plain = self.plain(
            Protocol::UDP,
            &[0, 7, 0, 9, 0, 20, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        );
        let mut add =
            |name: String, plain: Vec<u8>| odd.push((format!("v6 {name}"), self.text(plain)));
        for first in [0x00, 0x40, 0x45, 0x50, 0x61, 0x6f, 0x70, 0xf0] {
            let mut plain = plain.clone();
            plain[0] = first;
            add(format!("first byte {first:x}"), plain);
        }
        for len in [0_u16, 1, 7, 8, 19, 20, 21, 22, 23, 24, 255, 65535] {
            let mut plain = plain.clone();
            plain[4..6].copy_from_slice(&len.to_be_bytes());
            add(format!("payload length {len}"), plain);
        }
        let udp = &plain[40..];
        for (name, header) in [
            ("padded", &[17, 0, 1, 4, 0, 0, 0, 0][..]),
            ("too long", &[17, 9, 1, 4, 0, 0, 0, 0]),
            ("far too long", &[17, 255, 1, 4, 0, 0, 0, 0]),
            ("jumbo", &[17, 0, 0xc2, 4, 0, 1, 0, 0]),
            ("router alert", &[17, 0, 5, 2, 0, 0, 1, 0]),
            ("of itself", &[0, 0, 1, 4, 0, 0, 0, 0]),
            ("no next", &[59, 0, 1, 4, 0, 0, 0, 0]),
            ("ESP", &[50, 0, 1, 4, 0, 0, 0, 0]),
            ("first fragment", &[17, 0, 0, 1, 0, 0, 0, 1]),
            ("later fragment", &[17, 0, 0, 9, 0, 0, 0, 1]),
            ("atomic fragment", &[17, 0, 0, 0, 0, 0, 0, 1]),
            ("of fragments", &[44, 0, 0, 0, 0, 0, 0, 1]),
        ] {
            for kind in [0, 43, 44, 60, 51, 135] {
                let upper = [header, udp].concat();
                add(format!("extension {kind} {name}"), self.plain(Protocol(kind), &upper));
                for cut in [0, 1, 7, 8] {
                    let cut = self.plain(Protocol(kind), &header[..cut]);
                    add(format!("extension {kind} {name} {}", cut.len() - 40), cut);
                }
            }
        }
        let mut jumbo = self.plain(Protocol(0), &[&[17, 0, 0xc2, 4, 0, 1, 0, 0][..], udp].concat());
        jumbo[4..6].fill(0);
        add("jumbogram".to_owned(), jumbo);
        let mut chain = udp.to_vec();
        for links in 1..40 {
            chain = [&[if links == 1 { 17 } else { 60 }, 0, 1, 4, 0, 0, 0, 0], &chain[..]].concat();
            add(format!("{links} destination options"), self.plain(Protocol(60), &chain));
        }
        odd
    }
}

fn fill(packet: &mut [u8]) -> bool {
    packet[0] == 0x45 && ipv4::fill_checksum(packet).is_ok()
}

fn padding(payload: usize) -> Vec<u8> {
    let len = u8::try_from((4 - (payload + 2) % 4) % 4).unwrap();
    (1..=len).chain([len]).collect()
}

fn odd_uppers() -> Vec<(String, u8, Vec<u8>)> {
    let mut odd = Vec::new();
    for protocol in [1, 6, 17, 47, 50, 58, 132, 136] {
        for len in [0, 1, 3, 4, 7, 8, 12, 13, 19, 20, 33] {
            odd.push((format!("{protocol} of {len}"), protocol, vec![0x51; len]));
        }
    }
    for offset in [0, 0x40, 0x60, 0xf0] {
        let mut header =
            [0, 7, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, offset, 0x10, 1, 1, 0, 0, 0, 0].to_vec();
        header.extend([1; 9]);
        odd.push((format!("TCP offset {offset:x}"), 6, header));
    }
    for len in [0, 7, 8, 9, 30, 255] {
        odd.push((
            format!("UDP length {len}"),
            17,
            [&[0, 7, 0, 9, 0, len, 1, 1][..], &[1; 9]].concat(),
        ));
    }
    // ICMP errors that quote little or nothing, or each other.
    for quoted in [0, 1, 19, 20, 27, 28, 48] {
        let inner = vec![0x45; quoted];
        odd.push((
            format!("ICMP quotes {quoted}"),
            1,
            [&[3, 4, 0, 0, 0, 0, 0, 0][..], &inner].concat(),
        ));
        let inner = vec![0x60; quoted];
        odd.push((
            format!("ICMPv6 quotes {quoted}"),
            58,
            [&[2, 0, 0, 0, 0, 0, 0, 0][..], &inner].concat(),
        ));
    }
    odd
}

/// Delivered packets, and drop reasons of others.
type Outcome = (Vec<Vec<u8>>, BTreeMap<DropReason, u64>);

fn outcome(gateway: &mut TestGateway, packets: Vec<PacketBuf>) -> Outcome {
    let before: BTreeMap<_, _> = gateway.reasons().into_iter().collect();
    let held = gateway.worker.inward().held;
    let arrived = gateway.inbound(packets);
    let arrived = arrived.iter().map(|packet| packet.bytes().to_vec()).collect();
    gateway.assert_packets_accounted();
    assert_eq!(gateway.worker.inward().held, held, "none of these is held");
    let mut told: BTreeMap<_, _> = gateway.reasons().into_iter().collect();
    told.retain(|reason, count| {
        *count -= before.get(reason).copied().unwrap_or(0);
        *count > 0
    });
    (arrived, told)
}

/// All of these, one after the other.
fn sum(outcomes: &[&Outcome]) -> Outcome {
    let mut all = Outcome::default();
    for (arrived, reasons) in outcomes {
        all.0.extend(arrived.iter().cloned());
        reasons.iter().for_each(|(reason, count)| *all.1.entry(*reason).or_default() += count);
    }
    all
}

fn burst(shape: &Shape, segments: &[PacketBuf]) -> PacketBuf {
    let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect();
    let mut burst = PacketBuf::from_slice(&bytes);
    burst.segments = Segments::Burst { stride: u16::try_from(segments[0].len()).unwrap() };
    burst.udp = Some(shape.path());
    burst
}

/// Only the last packet of a burst may be shorter: behind good ones if it is not longer, otherwise
/// before one.
fn in_a_burst<'a>(good: &'a Text, text: &'a Text) -> Vec<&'a Text> {
    let len = |text: &Text| text.0.len() + text.1.len();
    if len(text) <= len(good) {
        [vec![good; 20], vec![text]].concat()
    } else {
        [vec![text; 3], vec![good]].concat()
    }
}

fn each_as_alone(shape: &Shape, seen: &mut BTreeSet<DropReason>) {
    let mut rng = Rng::new(4);
    let mut gateway = shape.gateway(HostPort::Packets);
    let good = shape.good(40);
    let well =
        outcome(&mut shape.gateway(HostPort::Packets), vec![shape.wrapped(0x1000, 1, &good)]);
    assert_eq!((well.0.len(), well.1.len()), (1, 0));
    let mut sequence = 1;
    let mut next = |tunnel: usize, text: &Text| {
        sequence += 1;
        shape.wrapped(0x1000 + u32::try_from(tunnel).unwrap(), sequence, text)
    };
    for (name, text) in shape.odd() {
        let alone =
            outcome(&mut shape.gateway(HostPort::Packets), vec![shape.wrapped(0x1000, 1, &text)]);
        let dropped: u64 = alone.1.values().sum();
        assert_eq!(alone.0.len() as u64 + dropped, 1, "{shape:?} {name}");
        seen.extend(alone.1.keys());
        let what = |how: &str| format!("{:?} {:?} {name}, {how}", shape.setup, shape.outside);
        // After good packets, and after such ones.
        for _ in 0..3 {
            assert_eq!(outcome(&mut gateway, vec![next(0, &good)]), well);
        }
        for _ in 0..2 {
            assert_eq!(
                outcome(&mut gateway, vec![next(0, &text)]),
                alone,
                "{}",
                what("again alone")
            );
        }
        for tunnels in [1, TUNNELS as usize] {
            let place = rng.below(40);
            let twice = rng.permille(300);
            let (mut batch, mut wanted) = (Vec::new(), Vec::new());
            for at in 0..40 {
                let is_odd = at == place || twice && at == place + 1;
                batch.push(next(at % tunnels, if is_odd { &text } else { &good }));
                wanted.push(if is_odd { &alone } else { &well });
            }
            assert_eq!(outcome(&mut gateway, batch), sum(&wanted), "{}", what("among others"));
        }
        if shape.outside == Outside::Socket && next(0, &text).len() > 9 {
            let texts = in_a_burst(&good, &text);
            let segments: Vec<_> = texts.iter().map(|text| next(0, text)).collect();
            let became = texts.iter().map(|this| if *this == &good { &well } else { &alone });
            let wanted: Vec<_> = [&well].into_iter().chain(became).chain([&well]).collect();
            let packets = vec![next(0, &good), burst(shape, &segments), next(0, &good)];
            assert_eq!(outcome(&mut gateway, packets), sum(&wanted), "{}", what("in a burst"));
        }
        // With coalescing all drops are the same, and as many packets pass.
        let host = HostPort::SuperPackets { udp: UdpSuper::Refused };
        let mut joining = shape.gateway(host);
        let batch = vec![next(0, &good), next(0, &text), next(1, &good)];
        let (arrived, reasons) = outcome(&mut joining, batch);
        let mut wanted = sum(&[&well, &alone, &well]);
        wanted.0.sort();
        let mut arrived = arrived;
        arrived.sort();
        assert_eq!((arrived, reasons), wanted, "{}", what("where super-packets may be"));
    }
}

#[test]
fn malformed_inner_packets_affect_no_others() {
    let mut seen = BTreeSet::new();
    shapes().iter().for_each(|shape| each_as_alone(shape, &mut seen));
    let known = [
        DropReason::InRunt,
        DropReason::InNoState,
        DropReason::InPadding,
        DropReason::InDummy,
        DropReason::InInnerMalformed,
        DropReason::InInnerChecksum,
        DropReason::InModeMismatch,
        DropReason::InFragment,
    ];
    assert_eq!(seen, known.into());
}
