//! A capture has the packets of its sides, within its bounds.

use uxfrm_engine::{
    CapturePoint, CaptureReader, CaptureRequest, CaptureSides, DropReason, Family, Mode, PacketWay,
    Spi, TapFilter, TappedPacket, UdpEncapKind, WAITING_BYTES, WAITING_PACKETS, WireHeaders,
};
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, Segments, checksum};
use uxfrm_testkit::{FIRST_SPI, IpsecSetup, TestGateway, TestGatewayPair, packets};

use crate::datagram;

const ALL: CaptureSides = CaptureSides { plain: true, wire: true, drops: true };

fn request(sides: CaptureSides) -> CaptureRequest {
    let filter = TapFilter::default();
    CaptureRequest { sides, filter, snaplen: 65_536, per_second: 100_000 }
}

fn reader(gateway: &TestGateway, request: CaptureRequest) -> CaptureReader {
    CaptureReader::new(&[gateway.worker.tap()], request)
}

fn all(reader: &CaptureReader) -> Vec<TappedPacket> {
    std::iter::from_fn(|| reader.take()).collect()
}

#[test]
fn both_sides_and_drops_are_captured_in_order() {
    let mut pair = TestGatewayPair::new(&IpsecSetup::tunnel4());
    let (left, right) = (reader(&pair.left, request(ALL)), reader(&pair.right, request(ALL)));
    let wire = pair.left.outbound_watched(vec![datagram(7)]).0;
    let copy = PacketBuf::from_slice(wire[0].bytes());
    pair.right.inbound_watched(wire);
    pair.right.inbound_watched(vec![copy]);
    let sent = all(&left);
    let points: Vec<_> = sent.iter().map(|packet| packet.point).collect();
    assert_eq!(points, [CapturePoint::Plain(PacketWay::Out), CapturePoint::Wire(PacketWay::Out)]);
    assert_eq!(&*sent[0].bytes, datagram(7).bytes());
    assert_eq!(sent[1].headers.esp.unwrap().spi, Spi(FIRST_SPI));
    let received = all(&right);
    let points: Vec<_> = received.iter().map(|packet| packet.point).collect();
    let (wire, plain) = (CapturePoint::Wire(PacketWay::In), CapturePoint::Plain(PacketWay::In));
    assert_eq!(points, [wire, plain, wire, CapturePoint::Drop(PacketWay::In)]);
    assert_eq!(&*received[1].bytes, datagram(7).bytes());
    let note = received[3].drop.unwrap();
    assert_eq!(note.reason, DropReason::InReplay);
    assert_eq!(note.sa.unwrap().id.spi, Spi(FIRST_SPI));
    assert_eq!((received[3].len, &received[3].bytes), (received[2].len, &received[2].bytes));
}

#[test]
fn sides_filter_and_length_are_those_asked_for() {
    let sides = |plain, wire, drops| CaptureSides { plain, wire, drops };
    for (sides, expected) in [
        (sides(true, false, false), 2),
        (sides(false, true, false), 2),
        (sides(false, false, true), 0),
    ] {
        let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
        let reader = reader(&left, request(sides));
        left.outbound_watched(vec![datagram(7), datagram(8)]);
        assert_eq!(all(&reader).len(), expected, "{sides:?}");
    }
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    let filter = TapFilter { port: Some(8), ..TapFilter::default() };
    let ports = reader(&left, CaptureRequest { filter, snaplen: 20, ..request(ALL) });
    let filter = TapFilter { spi: Some(Spi(7)), ..TapFilter::default() };
    let others = reader(&left, CaptureRequest { filter, ..request(ALL) });
    left.outbound_watched(vec![datagram(7), datagram(8)]);
    let captured = all(&ports);
    assert_eq!(captured.len(), 1, "the ESP packet has no ports");
    assert_eq!((captured[0].bytes.len(), captured[0].len), (20, 30));
    let points: Vec<_> = all(&others).iter().map(|packet| packet.point).collect();
    assert_eq!(points, [CapturePoint::Plain(PacketWay::Out); 2], "whose ESP the reader looks up");
}

#[test]
fn payload_of_a_socket_gets_the_headers_of_the_wire() {
    for outer in [Family::V4, Family::V6] {
        let mut setup = IpsecSetup::new(Mode::Tunnel, Family::V4, outer);
        setup.encap = Some(UdpEncapKind::Esp);
        setup.settings.headers = WireHeaders::UdpSocket;
        let mut pair = TestGatewayPair::new(&setup);
        let reader = reader(&pair.left, request(CaptureSides { plain: false, ..ALL }));
        let wire = pair.left.outbound_watched(vec![datagram(7)]).0;
        assert!(wire[0].udp.is_some());
        let captured = &all(&reader)[0];
        let ip = IpPacket::parse(&captured.bytes).unwrap();
        assert_eq!((ip.protocol, ip.total_len), (Protocol::UDP, captured.len));
        let (source, destination) = setup.gateways(uxfrm_testkit::PairDirection::LeftToRight);
        assert_eq!((ip.source, ip.destination), (source, destination));
        assert_eq!(captured.headers.esp.unwrap().sequence, 1);
        assert!(captured.bytes.ends_with(wire[0].bytes()));
        if outer == Family::V6 {
            let verified = checksum::verify(&ip, &captured.bytes);
            assert_eq!(verified, checksum::Verification::Right);
        } else {
            assert_eq!(checksum::Sum::of(&captured.bytes[..20]).fold(), 0xffff);
        }
    }
}

#[test]
fn burst_is_captured_as_its_packets_and_super_packet_as_it_is() {
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    let reader = reader(&left, request(CaptureSides { drops: false, ..ALL }));
    let joined = packets::tcp_super("10.1.0.1:7", "10.2.0.1:9", &[7; 3000], 1000);
    let wire = left.outbound_watched(vec![joined]).0;
    assert!(matches!(wire[..], [ref one] if matches!(one.segments, Segments::Burst { .. })));
    let captured = all(&reader);
    assert_eq!((captured.len(), captured[0].segment, captured[0].len), (4, Some(1000), 3040));
    let numbers: Vec<_> =
        captured[1..].iter().map(|packet| packet.headers.esp.unwrap().sequence).collect();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn rate_is_kept_and_slow_reader_loses_packets() {
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    let plain = CaptureSides { plain: true, ..CaptureSides::default() };
    let slow = reader(&left, CaptureRequest { per_second: 10, ..request(plain) });
    let full = reader(&left, request(plain));
    let batch = || (0..100).map(|_| datagram(7)).collect();
    for second in 0..3 {
        left.now = uxfrm_engine::Moment::from_secs(10 + second);
        assert_eq!(left.outbound_watched(batch()).0.len(), 100);
    }
    assert_eq!((all(&slow).len(), slow.over_rate(), slow.lost()), (30, 270, 0));
    for _ in 0..50 {
        left.outbound_watched(batch());
    }
    let taken = all(&full).len();
    assert_eq!((taken, full.lost()), (WAITING_PACKETS, 5300 - WAITING_PACKETS as u64));
    left.outbound_watched(batch());
    assert_eq!(all(&full).len(), 100, "there is room again");
}

#[test]
fn bytes_that_wait_are_bounded() {
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    let plain = CaptureSides { plain: true, ..CaptureSides::default() };
    let reader = reader(&left, request(plain));
    for _ in 0..500 {
        let large = packets::tcp_super("10.1.0.1:7", "10.7.0.1:9", &[7; 60_000], 1000);
        left.outbound_watched(vec![large]);
    }
    let bytes: usize = all(&reader).iter().map(|packet| packet.bytes.len()).sum();
    assert!(bytes <= WAITING_BYTES && bytes > WAITING_BYTES - 61_000, "{bytes}");
    assert!(reader.lost() > 0);
}

#[test]
fn drops_are_captured_without_bytes_where_there_are_none() {
    let mut left = TestGatewayPair::new(&IpsecSetup::tunnel4()).left;
    let reader = reader(&left, request(CaptureSides { drops: true, ..CaptureSides::default() }));
    left.worker.count_dropped(12, DropReason::PortFull, left.now);
    let captured = all(&reader);
    assert_eq!((captured.len(), captured[0].len, captured[0].bytes.len()), (1, 0, 0));
    let note = captured[0].drop.unwrap();
    assert_eq!((note.reason, note.packets), (DropReason::PortFull, 12));
}
