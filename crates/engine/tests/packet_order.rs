//! A million packets of twenty flows, single ones and super-packets, over one SA that two workers
//! send and two receive by: each flow arrives complete and in order, although workers overtake each
//! other. Raw ESP comes packet by packet, ESP in UDP in bursts. Workers take turns here; `uxfrm
//! bench workers` runs them at once, and the interop tests have the kernel between them.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::collections::VecDeque;

use uxfrm_engine::{Family, HostPort, Mode, Moment, Output, UdpEncapKind, UdpSuper, Worker};
use uxfrm_packet::{
    Batch, Checksum, IpPacket, PacketBuf, Pool, Protocol, Segments, UdpPath, tcp::Tcp,
    udp::UdpDatagram,
};
use uxfrm_testkit::{
    FIRST_SPI, IpsecSetup, PairDirection, Rng, TestGateway, TestGatewayPair, packets, split_burst,
};

const FLOWS: u16 = 20;
const WORKERS: usize = 2;
/// Packets on the wire at the most: below the replay window, which would drop what is later.
const ON_THE_WIRE: usize = 1024;
/// Fewer bursts, each of some dozens.
const BURSTS_ON_THE_WIRE: usize = 32;
const FIRST_PORT: u16 = 1000;

/// One gateway's workers. A flow belongs to one of them, as with a multi-queue TUN or a NIC's RSS.
struct Workers {
    all: Vec<(Worker, Pool)>,
    output: Output,
}

impl Workers {
    fn of(gateway: &TestGateway) -> Self {
        let worker = |seed| {
            let settings = uxfrm_engine::Settings { seed, ..gateway.worker.settings().clone() };
            (Worker::new(settings, &gateway.database.published()).unwrap(), Pool::new())
        };
        Self { all: (0..WORKERS as u64).map(worker).collect(), output: Output::default() }
    }

    fn outbound(&mut self, worker: usize, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let (engine, pool) = &mut self.all[worker];
        let mut batch: Batch = packets.into_iter().collect();
        engine.outbound(&mut batch, Moment::from_secs(1), pool, &mut self.output);
        self.output.wire.drain().collect()
    }

    fn inbound(&mut self, worker: usize, packets: Vec<PacketBuf>) -> Vec<PacketBuf> {
        let (engine, pool) = &mut self.all[worker];
        let mut batch: Batch = packets.into_iter().collect();
        engine.inbound(&mut batch, Moment::from_secs(1), pool, &mut self.output);
        self.output.host.drain().collect()
    }

    fn assert_none_is_lost(&self) {
        for (worker, _) in &self.all {
            let dropped = (worker.outward().dropped, worker.inward().dropped);
            assert_eq!(dropped, (0, 0), "{:?}", worker.drops());
        }
    }
}

/// The even flows are TCP, whose bytes are numbered; the odd ones are UDP, whose datagrams carry
/// their numbers.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// The next byte or datagram.
    sent: u32,
    /// What is expected next.
    arrived: u32,
}

/// The byte at a place of a TCP stream.
fn byte_at(place: u32) -> u8 {
    (place ^ (place >> 8)).to_le_bytes()[0]
}

/// The flow's next packet or super-packet, and how many packets that is.
fn next(setup: &IpsecSetup, number: u16, flow: &mut Flow, rng: &mut Rng) -> (PacketBuf, usize) {
    let (source, destination) = setup.hosts(PairDirection::LeftToRight);
    let end = |address, port| std::net::SocketAddr::new(address, port).to_string();
    let ends = (end(source, FIRST_PORT + number), end(destination, 9));
    if number % 2 == 1 {
        flow.sent += 1;
        let mut payload = vec![0x55; 4 + rng.below(60)];
        payload[..4].copy_from_slice(&(flow.sent - 1).to_be_bytes());
        return (packets::udp(&ends.0, &ends.1, &payload), 1);
    }
    let first = flow.sent;
    let mss = 100 + rng.below(200);
    let count = 1 + rng.below(20);
    let len = if rng.permille(300) { 1 + rng.below(mss) } else { 1 + rng.below(mss * count) };
    flow.sent = first.wrapping_add(u32::try_from(len).unwrap());
    let payload: Vec<u8> =
        (0..u32::try_from(len).unwrap()).map(|at| byte_at(first.wrapping_add(at))).collect();
    if len <= mss {
        return (packets::tcp(&ends.0, &ends.1, first, &payload), 1);
    }
    let mut packet = packets::tcp_super(&ends.0, &ends.1, &payload, u16::try_from(mss).unwrap());
    let Checksum::Partial { start, .. } = packet.checksum else { unreachable!() };
    let start = usize::from(start);
    // The checksum left open is the pseudo header's: the sequence number is not in it.
    packet.bytes_mut()[start + 4..start + 8].copy_from_slice(&first.to_be_bytes());
    (packet, len.div_ceil(mss))
}

/// Checks that a packet is the next of its flow.
fn take(flows: &mut [Flow], packet: &PacketBuf) {
    let bytes = packet.bytes();
    let ip = IpPacket::parse(bytes).unwrap();
    let upper = ip.upper(bytes);
    if ip.protocol == Protocol::TCP {
        let tcp = Tcp::parse(upper).unwrap();
        let flow = &mut flows[usize::from(tcp.header.source.get() - FIRST_PORT)];
        assert_eq!(tcp.header.sequence.get(), flow.arrived, "a segment out of turn");
        for byte in tcp.payload {
            assert_eq!(*byte, byte_at(flow.arrived));
            flow.arrived = flow.arrived.wrapping_add(1);
        }
        return;
    }
    let udp = UdpDatagram::parse(upper).unwrap();
    let flow = &mut flows[usize::from(udp.header.source.get() - FIRST_PORT)];
    let size = match packet.segments {
        Segments::Udp { size } => usize::from(size),
        Segments::One | Segments::Tcp { .. } | Segments::Burst { .. } => udp.payload.len(),
    };
    for datagram in udp.payload.chunks(size) {
        assert_eq!(datagram[..4], flow.arrived.to_be_bytes(), "a datagram out of turn");
        flow.arrived += 1;
    }
}

#[test]
fn flows_keep_packet_order() {
    let in_udp = Some(UdpEncapKind::Esp);
    for (mode, inner, outer, encap) in [
        (Mode::Tunnel, Family::V4, Family::V4, None),
        (Mode::Tunnel, Family::V6, Family::V4, None),
        (Mode::Tunnel, Family::V4, Family::V4, in_udp),
        (Mode::Tunnel, Family::V4, Family::V6, in_udp),
        (Mode::Transport, Family::V4, Family::V4, None),
    ] {
        let mut setup = IpsecSetup { encap, ..IpsecSetup::new(mode, inner, outer) };
        setup.window = 4096;
        setup.settings.host = HostPort::SuperPackets { udp: UdpSuper::Taken };
        let mut pair = TestGatewayPair::without_sas(&setup);
        pair.add_sas(&setup, FIRST_SPI);
        // The wire keeps apart what has different workers, or brings all to one.
        for receivers in [1, WORKERS] {
            carry(&setup, &pair, 105_000, receivers);
        }
    }
}

fn is_burst(packet: &PacketBuf) -> bool {
    matches!(packet.segments, Segments::Burst { .. })
}

/// What left, as it comes to the other side: by a UDP socket in bursts (`UDP_GRO`), by a raw one
/// packet by packet.
fn arriving(setup: &IpsecSetup, packet: PacketBuf) -> Vec<PacketBuf> {
    match packet.udp {
        Some(path) if setup.encap.is_some() => {
            let mut burst = packet;
            burst.udp = Some(UdpPath { local: path.remote, remote: path.local, ..path });
            vec![burst]
        }
        Some(_) | None => split_burst(&packet),
    }
}

/// At least `packets` packets from left to right.
fn carry(setup: &IpsecSetup, pair: &TestGatewayPair, packets: usize, receivers: usize) {
    let (mut left, mut right) = (Workers::of(&pair.left), Workers::of(&pair.right));
    let mut rng = Rng::new(packets as u64 + receivers as u64);
    let mut flows = [Flow::default(); FLOWS as usize];
    let mut wires: [VecDeque<PacketBuf>; WORKERS] = Default::default();
    let most = if setup.encap.is_some() { BURSTS_ON_THE_WIRE } else { ON_THE_WIRE };
    let (mut sent, mut bursts) = (0, 0);
    while sent < packets || wires.iter().any(|wire| !wire.is_empty()) {
        let which = rng.below(WORKERS);
        if sent < packets && wires.iter().map(VecDeque::len).sum::<usize>() < most {
            let mut batch = Vec::new();
            for _ in 0..=rng.below(16) {
                let number = rng.below(usize::from(FLOWS) / WORKERS) * WORKERS;
                // Both kinds of flows with either worker.
                let number = number + (number / WORKERS + which) % WORKERS;
                let narrow = u16::try_from(number).unwrap();
                let (packet, count) = next(setup, narrow, &mut flows[number], &mut rng);
                sent += count;
                batch.push(packet);
            }
            let leaving = left.outbound(which, batch);
            bursts += leaving.iter().filter(|packet| is_burst(packet)).count();
            wires[which].extend(leaving.into_iter().flat_map(|packet| arriving(setup, packet)));
        }
        let which = rng.below(WORKERS);
        let some = rng.below(wires[which].len() + 1).min(64);
        let arriving: Vec<_> = wires[which].drain(..some).collect();
        for packet in right.inbound(which % receivers, arriving) {
            take(&mut flows, &packet);
        }
    }
    for flow in flows {
        assert!(flow.sent > 0 && flow.arrived == flow.sent, "{} of {}", flow.arrived, flow.sent);
    }
    assert!(bursts > 0);
    left.assert_none_is_lost();
    right.assert_none_is_lost();
}
