use etherparse::{IpFragOffset, IpHeaders, Ipv6Extensions, Ipv6FragmentHeader, TransportHeader};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::FlowPorts;
use crate::test_packets::{TestPacket, any_packet};

/// Fragment fields: offset in units of 8 bytes, more fragments, id.
type Piece = Option<(u16, bool, u32)>;

fn piece() -> impl Strategy<Value = Piece> {
    option::of((prop_oneof![Just(0_u16), 0_u16..0x2000], any::<bool>(), any::<u32>()))
}

/// Makes the packet a fragment, as far as headers are concerned.
fn fragment(sample: &mut TestPacket, piece: Piece) {
    let Some((offset, more, id)) = piece else { return };
    let offset = IpFragOffset::try_new(offset).unwrap();
    match &mut sample.ip {
        IpHeaders::Ipv4(header, _) => {
            (header.fragment_offset, header.more_fragments) = (offset, more);
            header.identification = (id & 0xffff).try_into().unwrap();
        }
        IpHeaders::Ipv6(_, extensions) => {
            // A later fragment has no further headers.
            if let Some(routing) = &mut extensions.routing {
                routing.final_destination_options = None;
            }
            extensions.fragment =
                Some(Ipv6FragmentHeader::new(etherparse::IpNumber::UDP, offset, more, id));
        }
    }
}

fn expected_fragment(version: Version, piece: Piece) -> Fragment {
    match (version, piece) {
        (_, None) | (Version::V4, Some((0, false, _))) => Fragment::None,
        (Version::V4, Some((offset, more, id))) => Fragment::new(id & 0xffff, offset * 8, more),
        (Version::V6, Some((offset, more, id))) => Fragment::new(id, offset * 8, more),
    }
}

/// Position of ESP by RFC 4303 §3.1.1: behind hop-by-hop options, destination options that a
/// routing or fragment header follows, routing and fragment header.
fn expected_esp_offset(extensions: &Ipv6Extensions) -> usize {
    let raw = |header: &Option<etherparse::Ipv6RawExtHeader>| {
        header.as_ref().map_or(0, |header| header.header_len())
    };
    let fragment = extensions.fragment.as_ref().map_or(0, |header| header.header_len());
    let mut offset = 40 + raw(&extensions.hop_by_hop_options);
    if fragment != 0 || extensions.routing.is_some() {
        offset += raw(&extensions.destination_options);
    }
    if let Some(routing) = &extensions.routing {
        offset += routing.routing.header_len();
        if fragment != 0 {
            offset += raw(&routing.final_destination_options);
        }
    }
    offset + fragment
}

proptest! {
    #[test]
    fn fields_are_those_etherparse_wrote(mut sample in any_packet(100), piece in piece(), trailing in 0_usize..9) {
        fragment(&mut sample, piece);
        let mut bytes = sample.bytes();
        let total_len = bytes.len();
        bytes.resize(total_len + trailing, 0xee);
        let ip = IpPacket::parse(&bytes).unwrap();
        prop_assert_eq!(IpPacket::parse_then(&bytes, |ip| ip), Ok(ip));
        prop_assert_eq!((ip.total_len, ip.trailing), (total_len, trailing));
        prop_assert_eq!(ip.header_len, sample.ip.header_len());
        prop_assert_eq!(ip.fragment, expected_fragment(ip.version, piece));
        let number = if matches!(sample.transport, TransportHeader::Tcp(_)) { Protocol::TCP } else { Protocol::UDP };
        prop_assert_eq!(ip.protocol, number);
        prop_assert_eq!(ip.upper(&bytes), &bytes[ip.header_len..total_len]);
        match &sample.ip {
            IpHeaders::Ipv4(header, _) => {
                prop_assert_eq!(ip.version, Version::V4);
                prop_assert_eq!((ip.source, ip.destination), (header.source.into(), header.destination.into()));
                prop_assert_eq!((ip.dscp(), ip.ecn().bits()), (header.dscp.value(), header.ecn.value()));
                prop_assert_eq!((ip.ttl, ip.dont_fragment), (header.time_to_live, header.dont_fragment));
                prop_assert_eq!(ip.has_options, !header.options.is_empty());
                prop_assert_eq!((ip.esp_offset, ip.next_header_at), (ip.header_len, 9));
                prop_assert!(Ipv4::parse(&bytes).unwrap().checksum_is_right());
            }
            IpHeaders::Ipv6(header, extensions) => {
                prop_assert_eq!(ip.version, Version::V6);
                prop_assert_eq!((ip.source, ip.destination), (header.source.into(), header.destination.into()));
                prop_assert_eq!((ip.tos, ip.ttl), (header.traffic_class, header.hop_limit));
                prop_assert_eq!(ip.flow_label, header.flow_label.value());
                prop_assert_eq!(ip.has_options, !extensions.is_empty());
                prop_assert_eq!(ip.esp_offset, expected_esp_offset(extensions));
            }
        }
    }

    #[test]
    fn ports_are_those_of_whole_packets_only(mut sample in any_packet(10), piece in piece()) {
        fragment(&mut sample, piece);
        let bytes = sample.bytes();
        let ip = IpPacket::parse(&bytes).unwrap();
        let (source, destination) = match &sample.transport {
            TransportHeader::Tcp(header) => (header.source_port, header.destination_port),
            TransportHeader::Udp(header) => (header.source_port, header.destination_port),
            TransportHeader::Icmpv4(_) | TransportHeader::Icmpv6(_) | TransportHeader::Igmp(_) => unreachable!("specimens are TCP or UDP"),
        };
        let is_whole = piece.is_none_or(|(offset, more, _)| offset == 0 && !more);
        prop_assert_eq!(ip.is_piece(), !is_whole);
        let expected = if !is_whole { FlowPorts::NONE } else { FlowPorts { source, destination } };
        prop_assert_eq!(FlowPorts::of(&ip, &bytes), expected);
    }

    #[test]
    fn truncated_packet_is_refused(sample in any_packet(30), cut in any::<prop::sample::Index>()) {
        let bytes = sample.bytes();
        let bytes = &bytes[..cut.index(bytes.len())];
        prop_assert!(IpPacket::parse(bytes).is_err());
        prop_assert_eq!(IpPacket::parse_then(bytes, |ip| ip), IpPacket::parse(bytes));
    }

    #[test]
    fn next_header_byte_names_header_at_esp_offset(sample in any_packet(10)) {
        // With ESP named there, the chain ends there.
        let mut bytes = sample.bytes();
        let before = IpPacket::parse(&bytes).unwrap();
        bytes[before.next_header_at] = Protocol::ESP.0;
        let after = IpPacket::parse(&bytes).unwrap();
        prop_assert_eq!((after.protocol, after.header_len), (Protocol::ESP, before.esp_offset));
        prop_assert_eq!(after.esp_offset, before.esp_offset);
    }

    #[test]
    fn etherparse_reads_the_same_upper_layer_from_any_bytes(mut bytes in prop::collection::vec(any::<u8>(), 40..120), chain in prop::collection::vec(prop::sample::select(vec![0_u8, 43, 44, 60, 17, 6, 59, 50]), 4)) {
        (bytes[0], bytes[6]) = (0x60, chain[0]);
        let len = u16::try_from(bytes.len() - 40).unwrap();
        bytes[4..6].copy_from_slice(&len.to_be_bytes());
        for (at, next) in chain.iter().enumerate() {
            if let Some(header) = bytes.get_mut(40 + at * 8..42 + at * 8) {
                header.copy_from_slice(&[*next, 0]);
            }
        }
        let theirs = etherparse::Ipv6Header::skip_all_header_extensions_in_slice(&bytes[40..], bytes[6].into());
        match (IpPacket::parse(&bytes), theirs) {
            (Ok(ip), Ok((number, rest))) if !matches!(ip.fragment, Fragment::Later { .. }) => {
                prop_assert_eq!((ip.protocol.0, ip.header_len), (number.0, bytes.len() - rest.len()));
            }
            (Ok(ip), _) => {
                let later = matches!(ip.fragment, Fragment::Later { .. });
                prop_assert!(later);
            }
            (Err(error), Ok(_)) => prop_assert_eq!(error, ParseError::ExtensionsTooMany),
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), first in prop_oneof![0x40_u8..0x50, Just(0x60)]) {
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        prop_assert_eq!(IpPacket::parse_then(&bytes, |ip| ip), IpPacket::parse(&bytes));
        if let Ok(ip) = IpPacket::parse(&bytes) {
            prop_assert!(ip.header_len <= ip.total_len && ip.total_len + ip.trailing == bytes.len());
            prop_assert!(ip.esp_offset <= ip.header_len && ip.next_header_at < ip.esp_offset);
            let _ = (FlowPorts::of(&ip, &bytes), checksum::verify(&ip, &bytes));
        }
    }
}

#[test]
fn each_fault_has_its_error() {
    let ipv4 = |change: fn(&mut Vec<u8>)| {
        let mut bytes =
            vec![0x46, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 1];
        change(&mut bytes);
        IpPacket::parse(&bytes).unwrap_err()
    };
    assert_eq!(ipv4(Vec::clear), ParseError::NotIp);
    assert_eq!(ipv4(|bytes| bytes[0] = 0x56), ParseError::NotIp);
    assert_eq!(ipv4(|bytes| bytes.truncate(19)), ParseError::Ipv4Truncated);
    assert_eq!(ipv4(|bytes| bytes[0] = 0x44), ParseError::Ipv4HeaderLength);
    assert_eq!(ipv4(|bytes| bytes.truncate(23)), ParseError::Ipv4OptionsTruncated);
    assert_eq!(ipv4(|bytes| bytes[3] = 23), ParseError::Ipv4TotalLengthShort);
    assert_eq!(ipv4(|bytes| bytes[3] = 25), ParseError::Ipv4TotalLengthLong);
    let ipv6 = |change: fn(&mut Vec<u8>)| {
        let mut bytes = vec![0; 40];
        (bytes[0], bytes[5], bytes[6]) = (0x60, 72, 60);
        (0..8).for_each(|_| bytes.extend_from_slice(&[60, 0, 0, 0, 0, 0, 0, 0]));
        bytes.extend_from_slice(&[17, 0, 0, 0, 0, 0, 0, 0]);
        change(&mut bytes);
        IpPacket::parse(&bytes).unwrap_err()
    };
    assert_eq!(ipv6(|bytes| bytes.truncate(39)), ParseError::Ipv6Truncated);
    assert_eq!(ipv6(|bytes| bytes.truncate(111)), ParseError::Ipv6PayloadLength);
    assert_eq!(ipv6(|bytes| bytes[41] = 9), ParseError::ExtensionTruncated);
    assert_eq!(ipv6(|bytes| bytes[5] = 0), ParseError::ExtensionTruncated);
    assert_eq!(ipv6(|_| {}), ParseError::ExtensionsTooMany);
}

#[test]
fn later_fragment_has_no_further_headers() {
    let mut bytes = vec![0x60, 0, 0, 0, 0, 16, 44, 64];
    bytes.resize(40, 1);
    bytes.extend_from_slice(&[60, 0, 0, 9, 0, 0, 0, 5, 6, 0, 1, 4, 0, 0, 0, 0]);
    let ip = IpPacket::parse(&bytes).unwrap();
    assert_eq!(ip.fragment, Fragment::Later { id: 5, more: true, offset: 8 });
    assert_eq!((ip.protocol, ip.header_len), (Protocol::DSTOPTS, 48));
}

#[test]
fn icmp_mh_and_gre_have_port_equivalents() {
    let ports = |protocol: Protocol, upper: &[u8]| {
        let mut bytes = vec![0x60, 0, 0, 0, 0, u8::try_from(upper.len()).unwrap(), protocol.0, 64];
        bytes.resize(40, 1);
        bytes.extend_from_slice(upper);
        let FlowPorts { source, destination } =
            FlowPorts::of(&IpPacket::parse(&bytes).unwrap(), &bytes);
        (source, destination)
    };
    for with_ports in
        [Protocol::TCP, Protocol::UDP, Protocol::UDPLITE, Protocol::SCTP, Protocol::DCCP]
    {
        assert_eq!(ports(with_ports, &[1, 2, 3, 4]), (0x0102, 0x0304));
        assert_eq!(ports(with_ports, &[1, 2, 3]), (0, 0), "cut short");
    }
    assert_eq!(ports(Protocol::ICMPV6, &[128, 5]), (128, 5));
    assert_eq!(ports(Protocol::ICMP, &[8, 1]), (8, 1));
    assert_eq!(ports(Protocol::ICMP, &[8, 1, 9, 9]), (8, 1));
    assert_eq!(ports(Protocol::MH, &[59, 1, 5, 0]), (5, 0));
    assert_eq!(ports(Protocol::GRE, &[0x20, 0, 8, 0, 1, 2, 3, 4]), (0x0102, 0x0304));
    assert_eq!(ports(Protocol::GRE, &[0xa0, 0, 8, 0, 9, 9, 9, 9, 1, 2, 3, 4]), (0x0102, 0x0304));
    assert_eq!(ports(Protocol::GRE, &[0x80, 0, 8, 0, 9, 9, 9, 9]), (0, 0), "no key");
    assert_eq!(ports(Protocol::GRE, &[0x20, 0, 8, 0, 1, 2, 3]), (0, 0), "cut short");
    assert_eq!(ports(Protocol::GRE, &[0x60, 0, 8, 0, 1, 2, 3, 4]), (0, 0), "source routes");
    assert_eq!(ports(Protocol::ESP, &[1, 2, 3, 4, 5, 6, 7, 8]), (0, 0));
}

/// RFC 2637 §4.1: in PPTP's version of GRE the upper half of the key is the payload's length.
#[test]
fn pptp_key_gives_lower_half_only() {
    let ports = |upper: &[u8]| {
        let len = u8::try_from(upper.len()).unwrap();
        let mut bytes = [&[0x60, 0, 0, 0, 0, len, Protocol::GRE.0, 64][..], &[1; 32]].concat();
        bytes.extend_from_slice(upper);
        let FlowPorts { source, destination } =
            FlowPorts::of(&IpPacket::parse(&bytes).unwrap(), &bytes);
        (source, destination)
    };
    assert_eq!(ports(&[0x20, 1, 0x88, 0x0b, 1, 2, 3, 4]), (0, 0x0304));
    assert_eq!(ports(&[0xb0, 0x81, 0x88, 0x0b, 9, 9, 9, 9, 1, 2, 3, 4]), (0, 0x0304));
    assert_eq!(ports(&[0x10, 1, 0x88, 0x0b, 1, 2, 3, 4]), (0, 0), "no key");
    assert_eq!(ports(&[0x20, 1, 0x08, 0x00, 1, 2, 3, 4]), (0, 0), "not of PPP");
    assert_eq!(ports(&[0x60, 1, 0x88, 0x0b, 1, 2, 3, 4]), (0, 0), "source routes");
    for version in 2..8 {
        assert_eq!(ports(&[0x20, version, 8, 0, 1, 2, 3, 4]), (0, 0), "version {version}");
    }
}
