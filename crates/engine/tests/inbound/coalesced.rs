//! Flows of TCP and UDP with packets that differ in all fields, from many tunnels, singly and in
//! bursts, for a host that takes super-packets: the output, segmented again, equals the input, in
//! order within each flow.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use uxfrm_engine::sa::config::SaFlags;
use uxfrm_engine::{Direction, Family, HostPort, Mode, Settings, UdpEncapKind, UdpSuper};
use uxfrm_packet::checksum::Sum;
use uxfrm_packet::{PacketBuf, Protocol, SegmentPlan, Segments, UdpPath, ipv4};
use uxfrm_testkit::{IpsecSetup, PairDirection, Rng, TestGateway, packets};

use super::{esp, open};

/// One of several flows between the same addresses, and its next packet.
struct Flow {
    family: Family,
    protocol: Protocol,
    ports: (u16, u16),
    sequence: u32,
    id: u16,
    len: usize,
    options: Vec<u8>,
    may_be_cut: bool,
}

impl Flow {
    fn random(number: u16, rng: &mut Rng) -> Self {
        Self {
            family: if rng.permille(600) { Family::V4 } else { Family::V6 },
            protocol: if rng.permille(600) { Protocol::TCP } else { Protocol::UDP },
            ports: (7000 + number % 5, 9000 + number),
            sequence: u32::MAX - 4000 + u32::from(number),
            id: u16::MAX - 10,
            len: [1, 8, 100, 536, 1200][rng.below(5)],
            options: if rng.permille(400) {
                vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]
            } else {
                vec![]
            },
            may_be_cut: rng.permille(500),
        }
    }

    fn ends(&self) -> (IpAddr, IpAddr) {
        IpsecSetup::new(Mode::Tunnel, self.family, Family::V4).hosts(PairDirection::LeftToRight)
    }

    /// Mostly what follows the one before.
    fn next(&mut self, rng: &mut Rng) -> Vec<u8> {
        let odd = if rng.permille(120) { rng.below(22) } else { 99 };
        let len = match rng.below(20) {
            0 => rng.below(self.len + 1),
            1 => self.len + rng.below(3),
            _ => self.len,
        };
        let mut payload = vec![0; len];
        rng.fill(&mut payload);
        let mut upper = match self.protocol {
            Protocol::TCP => self.segment(odd, rng),
            _ => {
                let len = u16::try_from(8 + len).unwrap().to_be_bytes();
                let ports = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
                [&ports[..], &len, &[0; 2]].concat()
            }
        };
        upper.extend(&payload);
        let (source, destination) = self.ends();
        let at = if self.protocol == Protocol::TCP { 16 } else { 6 };
        let sum =
            Sum::of_pseudo(source, destination, self.protocol, u32::try_from(upper.len()).unwrap())
                .plus_bytes(&upper);
        let checksum = if at == 6 { sum.nonzero_checksum() } else { sum.checksum() };
        upper[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        match odd {
            0 => upper[at] ^= 0x10,
            1 if at == 6 => upper[6..8].fill(0),
            _ => {}
        }
        self.sequence = self.sequence.wrapping_add(u32::try_from(len).unwrap());
        self.wrapped(&upper, odd, rng)
    }

    /// Its header.
    fn segment(&mut self, odd: usize, rng: &mut Rng) -> Vec<u8> {
        let mut flags = 0x10_u8;
        let (mut window, mut urgent, mut options) = (500_u16, 0_u16, self.options.clone());
        let mut acknowledged = 5_u32;
        match odd {
            2 => flags |= 0x08,
            3 => flags |= [0x01, 0x02, 0x04, 0x20][rng.below(4)],
            4 => flags |= 0x40,
            5 => flags |= 0x80,
            6 => flags = 0,
            7 => window = 501,
            8 => (urgent, flags) = (3, 0x30),
            9 => acknowledged = 6,
            10 => options = vec![1; 4 * rng.below(10)],
            11 => self.sequence = self.sequence.wrapping_sub(1),
            12 => urgent = 1,
            _ if rng.permille(60) => flags |= 0x08,
            _ => {}
        }
        let mut header = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        header.extend(self.sequence.to_be_bytes());
        header.extend(acknowledged.to_be_bytes());
        let offset = u8::try_from(5 + options.len() / 4).unwrap() << 4;
        header.extend([offset | u8::from(odd == 13), flags]);
        header.extend(window.to_be_bytes());
        header.extend([0, 0]);
        header.extend(urgent.to_be_bytes());
        header.extend(options);
        header
    }

    fn wrapped(&mut self, upper: &[u8], odd: usize, rng: &mut Rng) -> Vec<u8> {
        let (source, destination) = self.ends();
        let mut packet = packets::ip(source, destination, self.protocol, upper);
        match (self.family, odd) {
            (Family::V4, 14) => packet[1] ^= 3,
            (Family::V4, 15) => packet[8] ^= 1,
            (Family::V4, 16) => self.id = self.id.wrapping_add(7),
            (Family::V4, 17) => self.may_be_cut ^= true,
            (Family::V4, 18) => packet[6] |= 0x80,
            (Family::V6, 14) => packet[1] ^= 0x30,
            (Family::V6, 15) => packet[7] ^= 1,
            (Family::V6, 16) => packet[3] ^= 1,
            (Family::V6, 17) => packet[0] ^= 4,
            _ => {}
        }
        if odd == 19 {
            packet.extend(vec![0; 1 + rng.below(9)]);
        }
        if self.family == Family::V4 {
            self.id = self.id.wrapping_add(1);
            if odd != 20 {
                packet[4..6].copy_from_slice(&self.id.to_be_bytes());
            }
            packet[6] |= if self.may_be_cut { 0 } else { 0x40 };
            ipv4::fill_checksum(&mut packet).unwrap();
        }
        packet
    }
}

/// A gateway with this many tunnels, half of them by a UDP socket.
fn gateway(tunnels: u32, udp: UdpSuper) -> TestGateway {
    let base = IpsecSetup::tunnel4();
    let host = HostPort::SuperPackets { udp };
    let addresses = [base.gateways(PairDirection::LeftToRight).1].into_iter().collect();
    let mut gateway = TestGateway::new(Settings { host, addresses, ..Settings::default() });
    for family in [Family::V4, Family::V6] {
        let setup = IpsecSetup::new(Mode::Tunnel, family, Family::V4);
        gateway.add_policy(setup.policy(Direction::Forward, PairDirection::LeftToRight));
    }
    for tunnel in 0..tunnels {
        let encap = Some(UdpEncapKind::Esp).filter(|_| tunnel % 2 == 0);
        let mut state =
            IpsecSetup { encap, ..base.clone() }.sa(PairDirection::LeftToRight, 0x1000 + tunnel);
        (state.transform, state.selector, state.flags) = (open(), None, SaFlags::AF_UNSPEC);
        gateway.add_sa(state);
    }
    gateway
}

/// As received from the wire: some in bursts.
fn from_the_wire(
    tunnels: u32,
    sequences: &mut [u32],
    plain: &[(u32, Vec<u8>)],
    rng: &mut Rng,
) -> Vec<PacketBuf> {
    let base = IpsecSetup::tunnel4();
    let (source, destination) = base.gateways(PairDirection::LeftToRight);
    let mut arriving: Vec<PacketBuf> = Vec::new();
    for (tunnel, packet) in plain {
        let tunnel = tunnel % tunnels;
        let next_header = if packet[0] >> 4 == 4 { Protocol::IPIP } else { Protocol::IPV6 };
        sequences[tunnel as usize] += 1;
        let text = esp(0x1000 + tunnel, sequences[tunnel as usize], packet, next_header);
        if tunnel % 2 == 1 {
            let whole = packets::ip(source, destination, Protocol::ESP, &text);
            arriving.push(PacketBuf::from_slice(&whole));
            continue;
        }
        // All packets of a burst but the last are equally long.
        let goes_on = arriving.last().filter(|_| rng.permille(850)).and_then(|last| {
            last.udp.as_ref()?;
            let stride = match last.segments {
                Segments::Burst { stride } => usize::from(stride),
                Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => last.len(),
            };
            let fits = text.len() <= stride && last.len() % stride == 0;
            (fits && last.len() + text.len() < 60_000).then_some(stride)
        });
        let mut bytes = Vec::new();
        let mut segments = Segments::One;
        if let Some(stride) = goes_on {
            bytes.extend(arriving.pop().unwrap().bytes());
            segments = Segments::Burst { stride: u16::try_from(stride).unwrap() };
        }
        bytes.extend(text);
        let mut packet = PacketBuf::from_slice(&bytes);
        packet.segments = segments;
        let (local, remote): (SocketAddr, SocketAddr) =
            ((destination, 4500).into(), (source, 4500).into());
        packet.udp = Some(UdpPath { local, remote, tos: 0, dont_fragment: false });
        arriving.push(packet);
    }
    arriving
}

fn cut(packet: &PacketBuf) -> Vec<Vec<u8>> {
    if packet.segments == Segments::One {
        return vec![packet.bytes().to_vec()];
    }
    let plan = SegmentPlan::new(packet).unwrap();
    let write = |k| {
        let mut out = vec![0; plan.len(k)];
        plan.write(k, packet.bytes(), &mut out).unwrap();
        out
    };
    (0..plan.count()).map(write).collect()
}

/// By the fields of its flow, without a meaningless id and without trailing bytes.
fn file(flows: &mut BTreeMap<Vec<u8>, Vec<Vec<u8>>>, mut packet: Vec<u8>) {
    let (len, ports) = match packet[0] >> 4 {
        4 => (usize::from(u16::from_be_bytes([packet[2], packet[3]])), 20),
        _ => (40 + usize::from(u16::from_be_bytes([packet[4], packet[5]])), 40),
    };
    packet.truncate(len);
    let protocol = if ports == 20 { packet[9] } else { packet[6] };
    if ports == 20 && packet[6] & 0x40 != 0 {
        packet[4..6].fill(0);
        ipv4::fill_checksum(&mut packet).unwrap();
    }
    let key = [&[packet[0] >> 4, protocol], &packet[ports..ports + 4]].concat();
    flows.entry(key).or_default().push(packet);
}

#[test]
fn coalesced_tunnel_packets_equal_input() {
    let (mut joined, mut bursts) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let udp = if rng.permille(600) { UdpSuper::Taken } else { UdpSuper::Refused };
        let tunnels = [1, 2, 3, 24][rng.below(4)];
        let mut gateway = gateway(tunnels, udp);
        let mut sequences = vec![0; tunnels as usize];
        let count = u16::try_from(1 + rng.below(24)).unwrap();
        let mut flows: Vec<_> = (0..count).map(|number| Flow::random(number, &mut rng)).collect();
        for round in 0..12 {
            let size = [1, 2, 16, 64, 200][rng.below(5)];
            let mut plain = Vec::new();
            while plain.len() < size {
                let at = rng.below(flows.len());
                for _ in 0..=rng.below(12) {
                    plain.push((u32::try_from(at).unwrap(), flows[at].next(&mut rng)));
                }
            }
            let arriving = from_the_wire(tunnels, &mut sequences, &plain, &mut rng);
            bursts += arriving.iter().filter(|packet| packet.segments != Segments::One).count();
            let arrived = gateway.inbound(arriving);
            gateway.assert_packets_accounted();
            let (mut came, mut wanted) = (BTreeMap::new(), BTreeMap::new());
            joined += arrived.iter().filter(|packet| packet.segments != Segments::One).count();
            for packet in &arrived {
                let is_datagrams = matches!(packet.segments, Segments::Udp { .. });
                assert!(!is_datagrams || udp == UdpSuper::Taken);
                cut(packet).into_iter().for_each(|packet| file(&mut came, packet));
            }
            plain.into_iter().for_each(|(_, packet)| file(&mut wanted, packet));
            assert!(came == wanted, "seed {seed} round {round} {:?}", gateway.reasons());
        }
        assert_eq!(gateway.reasons(), []);
    }
    assert!(joined > 3000 && bursts > 1000, "{joined} {bursts}");
}
