//! Any bytes through every parser; scripts of packets through the coalescer and back.

use std::net::IpAddr;

use uxfrm_packet::checksum::{self, Sum};
use uxfrm_packet::esp::Esp;
use uxfrm_packet::ethernet::{EtherType, EthernetFrame};
use uxfrm_packet::gre::Gre;
use uxfrm_packet::icmp::Icmp;
use uxfrm_packet::icmpv6::Icmpv6;
use uxfrm_packet::ipv4::{self, Ipv4};
use uxfrm_packet::ipv6::Ipv6;
use uxfrm_packet::tcp::Tcp;
use uxfrm_packet::udp::UdpDatagram;
use uxfrm_packet::{
    Batch, Checksum, Coalescer, FlowPorts, IpPacket, PacketBuf, Pool, Protocol, SegmentPlan,
    Segments, SliceMeta, Version,
};

use super::script::{self, ScriptPieces};
use crate::packets;

/// The first byte selects what the rest is: an IP packet, a frame, an upper layer, a super-packet,
/// or a script of packets.
///
/// # Panics
/// If a parser does, or if its result contradicts the bytes.
pub fn packet(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 5 {
        0 => ip(bytes),
        1 => frame(bytes),
        2 => upper_layers(bytes),
        3 => super_packet(bytes),
        _ => coalesced(bytes),
    }
}

fn ip(bytes: &[u8]) {
    let Ok(ip) = IpPacket::parse(bytes) else { return };
    assert!(ip.header_len <= ip.total_len);
    assert_eq!(ip.total_len + ip.trailing, bytes.len());
    assert_eq!(ip.upper(bytes).len(), ip.total_len - ip.header_len);
    assert!(ip.esp_offset <= ip.header_len && ip.next_header_at < ip.esp_offset);
    if ip.esp_offset == ip.header_len {
        assert_eq!(bytes[ip.next_header_at], ip.protocol.0);
    }
    let ports = FlowPorts::of(&ip, bytes);
    assert!(!ip.is_fragment() || ip.upper(bytes).is_empty() || ports == FlowPorts::of(&ip, bytes));
    let _ = checksum::verify(&ip, bytes);
    match ip.version {
        Version::V4 => {
            let view = Ipv4::parse(bytes).expect("IpPacket took it");
            assert_eq!(IpAddr::from(view.header.destination()), ip.destination);
            let mut filled = bytes.to_vec();
            ipv4::fill_checksum(&mut filled).expect("IpPacket took it");
            assert!(Ipv4::parse(&filled).expect("only the checksum changed").checksum_is_right());
        }
        Version::V6 => {
            let view = Ipv6::parse(bytes).expect("IpPacket took it");
            assert_eq!(view.chain().expect("IpPacket took it").upper, ip.protocol);
        }
    }
    upper_layers(ip.upper(bytes));
}

fn frame(bytes: &[u8]) {
    let Ok(frame) = EthernetFrame::parse(bytes) else { return };
    assert_eq!(&bytes[frame.header_len()..], frame.payload);
    assert!(!frame.ether_type.is_tag());
    for tag in frame.tags {
        assert!(tag.vlan() < 4096 && tag.priority() < 8);
    }
    ip(frame.payload);
}

fn upper_layers(bytes: &[u8]) {
    if let Ok(tcp) = Tcp::parse(bytes) {
        assert_eq!(tcp.header.header_len() + tcp.payload.len(), bytes.len());
        let taken: usize = tcp.options().map(|option| option.data.len() + 1).sum();
        assert!(taken <= tcp.option_bytes.len());
    }
    if let Ok(udp) = UdpDatagram::parse(bytes) {
        assert_eq!(8 + udp.payload.len() + udp.trailing.len(), bytes.len());
    }
    if let Ok(gre) = Gre::parse(bytes) {
        let mut header = vec![0; gre.fields.header_len()];
        assert_eq!(gre.fields.write(gre.header.protocol, &mut header), Some(header.len()));
        assert_eq!(header.len() + gre.payload.len(), bytes.len());
        let again = Gre::parse(&header).expect("it was written by us");
        assert_eq!((again.fields, again.header.protocol), (gre.fields, gre.header.protocol));
    }
    if let Ok(icmp) = Icmp::parse(bytes) {
        let _ = (icmp.header.is_error(), icmp.header.mtu());
    }
    if let Ok(icmp) = Icmpv6::parse(bytes) {
        let _ = (icmp.header.is_error(), icmp.header.mtu());
    }
    if let Ok(esp) = Esp::parse(bytes) {
        assert_eq!(esp.body.len() + 8, bytes.len());
    }
    // A checksum is the sum of its parts', at any alignment.
    let (front, back) = bytes.split_at(bytes.len() / 4 * 2);
    assert_eq!(Sum::of(bytes).fold(), Sum::of(front).plus(Sum::of(back)).fold());
}

/// Four bytes of metadata (segment size, start and offset of the checksum), then a super-packet.
fn super_packet(bytes: &[u8]) {
    let Some((notes, bytes)) = bytes.split_first_chunk::<4>() else { return };
    let size = u16::from_be_bytes([notes[0], notes[1]]);
    let mut packet = PacketBuf::from_slice(bytes);
    packet.checksum = Checksum::Partial { start: notes[2].into(), offset: notes[3].into() };
    for segments in [Segments::Tcp { mss: size }, Segments::Udp { size }] {
        packet.segments = segments;
        let Ok(plan) = SegmentPlan::new(&packet) else { continue };
        assert!(plan.count() >= 1);
        cut(&plan, packet.bytes());
    }
    let _ = checksum::complete(&mut packet);
}

fn cut(plan: &SegmentPlan, bytes: &[u8]) {
    let mut out = vec![0; bytes.len()];
    let mut end = plan.header_len();
    for k in 0..plan.count() {
        assert_eq!(plan.payload(k).start, end);
        end = plan.payload(k).end;
        let len = plan.write(k, bytes, &mut out).expect("no segment is longer than the whole");
        let ip = IpPacket::parse(&out[..len]).expect("a segment is a packet");
        assert_eq!((ip.total_len, ip.trailing), (len, 0));
        assert_eq!(checksum::verify(&ip, &out[..len]), checksum::Verification::Right);
    }
    assert_eq!(plan.payload(plan.count()).len(), 0);
}

/// A script of packets through the coalescer; its output, segmented again, has the same packets.
fn coalesced(bytes: &[u8]) {
    let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
    let mut given = Vec::new();
    for piece in ScriptPieces(bytes) {
        given.push(normal(piece.bytes));
        if piece.flags & 1 == 0 {
            coalescer.offer_slice(piece.bytes, SliceMeta::default(), &mut pool, &mut out);
        } else {
            coalescer.offer(PacketBuf::from_slice(piece.bytes), &mut pool, &mut out);
        }
        if piece.flags & 2 != 0 {
            coalescer.flush(&mut out);
        }
    }
    coalescer.flush(&mut out);
    let mut taken: Vec<_> = out.as_slice().iter().flat_map(cut_again).map(|p| normal(&p)).collect();
    given.sort_unstable();
    taken.sort_unstable();
    assert!(given == taken, "what was joined does not come apart the same");
}

fn cut_again(packet: &PacketBuf) -> Vec<Vec<u8>> {
    if packet.segments == Segments::One {
        return vec![packet.bytes().to_vec()];
    }
    let plan = SegmentPlan::new(packet).expect("the coalescer's own");
    let segment = |k| {
        let mut out = vec![0; plan.len(k)];
        plan.write(k, packet.bytes(), &mut out).expect("as long as planned");
        out
    };
    (0..plan.count()).map(segment).collect()
}

/// The packet without the IPv4 id if DF is set, where it has no meaning.
fn normal(bytes: &[u8]) -> Vec<u8> {
    let mut normal = bytes.to_vec();
    let Ok(ip) = IpPacket::parse(bytes) else { return normal };
    if ip.version == Version::V4 && ip.dont_fragment && !ip.is_fragment() && !ip.has_options {
        normal[4..6].fill(0);
        normal[10..12].fill(0);
    }
    normal
}

/// Valid packets of every shape.
///
/// # Panics
/// Never: the packets are well-formed.
#[must_use]
pub fn packet_seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut add = |kind: u8, bytes: &[u8]| seeds.push([&[kind], bytes].concat());
    let plain = plain_packets();
    for bytes in &plain {
        add(0, bytes);
    }
    let four = &plain[0];
    add(1, &[&[2; 12], &[8, 0][..], four].concat());
    add(1, &[&[2; 12], &[0x88, 0xa8, 0, 1, 0x81, 0, 0xe0, 2, 8, 0][..], four].concat());
    add(2, &[0xb0, 0, 0x08, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9, 0x45]);
    let mut syn = vec![0; 20];
    syn[12] = 0xb0;
    syn.extend([2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7, 254, 4, 1, 2]);
    add(2, &syn);
    for (source, destination) in ENDS {
        let tcp = packets::tcp_super(source, destination, &[7; 250], 100);
        add(3, &[&[0, 100, 20, 16], tcp.bytes()].concat());
        let udp = packets::udp(source, destination, &[7; 250]);
        add(3, &[&[0, 100, 20, 6], udp.bytes()].concat());
        let mut script = Vec::new();
        for (number, len) in [(0, 64), (1, 64), (2, 32)] {
            let tcp = packets::tcp(source, destination, number * 64, &vec![7; len]);
            script::write(&mut script, 0, tcp.bytes());
            let udp = packets::udp(source, destination, &vec![7; len]);
            script::write(&mut script, 1, udp.bytes());
        }
        add(4, &script);
    }
    seeds
}

/// IPv4 and IPv6 endpoints.
const ENDS: [(&str, &str); 2] = [("10.1.0.1:7", "10.2.0.1:9"), ("[fd00:1::1]:7", "[fd00:2::1]:9")];

fn plain_packets() -> Vec<Vec<u8>> {
    let mut plain = Vec::new();
    for (source, destination) in ENDS {
        let host = |end: &str| end.parse::<std::net::SocketAddr>().expect("address and port").ip();
        let (from, to) = (host(source), host(destination));
        plain.push(packets::udp_bytes(source, destination, b"payload"));
        plain.push(packets::tcp(source, destination, 1, b"payload").bytes().to_vec());
        plain.push(packets::echo(from, to, b"payload").bytes().to_vec());
        let gre = [&[0, 0][..], &EtherType::IPV6.0.to_bytes(), &[0x60; 8]].concat();
        plain.push(packets::ip(from, to, Protocol(47), &gre));
        plain.push(packets::ip(from, to, Protocol::ESP, &[0, 0, 16, 1, 0, 0, 0, 5, 1, 2, 3, 4]));
    }
    let first = packets::udp_bytes(ENDS[0].0, ENDS[0].1, &[7; 60]);
    plain.extend(packets::fragments(&first, 24).iter().map(|piece| piece.bytes().to_vec()));
    let mut options = first.clone();
    options[0] = 0x47;
    options.splice(20..20, [1, 1, 148, 4, 0, 0, 1, 0]);
    let len = u16::try_from(options.len()).expect("short");
    options[2..4].copy_from_slice(&len.to_be_bytes());
    ipv4::fill_checksum(&mut options).expect("an IPv4 packet");
    plain.push(options);
    // Hop-by-hop, routing, fragment and destination options before UDP.
    let six = |end: &str| end.parse::<IpAddr>().expect("an address");
    let chain = [
        [43, 0, 5, 2, 0, 0, 0, 0],
        [44, 0, 4, 0, 0, 0, 0, 0],
        [60, 0, 0, 1, 0, 0, 0, 9],
        [17, 0, 1, 4, 0, 0, 0, 0],
        [0, 7, 0, 9, 0, 8, 0, 0],
    ];
    plain.push(packets::ip(six("fd00:1::1"), six("fd00:2::1"), Protocol(0), chain.as_flattened()));
    plain
}
