use proptest::prelude::*;

use super::*;
use crate::Checksum;
use crate::checksum::{Verification, verify};
use crate::ipv4::Ipv4;
use crate::test_packets::{TestPacket, any_packet};

fn cut(packet: &PacketBuf) -> Vec<Vec<u8>> {
    let plan = SegmentPlan::new(packet).unwrap();
    let write = |k| {
        let mut out = vec![0xaa; plan.len(k)];
        assert_eq!(plan.write(k, packet.bytes(), &mut out), Some(out.len()));
        out
    };
    (0..plan.count()).map(write).collect()
}

fn naive(sample: &TestPacket, size: usize) -> Vec<Vec<u8>> {
    let count = sample.payload.len().div_ceil(size).max(1);
    (0..count).map(|k| sample.segment(k, size).bytes()).collect()
}

fn refusal(bytes: &[u8], segments: Segments) -> ParseError {
    let mut packet = PacketBuf::from_slice(bytes);
    packet.segments = segments;
    SegmentPlan::new(&packet).unwrap_err()
}

#[test]
fn unsegmentable_packet_gives_error() {
    let mut datagram = vec![
        0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2, 0, 9, 0, 0, 9,
    ];
    let udp = Segments::Udp { size: 1 };
    assert_eq!(refusal(&datagram, Segments::One), ParseError::NotSuper);
    assert_eq!(refusal(&datagram, Segments::Burst { stride: 29 }), ParseError::NotSuper);
    assert_eq!(refusal(&datagram, Segments::Udp { size: 0 }), ParseError::SegmentSize);
    assert_eq!(refusal(&datagram, Segments::Tcp { mss: 1 }), ParseError::SuperProtocol);
    assert_eq!(refusal(&datagram[..28], udp), ParseError::Ipv4TotalLengthLong);
    datagram[3] = 27;
    assert_eq!(refusal(&datagram, udp), ParseError::UdpTruncated);
    datagram[6] = 0x20;
    assert_eq!(refusal(&datagram, udp), ParseError::SuperFragment);
}

#[test]
fn headers_beyond_the_template_are_refused() {
    let mut packet = vec![0x60, 0, 0, 0, 1, 8, 60, 64];
    packet.resize(40, 1);
    packet.extend_from_slice(&[17, 31]);
    packet.resize(40 + 256 + 8, 0);
    assert_eq!(refusal(&packet, Segments::Udp { size: 1 }), ParseError::SuperHeader);
}

#[test]
fn short_output_is_not_written() {
    let datagram = [
        0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 0, 2, 0, 10, 0, 0,
        9, 9,
    ];
    let mut packet = PacketBuf::from_slice(&datagram);
    packet.segments = Segments::Udp { size: 1 };
    let plan = SegmentPlan::new(&packet).unwrap();
    assert_eq!((plan.count(), plan.len(0), plan.len(1), plan.len(2)), (2, 29, 29, 28));
    let mut out = [0; 29];
    assert_eq!(plan.write(2, packet.bytes(), &mut out), None);
    assert_eq!(plan.write(usize::MAX, packet.bytes(), &mut out), None);
    assert_eq!(plan.write(0, packet.bytes(), &mut out[..28]), None);
    assert_eq!(plan.write(1, &packet.bytes()[..29], &mut out), None);
    assert_eq!(plan.write_header(0, b"", &mut out), None);
    assert_eq!(out, [0; 29]);
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn segments_equal_plain_cutting(sample in any_packet(6000), size in 1_u16..1500) {
        let packet = sample.super_packet(size.max(64));
        let segments = cut(&packet);
        prop_assert_eq!(&segments, &naive(&sample, size.max(64).into()));
        let header_len = packet.len() - sample.payload.len();
        let payload = segments.iter().flat_map(|segment| &segment[header_len..]).copied().collect::<Vec<_>>();
        prop_assert_eq!(payload, sample.payload);
        for segment in &segments {
            let ip = IpPacket::parse(segment).unwrap();
            prop_assert_eq!(verify(&ip, segment), Verification::Right);
            prop_assert!(ip.version == Version::V6 || Ipv4::parse(segment).unwrap().checksum_is_right());
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn headers_may_overwrite_previous_segment(sample in any_packet(6000), size in 256_u16..1500) {
        let mut packet = sample.super_packet(size);
        let plan = SegmentPlan::new(&packet).unwrap();
        let bytes = packet.bytes_mut();
        for k in 0..plan.count() {
            let payload = plan.payload(k);
            let (before, rest) = bytes.split_at_mut(payload.start);
            let header = &mut before[payload.start - plan.header_len()..];
            plan.write_header(k, &rest[..payload.len()], header).unwrap();
            let whole = &bytes[payload.start - plan.header_len()..payload.end];
            prop_assert_eq!(whole, sample.segment(k, size.into()).bytes());
        }
    }

    #[test]
    fn partial_checksum_is_completed_as_by_etherparse(sample in any_packet(300)) {
        let mut packet = sample.super_packet(1);
        packet.segments = Segments::One;
        crate::checksum::complete(&mut packet).unwrap();
        prop_assert_eq!(packet.checksum, Checksum::Verified);
        let (ours, theirs) = (packet.bytes(), sample.bytes());
        // TCP may be 0 where the kernel, and so we, write 0xffff.
        prop_assert!(ours == theirs || ours.iter().zip(&theirs).all(|(a, b)| a == b || (*a, *b) == (0xff, 0)));
    }

    #[test]
    fn any_bytes_make_a_plan_or_an_error(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), first in prop_oneof![0x45_u8..0x48, Just(0x60)], protocol in prop_oneof![Just(6_u8), Just(17), Just(0)], size: u16) {
        prop_assume!(bytes.len() > 12);
        let len = u16::try_from(bytes.len()).unwrap();
        if first == 0x60 {
            (bytes[0], bytes[6]) = (first, protocol);
            bytes[4..6].copy_from_slice(&len.saturating_sub(40).to_be_bytes());
        } else {
            (bytes[0], bytes[9]) = (first, protocol);
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
            bytes[6..8].fill(0);
        }
        for segments in [Segments::Tcp { mss: size }, Segments::Udp { size }] {
            let mut packet = PacketBuf::from_slice(&bytes);
            packet.segments = segments;
            if SegmentPlan::new(&packet).is_ok() {
                cut(&packet);
            }
        }
    }
}
