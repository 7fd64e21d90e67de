use std::collections::BTreeMap;

use etherparse::{
    IpHeaders, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, TcpHeader, TransportHeader,
    UdpHeader,
};
use proptest::prelude::*;

use super::*;
use crate::checksum::{self, Verification};
use crate::test_packets::{TestPacket, joinable};
use crate::{IpPacket, SegmentPlan, ipv4};

/// The wire packets of `packet`.
fn expand(packet: &PacketBuf) -> Vec<Vec<u8>> {
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

/// Offers all and flushes.
fn coalesce(packets: &[Vec<u8>]) -> Vec<PacketBuf> {
    let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
    for packet in packets {
        coalescer.offer(PacketBuf::from_slice(packet), &mut pool, &mut out);
    }
    coalescer.flush(&mut out);
    out.drain().collect()
}

fn tcp(sequence: u32, payload: &[u8]) -> TestPacket {
    let mut ip =
        Ipv4Header::new(0, 64, etherparse::IpNumber::TCP, [192, 0, 2, 1], [192, 0, 2, 2]).unwrap();
    ip.dont_fragment = true;
    let mut header = TcpHeader::new(1, 2, sequence, 1000);
    header.ack = true;
    TestPacket {
        ip: IpHeaders::Ipv4(ip, Ipv4Extensions::default()),
        transport: TransportHeader::Tcp(header),
        payload: payload.to_vec(),
    }
}

/// Joins a packet with a changed one; returns how many packets come out.
fn joined_with(change: impl Fn(&mut TestPacket)) -> usize {
    let mut second = tcp(104, b"efgh");
    change(&mut second);
    let stream = [tcp(100, b"abcd").bytes(), second.bytes()];
    let out = coalesce(&stream);
    assert_eq!(out.iter().flat_map(expand).collect::<Vec<_>>(), stream);
    out.len()
}

fn ipv4_of(sample: &mut TestPacket) -> &mut Ipv4Header {
    match &mut sample.ip {
        IpHeaders::Ipv4(header, _) => header,
        IpHeaders::Ipv6(..) => panic!("an IPv4 packet"),
    }
}

#[test]
fn any_field_difference_prevents_joining() {
    type Change = fn(&mut TestPacket);
    let next = |sample: &mut TestPacket| ipv4_of(sample).identification = 1;
    assert_eq!(joined_with(next), 1);
    let apart: [(&str, Change); 15] = [
        ("sequence", |s| s.tcp().unwrap().sequence_number += 1),
        ("acknowledgment", |s| s.tcp().unwrap().acknowledgment_number = 9),
        ("window", |s| s.tcp().unwrap().window_size = 9),
        ("urgent", |s| s.tcp().unwrap().urgent_pointer = 9),
        ("options", |s| s.tcp().unwrap().set_options_raw(&[1; 4]).unwrap()),
        ("SYN", |s| s.tcp().unwrap().syn = true),
        ("FIN", |s| s.tcp().unwrap().fin = true),
        ("CWR", |s| s.tcp().unwrap().cwr = true),
        ("ECE", |s| s.tcp().unwrap().ece = true),
        ("reserved", |s| s.tcp().unwrap().ns = true),
        ("no data", |s| s.payload.clear()),
        ("more data", |s| s.payload.push(1)),
        ("TTL", |s| ipv4_of(s).time_to_live = 63),
        ("DSCP", |s| ipv4_of(s).dscp = 1.try_into().unwrap()),
        ("DF", |s| ipv4_of(s).dont_fragment = false),
    ];
    for (name, change) in apart {
        let changed = |sample: &mut TestPacket| {
            next(sample);
            change(sample);
        };
        assert_eq!(joined_with(changed), 2, "{name}");
    }
    assert_eq!(joined_with(|sample| ipv4_of(sample).identification = 2), 2);
}

#[test]
fn constant_id_is_joined_with_df() {
    let out = coalesce(&[tcp(100, b"abcd").bytes(), tcp(104, b"efgh").bytes()]);
    assert_eq!(out.len(), 1);
}

#[test]
fn psh_or_short_segment_ends_super_packet() {
    let mut pushed = tcp(104, b"efgh");
    pushed.tcp().unwrap().psh = true;
    let after = [tcp(108, b"ijkl").bytes(), tcp(112, b"mn").bytes(), tcp(114, b"op").bytes()];
    let stream = [vec![tcp(100, b"abcd").bytes(), pushed.bytes()], after.to_vec()].concat();
    let payloads =
        coalesce(&stream).iter().map(|packet| packet.bytes()[40..].to_vec()).collect::<Vec<_>>();
    assert_eq!(payloads, [&b"abcdefgh"[..], b"ijklmn", b"op"]);
}

#[test]
fn packets_with_wrong_checksum_pass_unjoined() {
    for at in [11, 37] {
        let mut second = tcp(104, b"efgh").bytes();
        second[at] ^= 1;
        let stream = [tcp(100, b"abcd").bytes(), second];
        let out = coalesce(&stream);
        assert_eq!(out.iter().map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>(), stream);
        assert_eq!((out[0].checksum, out[1].checksum), (Checksum::Verified, Checksum::AsIs));
    }
}

#[test]
fn packets_with_options_or_padding_pass() {
    let mut with_options = [tcp(100, b"abcd"), tcp(104, b"efgh")];
    with_options.iter_mut().for_each(|sample| ipv4_of(sample).options = [1; 4].into());
    assert_eq!(coalesce(&with_options.map(|sample| sample.bytes())).len(), 2);
    let padded =
        [tcp(100, b"abcd"), tcp(104, b"efgh")].map(|sample| [&sample.bytes()[..], &[0]].concat());
    assert_eq!(coalesce(&padded).len(), 2);
}

#[test]
#[cfg_attr(miri, ignore = "minutes there")]
fn super_packet_is_limited_by_length_field() {
    let stream = (0..13_100).map(|k| tcp(k * 5, b"abcde").bytes()).collect::<Vec<_>>();
    assert_eq!(coalesce(&stream).iter().map(PacketBuf::len).collect::<Vec<_>>(), [65_535, 45]);
}

/// A datagram over IPv4.
fn udp(payload: &[u8]) -> TestPacket {
    let header = UdpHeader { source_port: 1, destination_port: 2, ..UdpHeader::default() };
    TestPacket { transport: TransportHeader::Udp(header), ..tcp(0, payload) }
}

#[test]
fn datagrams_are_joined_up_to_kernel_limit() {
    let out = coalesce(&vec![udp(b"abcd").bytes(); 65]);
    assert_eq!(out.iter().map(PacketBuf::len).collect::<Vec<_>>(), [28 + 64 * 4, 32]);
}

#[test]
fn datagrams_without_checksum_or_with_slack_pass() {
    let mut without = udp(b"abcd").bytes();
    without[26..28].fill(0);
    assert_eq!(coalesce(&[without.clone(), without]).len(), 2);
    // One byte fewer than the packet holds, and the checksum of that.
    let mut slack = udp(b"abc").bytes();
    slack[3] += 1;
    ipv4::fill_checksum(&mut slack).unwrap();
    slack.push(9);
    let ip = IpPacket::parse(&slack).unwrap();
    assert_eq!(checksum::verify(&ip, &slack), Verification::Right);
    assert_eq!(coalesce(&[slack.clone(), slack]).len(), 2);
}

#[test]
fn partial_checksum_passes_unjoined() {
    let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
    for packet in [tcp(100, b"abcd"), tcp(104, b"efgh")] {
        let mut packet = packet.super_packet(4);
        packet.segments = Segments::One;
        coalescer.offer(packet, &mut pool, &mut out);
    }
    assert_eq!(out.len(), 2);
    assert_eq!(out.as_slice()[0].checksum, Checksum::Partial { start: 20, offset: 16 });
}

#[test]
fn oldest_flow_is_released() {
    let flow = |port: usize| {
        let mut packet = tcp(100, b"abcd");
        packet.tcp().unwrap().source_port = port.try_into().unwrap();
        PacketBuf::from_slice(&packet.bytes())
    };
    let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
    (0..FLOWS + 2).for_each(|port| coalescer.offer(flow(port), &mut pool, &mut out));
    let ports =
        |out: &Batch| out.as_slice().iter().map(|packet| packet.bytes()[21]).collect::<Vec<_>>();
    assert_eq!(ports(&out), [0, 1]);
    coalescer.flush(&mut out);
    assert_eq!(ports(&out), (0..18).collect::<Vec<_>>());
}

#[test]
fn a_warm_coalescer_allocates_nothing() {
    let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
    let payload = [7; 1448];
    let stream = (0..100).map(|k| tcp(k * 1448, &payload).bytes()).collect::<Vec<_>>();
    let mut warm = None;
    for _ in 0..3 {
        for packet in &stream {
            coalescer.offer_slice(packet, SliceMeta::default(), &mut pool, &mut out);
        }
        coalescer.flush(&mut out);
        assert_eq!(out.len(), 3, "45 segments of 1448 bytes fit in 65,535");
        pool.give_all(&mut out);
        assert_eq!(pool.stats(), *warm.get_or_insert_with(|| pool.stats()));
    }
}

#[test]
fn other_buffers_pass_in_order() {
    let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
    coalescer.offer(PacketBuf::from_slice(&tcp(100, b"abcd").bytes()), &mut pool, &mut out);
    coalescer.offer(tcp(104, b"efghij").super_packet(4), &mut pool, &mut out);
    assert_eq!(out.len(), 2);
    coalescer.offer(PacketBuf::from_slice(&tcp(110, b"k").bytes()), &mut pool, &mut out);
    let mut burst = PacketBuf::from_slice(b"wwxx");
    burst.segments = Segments::Burst { stride: 2 };
    coalescer.offer(burst, &mut pool, &mut out);
    assert_eq!(out.len(), 4);
    assert_eq!(out.as_slice()[3].bytes(), b"wwxx");
}

/// One step of a random stream: which flow goes on, how, and with how much payload.
#[derive(Clone, Copy, Debug)]
struct Step {
    flow: usize,
    change: u8,
    len: usize,
    flush: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![6 => Just(400_usize), 2 => Just(150), 1 => 0_usize..1400];
    let change = prop_oneof![8 => Just(0_u8), 3 => 1_u8..21];
    let step = (0..6_usize, change, len, prop::bool::weighted(0.02));
    prop::collection::vec(
        step.prop_map(|(flow, change, len, flush)| Step { flow, change, len, flush }),
        1..150,
    )
}

/// Six flows between pairs of addresses of their own: TCP and UDP over IPv4 with and without DF,
/// and over IPv6.
fn flows() -> Vec<TestPacket> {
    let make = |flow: u8| {
        let ip = if flow < 4 {
            let mut header = Ipv4Header::new(
                0,
                64,
                etherparse::IpNumber::TCP,
                [10, 0, 0, flow],
                [10, 0, 1, flow],
            )
            .unwrap();
            header.dont_fragment = flow < 2;
            header.identification = 0xfff0;
            IpHeaders::Ipv4(header, Ipv4Extensions::default())
        } else {
            let header = Ipv6Header {
                source: [flow; 16],
                destination: [2; 16],
                hop_limit: 9,
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, Ipv6Extensions::default())
        };
        let transport = if flow.is_multiple_of(2) {
            let mut header = TcpHeader::new(5, 6, 0xffff_f000, 512);
            header.ack = true;
            TransportHeader::Tcp(header)
        } else {
            TransportHeader::Udp(UdpHeader {
                source_port: 5,
                destination_port: 6,
                ..UdpHeader::default()
            })
        };
        TestPacket { ip, transport, payload: Vec::new() }
    };
    (0..6).map(make).collect()
}

/// The next packet of a flow; `change` selects an anomaly, mostly none.
fn next_packet(flow: &mut TestPacket, change: u8, len: usize) -> Vec<u8> {
    flow.payload = (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect();
    match (&mut flow.ip, change) {
        (IpHeaders::Ipv4(header, _), 1) => header.time_to_live ^= 1,
        (IpHeaders::Ipv4(header, _), 2) => {
            header.ecn = (header.ecn.value() ^ 3).try_into().unwrap()
        }
        (IpHeaders::Ipv4(header, _), 3) => {
            header.identification = header.identification.wrapping_add(700)
        }
        (IpHeaders::Ipv4(header, _), 4) => {
            header.options = if header.options.is_empty() {
                [1; 4].into()
            } else {
                etherparse::Ipv4Options::default()
            };
        }
        (IpHeaders::Ipv6(header, _), 1) => header.hop_limit ^= 1,
        (IpHeaders::Ipv6(header, _), 2) => header.traffic_class ^= 3,
        (IpHeaders::Ipv6(header, _), 3) => {
            header.flow_label = (header.flow_label.value() ^ 1).try_into().unwrap()
        }
        (_, _) => {}
    }
    let before = flow.transport.clone();
    if let Some(header) = flow.tcp() {
        match change {
            5 => header.acknowledgment_number ^= 1,
            6 => header.window_size ^= 1,
            7 => header.set_options_raw(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]).unwrap(),
            8 => header.sequence_number = header.sequence_number.wrapping_sub(100),
            9..=11 => header.psh = true,
            12 => header.fin = true,
            13 => header.syn = true,
            14 => header.cwr = true,
            15 => header.urg = true,
            16 => header.ece ^= true,
            _ => {}
        }
    }
    let mut bytes = flow.bytes();
    match change {
        17 => *bytes.last_mut().unwrap() ^= 0x55,
        18 => bytes.push(0),
        19 if bytes[0] >> 4 == 4 => {
            bytes[6] |= 0x20;
            ipv4::fill_checksum(&mut bytes).unwrap();
        }
        _ => {}
    }
    let lasting = flow.tcp().map(|header| header.clone());
    flow.transport = before;
    if let (Some(header), Some(lasting)) = (flow.tcp(), lasting) {
        header.acknowledgment_number = lasting.acknowledgment_number;
        header.window_size = lasting.window_size;
        header.ece = lasting.ece;
        header.sequence_number = lasting.sequence_number.wrapping_add(len.try_into().unwrap());
    }
    if let IpHeaders::Ipv4(header, _) = &mut flow.ip {
        header.identification = header.identification.wrapping_add(1);
    }
    bytes
}

type BySource = BTreeMap<u8, Vec<(Vec<u8>, u32)>>;

/// Collects packets with marks by flow, which the last byte of the source address names.
fn file(by_source: &mut BySource, packet: Vec<u8>, mark: u32) {
    let source = if packet[0] >> 4 == 4 { packet[15] } else { packet[23] };
    by_source.entry(source).or_default().push((packet, mark));
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn segmented_super_packet_is_joined_again(sample in joinable(20_000), size in 320_u16..1500) {
        let packet = sample.super_packet(size);
        prop_assume!(sample.payload.len() > usize::from(size));
        let out = coalesce(&expand(&packet));
        prop_assert_eq!(out.len(), 1);
        prop_assert_eq!(out[0].bytes(), packet.bytes());
        prop_assert_eq!((out[0].segments, out[0].checksum), (packet.segments, packet.checksum));
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn joined_packets_segment_into_the_same_packets(steps in steps(), in_trains: bool) {
        let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
        let (mut flows, mut offered, mut left) = (flows(), BySource::new(), BySource::new());
        for step in steps {
            let bytes = next_packet(&mut flows[step.flow], step.change, step.len);
            let mark = u32::from(step.change == 20) + u32::from(step.flush);
            file(&mut offered, bytes.clone(), mark);
            if in_trains {
                coalescer.offer_slice(&bytes, SliceMeta { mark, ..SliceMeta::default() }, &mut pool, &mut out);
            } else {
                let mut packet = PacketBuf::from_slice(&bytes);
                packet.mark = mark;
                coalescer.offer(packet, &mut pool, &mut out);
            }
            if step.flush {
                coalescer.flush(&mut out);
            }
        }
        coalescer.flush(&mut out);
        for packet in out.drain() {
            expand(&packet).into_iter().for_each(|bytes| file(&mut left, bytes, packet.mark));
        }
        prop_assert_eq!(left, offered);
    }

    #[test]
    fn any_bytes_pass_unchanged(packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..50)) {
        let out = coalesce(&packets).iter().map(|packet| packet.bytes().to_vec()).collect::<Vec<_>>();
        prop_assert_eq!(out, packets);
    }
}
