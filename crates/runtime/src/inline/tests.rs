//! Two gateways with a wire in memory; the test plays both networks and the next-hop resolver.

use std::{net::IpAddr, sync::mpsc};

use uxfrm_engine::{
    Action, CaptureReader, CaptureRequest, CaptureSides, Database, DefaultActions, TapFilter,
    TraceReader, TraceStep, UdpEncapKind,
};
use uxfrm_io::{Framed, Memory, rtnetlink::NeighbourState, wire_packets};
use uxfrm_packet::{
    Checksum, IpPacket, Protocol, Segments,
    ethernet::{EtherType, EthernetHeader},
    ipv4::Ipv4,
};
use uxfrm_testkit::{IpsecSetup, TestGateway, TestGatewayPair, packets};
use zerocopy::IntoBytes as _;

use super::router::decrement_ttl;
use super::*;
use crate::{NextHop, NextHopRequest, NextHopUpdate, PortSide, ResolvedRoute};

const NEIGHBOUR: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const PORTS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];

/// One gateway, and the far ends of its ports.
struct Site {
    worker_loop: InlineLoop,
    host: Memory,
    protected: Memory,
    database: Database,
    questions: mpsc::Receiver<NextHopRequest>,
    news: mpsc::Sender<NextHopUpdate>,
    /// State of all neighbours.
    standing: NeighbourState,
    pool: Pool,
}

impl Site {
    fn new(gateway: TestGateway, wire: Memory) -> Self {
        let TestGateway { worker, database, .. } = gateway;
        let (near_host, host) = Memory::pair(256);
        let (near, protected) = Memory::pair(256);
        let (questions, asked) = mpsc::sync_channel(64);
        let (news, told) = mpsc::channel();
        let waker = Poller::new().unwrap().waker();
        let guide = ResolverEnds { requests: questions, waker: waker.clone(), updates: told };
        let ports = InlinePorts {
            host: Box::new(near_host),
            protected: (Box::new(Framed::new(near)), PORTS[0]),
            wire: (Box::new(Framed::new(wire)), PORTS[1]),
            sockets: Vec::new(),
            daemons: Vec::new(),
        };
        let events = Events::new(mpsc::channel().0, waker);
        let worker_loop = InlineLoop::new(ports, guide, worker, events).unwrap();
        let (questions, standing) = (asked, NeighbourState::Known(NEIGHBOUR));
        let pool = Pool::new();
        Self { worker_loop, host, protected, database, questions, news, standing, pool }
    }

    /// Runs one turn, answers its requests, and runs another.
    fn turn(&mut self) {
        self.worker_loop.turn().unwrap();
        self.send_icmp_error();
        self.worker_loop.turn().unwrap();
    }

    /// Answers requests: 10.1.0.0/16 and fd00:1::/32 are behind the left protected port, all else
    /// behind the wire; so on the right.
    fn send_icmp_error(&self) {
        let own = &self.worker_loop.worker().settings().addresses;
        let left = own.holds("192.0.2.1".parse().unwrap());
        for question in self.questions.try_iter() {
            let hop = match question {
                NextHopRequest::Neighbour(hop) => hop,
                NextHopRequest::Route(destination) => {
                    let behind = match destination {
                        IpAddr::V4(v4) => v4.octets()[..2] == [10, if left { 1 } else { 2 }],
                        IpAddr::V6(v6) => v6.segments()[1] == if left { 1 } else { 2 },
                    };
                    let side = if behind { PortSide::Protected } else { PortSide::Wire };
                    let hop = NextHop { side, address: destination };
                    let host = if left { "10.1.0.1" } else { "10.2.0.1" };
                    let outer = if left { "192.0.2.1" } else { "192.0.2.2" };
                    let source = Some(if behind { host } else { outer }.parse().unwrap());
                    let answer = match destination {
                        destination if destination == IpAddr::from([203, 0, 113, 9]) => {
                            ResolvedRoute::NoRoute
                        }
                        _ => ResolvedRoute::Via { hop, mtu: 1500, source },
                    };
                    self.news.send(NextHopUpdate::Route(destination, answer)).unwrap();
                    hop
                }
            };
            self.news.send(NextHopUpdate::Neighbour(hop, self.standing)).unwrap();
        }
    }

    /// Sends packets into the protected network.
    fn send(&mut self, packets: Vec<PacketBuf>) {
        send(&mut self.protected, packets, &mut self.pool);
    }

    /// Packets that arrive in the protected network.
    fn arrived(&mut self) -> Vec<PacketBuf> {
        let frames = received(&mut self.protected, &mut self.pool);
        frames.into_iter().map(|frame| opened(frame, PORTS[0])).collect()
    }

    fn drops(&self, reason: DropReason) -> u64 {
        self.worker_loop.worker().drops().of(reason)
    }
}

fn send(port: &mut Memory, packets: Vec<PacketBuf>, pool: &mut Pool) {
    let framed = packets.into_iter().map(|mut packet| {
        let ether_type =
            if packet.bytes()[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let header = EthernetHeader { destination: PORTS[0], source: NEIGHBOUR, ether_type };
        packet.push(14).unwrap().copy_from_slice(header.as_bytes());
        packet
    });
    let mut batch: Batch = framed.collect();
    let sent = port.transmit(&mut batch, pool);
    assert_eq!(sent.refused.packets(), 0);
}

fn received(port: &mut Memory, pool: &mut Pool) -> Vec<PacketBuf> {
    let mut batch = Batch::new();
    port.receive(pool, &mut batch).unwrap();
    batch.drain().collect()
}

/// The packet in a frame that must go from the port to the neighbour.
fn opened(mut frame: PacketBuf, from: MacAddr) -> PacketBuf {
    assert_eq!(frame.bytes()[..6], NEIGHBOUR.0);
    assert_eq!(frame.bytes()[6..12], from.0);
    let version = frame.bytes()[14] >> 4;
    assert_eq!(frame.bytes()[12..14], if version == 4 { [8, 0] } else { [0x86, 0xdd] });
    frame.pull(14);
    frame
}

/// Two sites, and a wire that the test inspects.
struct Sites {
    left: Site,
    right: Site,
    left_wire: Memory,
    right_wire: Memory,
    pool: Pool,
}

impl Sites {
    fn new(wrapping: &IpsecSetup) -> Self {
        let pair = TestGatewayPair::new(wrapping);
        let (left_near, left_wire) = Memory::pair(256);
        let (right_near, right_wire) = Memory::pair(256);
        let (left, right) = (Site::new(pair.left, left_near), Site::new(pair.right, right_near));
        Self { left, right, left_wire, right_wire, pool: Pool::new() }
    }

    /// Sends from the left protected network to the right one; also returns the wire's packets.
    fn left_to_right(&mut self, packets: Vec<PacketBuf>) -> (Vec<PacketBuf>, Vec<PacketBuf>) {
        self.left.send(packets);
        self.left.turn();
        let wire = self.on_left_wire();
        let copies = wire.iter().map(|packet| PacketBuf::from_slice(packet.bytes())).collect();
        self.bring_to_right(copies);
        (self.right.arrived(), wire)
    }

    fn on_left_wire(&mut self) -> Vec<PacketBuf> {
        let frames = received(&mut self.left_wire, &mut self.pool);
        frames.into_iter().map(|frame| opened(frame, PORTS[1])).collect()
    }

    fn on_right_wire(&mut self) -> Vec<PacketBuf> {
        let frames = received(&mut self.right_wire, &mut self.pool);
        frames.into_iter().map(|frame| opened(frame, PORTS[1])).collect()
    }

    fn bring_to_right(&mut self, packets: Vec<PacketBuf>) {
        send(&mut self.right_wire, packets, &mut self.pool);
        self.right.turn();
    }
}

fn datagram() -> PacketBuf {
    packets::udp("10.1.0.2:7", "10.2.0.2:9", b"SECRET-PLAINTEXT")
}

fn protocol(packet: &PacketBuf) -> Protocol {
    IpPacket::parse(packet.bytes()).unwrap().protocol
}

fn hops(packet: &PacketBuf) -> u8 {
    IpPacket::parse(packet.bytes()).unwrap().ttl
}

fn with_hops(mut packet: PacketBuf, hops: u8) -> PacketBuf {
    packet.bytes_mut()[8] = hops;
    uxfrm_packet::ipv4::fill_checksum(packet.bytes_mut()).unwrap();
    packet
}

/// A capture of all sides of a site's worker.
fn captured(site: &Site) -> CaptureReader {
    let sides = CaptureSides { plain: true, wire: true, drops: true };
    let filter = TapFilter::default();
    let request = CaptureRequest { sides, filter, snaplen: 65_536, per_second: 1000 };
    CaptureReader::new(&[site.worker_loop.worker().tap()], request)
}

#[test]
fn watched_packets_are_seen_at_both_sides_and_traced() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let (left, right) = (captured(&sites.left), captured(&sites.right));
    let tap = sites.left.worker_loop.worker().tap();
    let traces = TraceReader::new(&[tap], TapFilter::default(), 1);
    let (arrived, wire) = sites.left_to_right(vec![datagram()]);
    assert_eq!((arrived.len(), wire.len()), (1, 1));
    let points = |reader: &CaptureReader| -> Vec<_> {
        std::iter::from_fn(|| reader.take()).map(|packet| packet.point).collect()
    };
    let (out, come) = (PacketWay::Out, PacketWay::In);
    assert_eq!(points(&left), [CapturePoint::Plain(out), CapturePoint::Wire(out)]);
    assert_eq!(points(&right), [CapturePoint::Wire(come), CapturePoint::Plain(come)]);
    let trace = traces.take().unwrap();
    assert_eq!(trace.port, TracePort::Protected);
    assert!(matches!(trace.steps.last(), Some(TraceStep::Sent { .. })), "{trace:?}");
    let dead = with_hops(datagram(), 1);
    sites.left_to_right(vec![dead]);
    assert!(matches!(points(&left)[..], [CapturePoint::Drop(_), ..]), "before the engine");
}

#[test]
fn packet_across_both_gateways_is_esp_and_loses_two_hops() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let before = hops(&datagram());
    for _ in 0..3 {
        let (arrived, wire) = sites.left_to_right(vec![datagram()]);
        assert_eq!(wire.iter().map(protocol).collect::<Vec<_>>(), [Protocol::ESP]);
        assert_eq!(arrived.len(), 1);
        assert_eq!(hops(&arrived[0]), before - 2);
        assert_eq!(
            with_hops(arrived.into_iter().next().unwrap(), before).bytes(),
            datagram().bytes()
        );
    }
}

#[test]
fn gro_joined_esp_in_udp_is_decrypted() {
    let wrapping = IpsecSetup { encap: Some(UdpEncapKind::Esp), ..IpsecSetup::tunnel4() };
    let mut sites = Sites::new(&wrapping);
    let (arrived, wire) = sites.left_to_right((0..3).map(|_| datagram()).collect());
    assert_eq!(arrived.len(), 3);
    assert!(wire.iter().all(|packet| protocol(packet) == Protocol::UDP));
    sites.left.send((0..3).map(|_| datagram()).collect());
    sites.left.turn();
    let wire = sites.on_left_wire();
    sites.bring_to_right(vec![joined(&wire)]);
    assert_eq!(sites.right.arrived().len(), 3);
}

/// The host's stack and the worker see only the first datagram's class.
#[test]
fn ike_message_in_gro_burst_reaches_daemon() {
    let wrapping = IpsecSetup { encap: Some(UdpEncapKind::Esp), ..IpsecSetup::tunnel4() };
    let mut sites = Sites::new(&wrapping);
    let (daemon, messages) = mpsc::sync_channel(8);
    sites.right.worker_loop.ports.daemons = vec![IkeDaemonQueue { port: 4500, messages: daemon }];
    let mut message = [7; 40];
    message[..4].fill(0);
    for count in 1..3 {
        sites.left.send((0..count).map(|_| datagram()).collect());
        sites.left.turn();
        let mut wire = sites.on_left_wire();
        wire.push(packets::udp("192.0.2.1:4500", "192.0.2.2:4500", &message));
        sites.bring_to_right(vec![joined(&wire)]);
        assert_eq!(sites.right.arrived().len(), count);
        let heard: Vec<_> = messages.try_iter().map(|heard| heard.payload).collect();
        assert_eq!(heard, [message]);
    }
}

/// Datagrams of one flow joined to a super-packet.
fn joined(datagrams: &[PacketBuf]) -> PacketBuf {
    let mut joined = PacketBuf::from_slice(datagrams[0].bytes());
    for packet in &datagrams[1..] {
        let payload = &packet.bytes()[28..];
        joined.append(payload.len()).unwrap().copy_from_slice(payload);
    }
    let (len, size) = (joined.len(), datagrams[0].len() - 28);
    joined.bytes_mut()[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
    joined.bytes_mut()[24..26].copy_from_slice(&u16::try_from(len - 20).unwrap().to_be_bytes());
    uxfrm_packet::ipv4::fill_checksum(joined.bytes_mut()).unwrap();
    joined.segments = Segments::Udp { size: u16::try_from(size).unwrap() };
    joined.checksum = Checksum::Partial { start: 20, offset: 6 };
    joined
}

#[test]
fn super_packet_is_segmented_into_esp() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let packet = packets::tcp_super("10.1.0.2:7", "10.2.0.2:9", &[7; 5000], 1000);
    sites.left.send(vec![packet]);
    sites.left.turn();
    let wire = sites.on_left_wire();
    assert_eq!(wire.iter().map(wire_packets).sum::<u64>(), 5);
    assert!(wire.iter().all(|packet| protocol(packet) == Protocol::ESP));
}

#[test]
fn expired_ttl_answered_from_protected_address() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    // Twice: the first answer may come before the route back is known.
    for _ in 0..2 {
        let (arrived, wire) = sites.left_to_right(vec![with_hops(datagram(), 1)]);
        assert!(arrived.is_empty() && wire.is_empty());
    }
    let told = sites.left.arrived();
    let ip = IpPacket::parse(told.last().unwrap().bytes()).unwrap();
    assert_eq!(ip.source, IpAddr::from([10, 1, 0, 1]));
    assert_eq!(ip.destination, IpAddr::from([10, 1, 0, 2]));
    assert_eq!(told.last().unwrap().bytes()[20..22], [11, 0]);
    assert_eq!(sites.left.drops(DropReason::ForwardHops), 2);
}

#[test]
fn icmp_error_about_protected_packet_is_protected() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    for _ in 0..2 {
        sites.left_to_right(vec![with_hops(datagram(), 2)]);
    }
    let wire = sites.on_right_wire();
    assert!(!wire.is_empty());
    assert!(wire.iter().all(|packet| protocol(packet) == Protocol::ESP));
    // No policy protects packets to 203.0.113.1: an ICMP error would be plain.
    let plain = packets::udp("203.0.113.1:7", "203.0.113.9:9", b"x");
    sites.bring_to_right(vec![PacketBuf::from_slice(plain.bytes())]);
    sites.bring_to_right(vec![plain]);
    assert!(sites.on_right_wire().is_empty());
    assert_eq!(sites.right.drops(DropReason::ForwardUnprotected), 2);
}

#[test]
fn plain_packet_from_wire_is_dropped_where_policy_wants_esp() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    sites.bring_to_right(vec![datagram()]);
    assert!(sites.right.arrived().is_empty());
    assert_eq!(sites.right.drops(DropReason::InUnprotected), 1);
}

#[test]
fn wire_output_always_passes_out_policies() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let through = || packets::udp("203.0.113.1:7", "198.51.100.1:9", b"through");
    sites.bring_to_right(vec![through()]);
    assert_eq!(sites.on_right_wire().len(), 1, "nothing is said about it");
    let now = Moment::from_secs(1);
    let outbound = Action::Block;
    sites.right.database.apply(now, |change| {
        let defaults = DefaultActions { outbound, ..change.defaults() };
        change.set_defaults(defaults);
    });
    sites.bring_to_right(vec![through()]);
    assert!(sites.on_right_wire().is_empty());
    assert_eq!(sites.right.drops(DropReason::OutDefaultBlock), 1);
}

#[test]
fn packets_wait_for_neighbour_until_resolution_fails() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    sites.left.standing = NeighbourState::Resolving;
    let (arrived, wire) = sites.left_to_right(vec![datagram()]);
    assert!(arrived.is_empty() && wire.is_empty());
    let address = IpAddr::from([192, 0, 2, 2]);
    let hop = NextHop { side: PortSide::Wire, address };
    sites.left.news.send(NextHopUpdate::Neighbour(hop, NeighbourState::Stale(NEIGHBOUR))).unwrap();
    sites.left.worker_loop.turn().unwrap();
    assert_eq!(sites.on_left_wire().len(), 1);
    let asked: Vec<_> = sites.left.questions.try_iter().collect();
    assert_eq!(asked, [NextHopRequest::Neighbour(hop)], "the kernel hears that it is used");
    for dropped in 0..2 {
        sites.left.news.send(NextHopUpdate::Neighbour(hop, NeighbourState::Failed)).unwrap();
        sites.left.send(vec![datagram()]);
        sites.left.worker_loop.turn().unwrap();
        assert!(sites.on_left_wire().is_empty());
        let asked: Vec<_> = sites.left.questions.try_iter().collect();
        assert_eq!(asked.is_empty(), dropped > 0, "it may have another address: {asked:?}");
        assert_eq!(sites.left.drops(DropReason::ForwardNoNeighbour), 2 * dropped);
    }
}

/// As after `ip neigh flush`: the kernel also reports a forgotten neighbour as failed, and solicits
/// it as soon as somebody sends.
#[test]
fn packets_wait_for_neighbour_forgotten_by_kernel() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    assert_eq!(sites.left_to_right(vec![datagram()]).0.len(), 1);
    let hop = NextHop { side: PortSide::Wire, address: IpAddr::from([192, 0, 2, 2]) };
    for standing in [NeighbourState::Failed, NeighbourState::Removed] {
        sites.left.news.send(NextHopUpdate::Neighbour(hop, standing)).unwrap();
    }
    sites.left.send(vec![datagram()]);
    sites.left.worker_loop.turn().unwrap();
    let asked: Vec<_> = sites.left.questions.try_iter().collect();
    assert_eq!(asked, [NextHopRequest::Neighbour(hop)]);
    assert_eq!(sites.left.drops(DropReason::ForwardNoNeighbour), 0);
    sites.left.news.send(NextHopUpdate::Neighbour(hop, NeighbourState::Known(NEIGHBOUR))).unwrap();
    sites.left.worker_loop.turn().unwrap();
    assert_eq!(sites.on_left_wire().len(), 1);
}

#[test]
fn next_hop_queue_is_bounded() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    sites.left.standing = NeighbourState::Resolving;
    sites.left.send((0..100).map(|_| datagram()).collect());
    sites.left.turn();
    assert_eq!(sites.left.drops(DropReason::ForwardNoNeighbour), 36);
}

#[test]
fn changed_route_is_requested_again_and_used_meanwhile() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    assert_eq!(sites.left_to_right(vec![datagram()]).0.len(), 1);
    sites.left.news.send(NextHopUpdate::RoutesChanged).unwrap();
    sites.left.send(vec![datagram()]);
    sites.left.worker_loop.turn().unwrap();
    assert_eq!(sites.on_left_wire().len(), 1, "nobody waits");
    let asked: Vec<_> = sites.left.questions.try_iter().collect();
    assert_eq!(asked, [NextHopRequest::Route(IpAddr::from([192, 0, 2, 2]))]);
    sites
        .left
        .news
        .send(NextHopUpdate::Route([192, 0, 2, 2].into(), ResolvedRoute::NoRoute))
        .unwrap();
    sites.left.send(vec![datagram()]);
    sites.left.turn();
    assert!(sites.on_left_wire().is_empty());
    assert_eq!(sites.left.drops(DropReason::ForwardNoRoute), 1);
}

/// A learned path MTU holds for ten minutes. The engine and the worker need not see its end at the
/// same moment.
#[test]
fn route_mtu_below_engines_is_requested_again() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    assert_eq!(sites.left_to_right(vec![datagram()]).0.len(), 1);
    let address = IpAddr::from([192, 0, 2, 2]);
    let narrow = ResolvedRoute::Via {
        hop: NextHop { side: PortSide::Wire, address },
        mtu: 1300,
        source: None,
    };
    sites.left.news.send(NextHopUpdate::Route(address, narrow)).unwrap();
    let long = || packets::dont_fragment(packets::udp("10.1.0.2:7", "10.2.0.2:9", &[7; 1400 - 28]));
    sites.left.send(vec![long(), long()]);
    sites.left.worker_loop.turn().unwrap();
    assert_eq!(sites.left.drops(DropReason::ForwardTooBig), 2);
    let asked: Vec<_> = sites.left.questions.try_iter().collect();
    assert_eq!(asked, [NextHopRequest::Route(address)], "once for many packets");
    let wide = ResolvedRoute::Via {
        hop: NextHop { side: PortSide::Wire, address },
        mtu: 1500,
        source: None,
    };
    sites.left.news.send(NextHopUpdate::Route(address, wide)).unwrap();
    assert_eq!(sites.left_to_right(vec![long()]).0.len(), 1);
}

/// Sites whose left one knows this MTU of the path to an unprotected host.
fn with_narrow_way(mtu: u16) -> Sites {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let address = IpAddr::from([198, 51, 100, 1]);
    sites.left.send(vec![packets::udp("10.1.0.2:7", "198.51.100.1:9", b"who asks for the way")]);
    sites.left.turn();
    assert_eq!(sites.on_left_wire().len(), 1);
    let narrow =
        ResolvedRoute::Via { hop: NextHop { side: PortSide::Wire, address }, mtu, source: None };
    sites.left.news.send(NextHopUpdate::Route(address, narrow)).unwrap();
    sites
}

/// Reassembly needs the offsets within the datagram, also for fragments of a fragment
/// (`net/ipv4/ip_output.c: ip_frag_init`).
#[test]
fn refragmented_fragment_keeps_datagram_offsets() {
    let whole = packets::udp_bytes("10.1.0.2:7", "198.51.100.1:9", &[7; 3000]);
    for id in [[0x12, 0x34], [0, 0]] {
        let mut sites = with_narrow_way(600);
        let mut fragments = packets::fragments(&whole, 1480);
        for fragment in &mut fragments {
            fragment.bytes_mut()[4..6].copy_from_slice(&id);
            uxfrm_packet::ipv4::fill_checksum(fragment.bytes_mut()).unwrap();
        }
        sites.left.send(fragments);
        sites.left.worker_loop.turn().unwrap();
        let pieces = sites.on_left_wire();
        assert!(pieces.iter().all(|piece| piece.len() <= 600));
        let mut end = 0;
        for (place, piece) in pieces.iter().enumerate() {
            let header = Ipv4::parse(piece.bytes()).unwrap().header;
            assert_eq!(piece.bytes()[4..6], id, "of one datagram");
            assert_eq!(usize::from(header.fragment_offset()), end, "piece {place}");
            assert_eq!(header.more_fragments(), place + 1 < pieces.len(), "piece {place}");
            end += piece.len() - 20;
        }
        assert_eq!(end, whole.len() - 20);
    }
}

/// Packets without DF are fragmented, however many GRO had joined (`net/ipv4/ip_output.c:
/// ip_finish_output_gso`).
#[test]
fn super_packet_without_df_is_fragmented() {
    let mut sites = with_narrow_way(600);
    let large = || packets::tcp_super("10.1.0.2:7", "198.51.100.1:9", &[7; 5000], 1000);
    sites.left.send(vec![large()]);
    sites.left.worker_loop.turn().unwrap();
    let pieces = sites.on_left_wire();
    assert_eq!(sites.left.drops(DropReason::ForwardTooBig), 0);
    assert_eq!(pieces.len(), 10, "five segments in two pieces each");
    assert!(pieces.iter().all(|piece| piece.len() <= 600));
    sites.left.send(vec![packets::dont_fragment(large())]);
    sites.left.worker_loop.turn().unwrap();
    assert!(sites.on_left_wire().is_empty());
    assert_eq!(sites.left.drops(DropReason::ForwardTooBig), 5);
}

#[test]
fn host_packets_are_left_and_martians_dropped() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let to_host = packets::udp("10.1.0.2:7", "10.1.0.1:9", b"x");
    let link_local = packets::udp("[fe80::2]:7", "[fd00:2::2]:9", b"x");
    let martian = packets::udp("127.0.0.1:7", "10.2.0.2:9", b"x");
    let own = packets::udp("192.0.2.1:7", "10.2.0.2:9", b"x");
    let mut broken = datagram();
    broken.bytes_mut()[10] ^= 1;
    sites.left.send(vec![to_host, link_local, martian, own, broken]);
    sites.left.turn();
    assert!(sites.on_left_wire().is_empty());
    assert!(received(&mut sites.left.host, &mut sites.pool).is_empty());
    assert_eq!(sites.left.drops(DropReason::ForwardMartian), 2);
    assert_eq!(sites.left.drops(DropReason::ForwardMalformed), 1);
}

/// A super-packet of TCP that is UDP. What is forwarded and dropped is recorded as in the engine.
#[test]
fn wrong_super_packet_is_dropped_and_recorded() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let mut wrong = datagram();
    wrong.segments = Segments::Tcp { mss: 1000 };
    sites.left.send(vec![wrong]);
    sites.left.turn();
    let dropped = sites.left.drops(DropReason::ForwardSuper);
    assert!(dropped > 0);
    let [record] = &sites.left.worker_loop.worker().drop_records().take()[..] else { panic!() };
    assert_eq!((record.reason, record.packets), (DropReason::ForwardSuper, dropped));
    let flow = record.flow.unwrap();
    assert_eq!((flow.source, flow.destination_port), ("10.1.0.2".parse().unwrap(), 9));
    assert!(record.packet.is_some());
}

#[test]
fn decrypted_packet_for_host_reaches_tun() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let (arrived, _) =
        sites.left_to_right(vec![packets::udp("10.1.0.2:7", "10.2.0.1:9", b"for you")]);
    assert!(arrived.is_empty());
    assert_eq!(received(&mut sites.right.host, &mut sites.pool).len(), 1);
}

#[test]
fn host_packets_leave_protected() {
    let mut sites = Sites::new(&IpsecSetup::tunnel4());
    let packet = packets::udp("10.1.0.1:7", "10.2.0.2:9", b"from the gateway");
    let sent = sites.left.host.transmit(&mut [packet].into_iter().collect(), &mut sites.pool);
    assert_eq!(sent.packets, 1);
    sites.left.turn();
    let wire = sites.on_left_wire();
    assert_eq!(wire.iter().map(protocol).collect::<Vec<_>>(), [Protocol::ESP]);
}

#[test]
fn ttl_decrement_updates_checksum() {
    for hops in 2..=255 {
        let mut packet = with_hops(datagram(), hops);
        decrement_ttl(&mut packet);
        assert_eq!(packet.bytes()[8], hops - 1);
        assert!(Ipv4::parse(packet.bytes()).unwrap().checksum_is_right(), "{hops}");
    }
}
