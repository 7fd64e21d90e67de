//! Every view against etherparse: the same fields from what it wrote, the same verdict on any
//! bytes.

use etherparse::{PacketBuilder, SingleVlanHeader, TcpHeader, VlanId, VlanPcp};
use proptest::collection::vec;
use proptest::prelude::*;
use uxfrm_packet::checksum::Sum;
use uxfrm_packet::esp::{Esp, EspHeader};
use uxfrm_packet::ethernet::{EtherType, EthernetFrame};
use uxfrm_packet::gre::{Gre, GreFields};
use uxfrm_packet::icmp::{Icmp, IcmpHeader};
use uxfrm_packet::icmpv6::{Icmpv6, Icmpv6Header};
use uxfrm_packet::ipv4::{self, Ipv4, Ipv4Header};
use uxfrm_packet::ipv6::Ipv6;
use uxfrm_packet::tcp::{Tcp, TcpFlags};
use uxfrm_packet::udp::UdpDatagram;
use uxfrm_packet::{ParseError, Protocol};
use zerocopy::{FromBytes, IntoBytes};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..120)
}

fn tag(id: u16, priority: u8, drop: bool) -> SingleVlanHeader {
    SingleVlanHeader {
        pcp: VlanPcp::try_new(priority).expect("3 bits"),
        drop_eligible_indicator: drop,
        vlan_id: VlanId::try_new(id).expect("12 bits"),
        ether_type: etherparse::EtherType::IPV4,
    }
}

proptest! {
    #[test]
    fn set_len_and_protocol_keeps_checksum_valid(
        header: [u8; 20], payload in bytes(), options in 0_usize..=10, protocol: u8,
    ) {
        let mut packet = [&header[..], &vec![7; options * 4], &payload].concat();
        packet[0] = 0x45 + u8::try_from(options).unwrap();
        ipv4::fill_checksum(&mut packet).unwrap();
        ipv4::set_len_and_protocol(&mut packet, Protocol(protocol)).unwrap();
        let (len, known) = (packet.len(), Ipv4Header::read_from_prefix(&packet).unwrap().0);
        prop_assert_eq!((usize::from(known.total_len.get()), known.protocol.0), (len, protocol));
        let right = [&packet[..]].concat();
        ipv4::fill_checksum(&mut packet).unwrap();
        prop_assert_eq!(&packet, &right);

        // A wrong one stays wrong: nobody takes a damaged header for a sound one.
        let mut damaged = packet.clone();
        damaged[16] ^= 1;
        ipv4::set_len_and_protocol(&mut damaged, Protocol::TCP).unwrap();
        let kept = damaged.clone();
        ipv4::fill_checksum(&mut damaged).unwrap();
        prop_assert_ne!(damaged, kept);
    }

    #[test]
    fn frames_with_and_without_tags(macs: [[u8; 6]; 2], ids in vec((0_u16..4096, 0_u8..8, any::<bool>()), 0..=2), payload in bytes()) {
        let ethernet = PacketBuilder::ethernet2(macs[0], macs[1]);
        let mut frame = Vec::new();
        let tags = ids.iter().map(|&(id, priority, drop)| tag(id, priority, drop)).collect::<Vec<_>>();
        match &tags[..] {
            [] => ethernet.ipv4([1; 4], [2; 4], 9).udp(1, 2).write(&mut frame, &payload).unwrap(),
            [one] => ethernet.vlan(etherparse::VlanHeader::Single(one.clone())).ipv4([1; 4], [2; 4], 9).udp(1, 2).write(&mut frame, &payload).unwrap(),
            [outer, inner, ..] => ethernet
                .vlan(etherparse::VlanHeader::Double(etherparse::DoubleVlanHeader { outer: outer.clone(), inner: inner.clone() }))
                .ipv4([1; 4], [2; 4], 9)
                .udp(1, 2)
                .write(&mut frame, &payload)
                .unwrap(),
        }
        let view = EthernetFrame::parse(&frame).unwrap();
        prop_assert_eq!([view.header.source.0, view.header.destination.0], macs);
        prop_assert_eq!(view.ether_type, EtherType::IPV4);
        prop_assert_eq!(view.tags.iter().map(|tag| (tag.vlan(), tag.priority(), tag.drop_eligible())).collect::<Vec<_>>(), ids);
        let udp = UdpDatagram::parse(Ipv4::parse(view.payload).unwrap().payload).unwrap();
        prop_assert_eq!(udp.payload, payload);
        prop_assert_eq!(&frame[view.header_len()..], view.payload);
    }

    #[test]
    fn tcp_with_any_bytes(mut bytes in bytes(), words in 0_u8..16) {
        if let Some(byte) = bytes.get_mut(12) {
            *byte = words << 4;
        }
        match (Tcp::parse(&bytes), TcpHeader::from_slice(&bytes)) {
            (Ok(ours), Ok((theirs, payload))) => {
                prop_assert_eq!(ours.header.source.get(), theirs.source_port);
                prop_assert_eq!(ours.header.destination.get(), theirs.destination_port);
                prop_assert_eq!(ours.header.sequence.get(), theirs.sequence_number);
                prop_assert_eq!(ours.header.acknowledgment.get(), theirs.acknowledgment_number);
                prop_assert_eq!(ours.header.window.get(), theirs.window_size);
                prop_assert_eq!(ours.header.checksum.get(), theirs.checksum);
                prop_assert_eq!(ours.header.urgent.get(), theirs.urgent_pointer);
                let flags = ours.header.flags;
                let pairs = [
                    (TcpFlags::FIN, theirs.fin), (TcpFlags::SYN, theirs.syn), (TcpFlags::RST, theirs.rst), (TcpFlags::PSH, theirs.psh),
                    (TcpFlags::ACK, theirs.ack), (TcpFlags::URG, theirs.urg), (TcpFlags::ECE, theirs.ece), (TcpFlags::CWR, theirs.cwr),
                ];
                prop_assert!(pairs.iter().all(|(flag, set)| flags.has(*flag) == *set));
                prop_assert_eq!((ours.option_bytes, ours.payload), (theirs.options.as_slice(), payload));
                prop_assert!(ours.options().count() <= ours.option_bytes.len());
            }
            (ours, theirs) => prop_assert!(ours.is_err() && theirs.is_err()),
        }
    }

    #[test]
    fn udp_with_any_bytes(mut bytes in bytes(), length in 0_u16..130) {
        if let Some(field) = bytes.get_mut(4..6) {
            field.copy_from_slice(&length.to_be_bytes());
        }
        match (UdpDatagram::parse(&bytes), etherparse::UdpSlice::from_slice(&bytes)) {
            (Ok(ours), Ok(theirs)) => {
                prop_assert_eq!(ours.header.source.get(), theirs.source_port());
                prop_assert_eq!(ours.header.destination.get(), theirs.destination_port());
                prop_assert_eq!(ours.header.checksum.get(), theirs.checksum());
                prop_assert_eq!(ours.payload, theirs.payload());
            }
            // etherparse takes 0 for "as much as there is", as in jumbograms (RFC 2675), which are
            // not read here.
            (ours, theirs) => prop_assert!(ours.is_err() && (theirs.is_err() || length == 0)),
        }
    }

    #[test]
    fn ip_with_any_bytes(mut bytes in bytes(), first in prop_oneof![0x40_u8..0x50, Just(0x60)], length in 0_u16..130) {
        prop_assume!(bytes.len() > 5);
        bytes[0] = first;
        let at = if first == 0x60 { 4 } else { 2 };
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
        match etherparse::Ipv4Header::from_slice(&bytes) {
            Ok((theirs, _)) if usize::from(length) >= theirs.header_len() && usize::from(length) <= bytes.len() => {
                let ours = Ipv4::parse(&bytes).unwrap();
                prop_assert_eq!((ours.header.id.get(), ours.header.fragment_offset()), (theirs.identification, theirs.fragment_offset.value() << 3));
                prop_assert_eq!((ours.header.dont_fragment(), ours.header.more_fragments()), (theirs.dont_fragment, theirs.more_fragments));
                prop_assert_eq!(ours.options, &theirs.options[..]);
                prop_assert_eq!(ours.checksum_is_right(), theirs.calc_header_checksum() == theirs.header_checksum);
            }
            _ => prop_assert!(Ipv4::parse(&bytes).is_err()),
        }
        match etherparse::Ipv6Header::from_slice(&bytes) {
            Ok((theirs, rest)) if usize::from(length) <= rest.len() => {
                let ours = Ipv6::parse(&bytes).unwrap();
                prop_assert_eq!(ours.header.traffic_class(), theirs.traffic_class);
                prop_assert_eq!(ours.header.flow_label(), theirs.flow_label.value());
                prop_assert_eq!(ours.header.as_bytes(), &theirs.to_bytes());
            }
            _ => prop_assert!(Ipv6::parse(&bytes).is_err()),
        }
    }

    #[test]
    fn traffic_class_and_flow_label_do_not_touch_each_other(class: u8, label in 0_u32..1 << 20, before: [u8; 4]) {
        let mut header = uxfrm_packet::ipv6::Ipv6Header::new([1; 16].into(), [2; 16].into(), Protocol::UDP, 0);
        header.version_class_flow = u32::from_be_bytes(before).into();
        header.set_traffic_class(class);
        header.set_flow_label(label);
        prop_assert_eq!((header.traffic_class(), header.flow_label()), (class, label));
        prop_assert_eq!(header.as_bytes()[0] >> 4, before[0] >> 4);
    }

    #[test]
    fn icmp_of_both_kinds(id: u16, sequence: u16, payload in bytes()) {
        let (mut four, mut six) = (Vec::new(), Vec::new());
        PacketBuilder::ipv4([1; 4], [2; 4], 9).icmpv4_echo_request(id, sequence).write(&mut four, &payload).unwrap();
        PacketBuilder::ipv6([1; 16], [2; 16], 9).icmpv6_echo_reply(id, sequence).write(&mut six, &payload).unwrap();
        let rest = u32::from(id) << 16 | u32::from(sequence);
        let message = Ipv4::parse(&four).unwrap().payload;
        let icmp = Icmp::parse(message).unwrap();
        prop_assert_eq!((icmp.header.kind, icmp.header.code, icmp.payload), (8, 0, &payload[..]));
        prop_assert_eq!(icmp.header.rest, rest.to_be_bytes());
        prop_assert_eq!(Sum::of(message).fold(), 0xffff);
        let icmpv6 = Icmpv6::parse(Ipv6::parse(&six).unwrap().payload).unwrap();
        prop_assert_eq!((icmpv6.header.kind, icmpv6.header.rest.get(), icmpv6.payload), (129, rest, &payload[..]));
    }

    #[test]
    fn gre_round_trips(checksum: Option<u16>, key: Option<u32>, sequence: Option<u32>, payload in bytes()) {
        let fields = GreFields { checksum, key, sequence };
        let mut packet = vec![0xaa; fields.header_len()];
        prop_assert_eq!(fields.write(EtherType::IPV6, &mut packet), Some(packet.len()));
        let short = packet.len() - 1;
        prop_assert_eq!(fields.write(EtherType::IPV6, &mut packet[..short]), None);
        prop_assert_eq!(Gre::parse(&packet[..short]).unwrap_err(), ParseError::GreTruncated);
        packet.extend_from_slice(&payload);
        let view = Gre::parse(&packet).unwrap();
        prop_assert_eq!((view.fields, view.header.protocol, view.payload), (fields, EtherType::IPV6, &payload[..]));
    }

    #[test]
    fn no_bytes_make_a_view_panic(bytes in bytes()) {
        let _ = (EthernetFrame::parse(&bytes), Gre::parse(&bytes), Icmp::parse(&bytes), Icmpv6::parse(&bytes), Esp::parse(&bytes));
        let _ = Tcp::parse(&bytes).map(|tcp| tcp.options().count());
        let _ = Ipv6::parse(&bytes).map(|packet| packet.chain());
    }
}

#[test]
fn gre_layout_follows_rfc_2890() {
    let packet = [0xb0, 0, 0x08, 0, 0x12, 0x34, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9, 0x45];
    let gre = Gre::parse(&packet).unwrap();
    assert_eq!(gre.fields, GreFields { checksum: Some(0x1234), key: Some(7), sequence: Some(9) });
    assert_eq!((gre.header.protocol, gre.payload), (EtherType::IPV4, &[0x45][..]));
    assert_eq!(Gre::parse(&[0x20, 1, 0x88, 0x0b]).unwrap_err(), ParseError::GreVersion);
    assert_eq!(Gre::parse(&[0x40, 0, 8, 0]).unwrap_err(), ParseError::GreRouting);
}

#[test]
fn esp_is_spi_and_sequence_number() {
    let packet = [0, 0, 0x10, 1, 0, 0, 0, 5, 0xee];
    let esp = Esp::parse(&packet).unwrap();
    assert_eq!(
        (esp.header.spi.get(), esp.header.sequence.get(), esp.body),
        (0x1001, 5, &[0xee][..])
    );
    assert_eq!(EspHeader { spi: 0x1001.into(), sequence: 5.into() }.as_bytes(), &packet[..8]);
    assert_eq!(Esp::parse(&packet[..7]).unwrap_err(), ParseError::EspTruncated);
}

#[test]
fn frame_faults_have_errors() {
    let mut frame =
        [[0; 12].as_slice(), &[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0]].concat();
    assert_eq!(EthernetFrame::parse(&frame).unwrap_err(), ParseError::VlanTooDeep);
    frame.truncate(17);
    assert_eq!(EthernetFrame::parse(&frame).unwrap_err(), ParseError::VlanTruncated);
    frame.truncate(13);
    assert_eq!(EthernetFrame::parse(&frame).unwrap_err(), ParseError::EthernetTruncated);
}

#[test]
fn tcp_options_end_where_they_are_malformed() {
    let kinds = |options: &[u8]| {
        let mut segment = vec![0; 20];
        segment[12] = u8::try_from((20 + options.len()) / 4).unwrap() << 4;
        segment.extend_from_slice(options);
        Tcp::parse(&segment)
            .unwrap()
            .options()
            .map(|option| (option.kind, option.data.to_vec()))
            .collect::<Vec<_>>()
    };
    assert_eq!(kinds(&[2, 4, 5, 0xb4, 1, 3, 3, 7]), [(2, vec![5, 0xb4]), (3, vec![7])]);
    assert_eq!(kinds(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]), [(8, vec![0, 0, 0, 1, 0, 0, 0, 2])]);
    assert_eq!(kinds(&[0, 2, 4, 0]), []);
    assert_eq!(kinds(&[3, 0, 0, 0]), []);
    assert_eq!(kinds(&[3, 1, 2, 4]), []);
    assert_eq!(kinds(&[3, 5, 0, 0]), []);
}

#[test]
fn too_big_messages_carry_the_mtu() {
    let four = IcmpHeader::fragmentation_needed(1400);
    assert_eq!((four.as_bytes(), four.mtu()), (&[3, 4, 0, 0, 0, 0, 5, 120][..], Some(1400)));
    let six = Icmpv6Header::packet_too_big(1400);
    assert_eq!((six.as_bytes(), six.mtu()), (&[2, 0, 0, 0, 0, 0, 5, 120][..], Some(1400)));
    assert!(four.is_error() && six.is_error());
}
