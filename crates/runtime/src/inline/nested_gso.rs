//! Segments forwarded super-packets of tunnels: TCP and UDP within IPIP, SIT, GRE or UDP (VXLAN,
//! GENEVE, FOU, GUE) that GRO joined, or that a sender behind a virtual device left whole. A packet
//! socket's metadata describes the inner packet and says nothing of the headers around it.
//!
//! Every segment repeats what a UDP tunnel puts between its header and the inner packet
//! (`net/ipv4/udp_offload.c: __skb_udp_tunnel_segment`), so the kind of tunnel does not matter.

use uxfrm_packet::{
    Checksum, IpPacket, PacketBuf, Pool, Protocol, SegmentPlan, Segments, SizeClass, Version,
    checksum::Sum, gre::Gre, ipv4, udp,
};

/// Most headers around a packet; IP and GRE count one each.
const MAX_HEADERS: usize = 8;

/// A header around the inner packet, and its offset.
#[derive(Clone, Copy, Debug)]
enum EncapHeader {
    V4(usize),
    V6(usize),
    /// With a checksum.
    Gre(usize),
    Udp(usize),
    /// With a checksum; the sum of the pseudo header.
    SummedUdp(usize, Sum),
}

/// Whether a super-packet's TCP or UDP belongs to an inner packet.
pub(super) fn is_nested(packet: &PacketBuf, ip: &IpPacket) -> bool {
    let Some(protocol) = protocol(packet) else { return false };
    let within = match packet.checksum {
        Checksum::Partial { start, .. } => usize::from(start) != ip.header_len,
        Checksum::AsIs | Checksum::Verified => false,
    };
    ip.protocol != protocol || within
}

/// The protocol that a super-packet is segmented by.
fn protocol(packet: &PacketBuf) -> Option<Protocol> {
    match packet.segments {
        Segments::Tcp { .. } => Some(Protocol::TCP),
        Segments::Udp { .. } => Some(Protocol::UDP),
        Segments::One | Segments::Burst { .. } => None,
    }
}

/// Segments a tunnel's super-packet; gives anything else back.
pub(super) fn segment(mut packet: PacketBuf, pool: &mut Pool) -> Result<Vec<PacketBuf>, PacketBuf> {
    let Checksum::Partial { start, offset } = packet.checksum else { return Err(packet) };
    let layers = protocol(&packet)
        .and_then(|protocol| encap_headers(packet.bytes(), protocol, usize::from(start)));
    let Some((around, inner_at)) = layers else {
        return Err(packet);
    };
    let outer = packet.bytes()[..inner_at].to_vec();
    packet.pull(inner_at);
    let start = start.saturating_sub(u16::try_from(inner_at).unwrap_or(u16::MAX));
    packet.checksum = Checksum::Partial { start, offset };
    let Ok(plan) = SegmentPlan::new(&packet) else { return Err(packet) };
    let pieces = (0..plan.count()).map_while(|k| {
        let mut piece = pool.take(SizeClass::holding(inner_at + plan.len(k)));
        let room = piece.append(inner_at + plan.len(k))?;
        room[..inner_at].copy_from_slice(&outer);
        plan.write(k, packet.bytes(), &mut room[inner_at..])?;
        around.iter().rev().try_for_each(|header| fix_header(*header, k, room))?;
        Some(piece)
    });
    let pieces: Vec<_> = pieces.collect();
    let is_whole = pieces.len() == plan.count();
    if is_whole {
        pool.give(packet);
        Ok(pieces)
    } else {
        pieces.into_iter().for_each(|piece| pool.give(piece));
        Err(packet)
    }
}

/// Headers, outermost first, around the packet whose upper layer of this protocol begins at
/// `upper`; and the offset of that packet.
fn encap_headers(
    bytes: &[u8],
    protocol: Protocol,
    upper: usize,
) -> Option<(Vec<EncapHeader>, usize)> {
    let (mut around, mut at) = (Vec::new(), 0);
    while around.len() < MAX_HEADERS {
        let ip = IpPacket::parse(bytes.get(at..)?).ok()?;
        let next = at + ip.header_len;
        if next == upper {
            return Some((around, at));
        }
        around.push(match ip.version {
            Version::V4 => EncapHeader::V4(at),
            Version::V6 => EncapHeader::V6(at),
        });
        at = match ip.protocol {
            Protocol::IPIP | Protocol::IPV6 => next,
            Protocol::GRE => {
                let gre = Gre::parse(bytes.get(next..)?).ok()?;
                around.extend(gre.fields.checksum.map(|_| EncapHeader::Gre(next)));
                next + gre.fields.header_len()
            }
            Protocol::UDP => {
                let header = udp(&ip, bytes.get(next..)?)?;
                around.push(
                    header.map_or(EncapHeader::Udp(next), |sum| EncapHeader::SummedUdp(next, sum)),
                );
                let inner = (next + udp::HEADER_LEN..upper).rev();
                inner.into_iter().find(|at| is_inner(bytes, *at, (protocol, upper)))?
            }
            Protocol(_) => return None,
        };
    }
    None
}

/// Pseudo-header sum of a tunnel's datagrams, if they have checksums.
#[expect(clippy::option_option, reason = "no datagram, none with a checksum, one with")]
fn udp(ip: &IpPacket, datagram: &[u8]) -> Option<Option<Sum>> {
    let checksum = datagram.get(6..udp::HEADER_LEN)?;
    let sum = || Sum::of_pseudo(ip.source, ip.destination, Protocol::UDP, 0);
    Some((checksum != [0, 0]).then(sum))
}

/// Whether a packet at `at` fills the rest and has this upper layer at that offset.
fn is_inner(bytes: &[u8], at: usize, (protocol, upper): (Protocol, usize)) -> bool {
    let rest = &bytes[at..];
    IpPacket::parse(rest).is_ok_and(|ip| {
        let lies = (ip.protocol, at + ip.header_len, ip.total_len);
        lies == (protocol, upper, rest.len())
    })
}

/// Fixes length, identification and checksum of a copied header for segment `k`. Inner headers must
/// be final.
fn fix_header(header: EncapHeader, k: usize, packet: &mut [u8]) -> Option<()> {
    match header {
        EncapHeader::V4(at) => {
            let header = packet.get_mut(at..)?;
            let len = u16::try_from(header.len()).ok()?;
            header.get_mut(2..4)?.copy_from_slice(&len.to_be_bytes());
            let number = u16::from_be_bytes(*header.get(4..6)?.first_chunk()?);
            let number = number.wrapping_add(u16::try_from(k).ok()?);
            header.get_mut(4..6)?.copy_from_slice(&number.to_be_bytes());
            ipv4::fill_checksum(header).ok()
        }
        EncapHeader::V6(at) => {
            let header = packet.get_mut(at..)?;
            let len = u16::try_from(header.len().checked_sub(40)?).ok()?;
            header.get_mut(4..6)?.copy_from_slice(&len.to_be_bytes());
            Some(())
        }
        EncapHeader::Gre(at) => {
            let gre = packet.get_mut(at..)?;
            gre.get_mut(4..6)?.fill(0);
            let sum = Sum::of(gre).checksum();
            gre.get_mut(4..6)?.copy_from_slice(&sum.to_be_bytes());
            Some(())
        }
        EncapHeader::Udp(at) => fix_udp_length(packet.get_mut(at..)?).map(drop),
        EncapHeader::SummedUdp(at, addresses) => {
            let datagram = packet.get_mut(at..)?;
            let len = fix_udp_length(datagram)?;
            datagram.get_mut(6..8)?.fill(0);
            let sum = addresses.plus_u16(len).plus_bytes(datagram).nonzero_checksum();
            datagram.get_mut(6..8)?.copy_from_slice(&sum.to_be_bytes());
            Some(())
        }
    }
}

/// Sets and returns the datagram's length.
fn fix_udp_length(datagram: &mut [u8]) -> Option<u16> {
    let len = u16::try_from(datagram.len()).ok()?;
    datagram.get_mut(4..6)?.copy_from_slice(&len.to_be_bytes());
    Some(len)
}

#[cfg(test)]
mod tests {
    use uxfrm_packet::{ethernet::EtherType, gre::GreFields, ipv4::Ipv4};
    use uxfrm_testkit::packets;

    use super::*;

    const MSS: u16 = 1000;

    /// A super-packet within others, and its TCP payload.
    fn nested(protocols: &[Protocol]) -> (PacketBuf, Vec<u8>) {
        let payload: Vec<u8> = (0..2500_u32).map(|n| n.to_le_bytes()[0]).collect();
        let inner = packets::tcp_super("10.0.0.1:1", "10.0.0.2:2", &payload, MSS);
        let Checksum::Partial { start, offset } = inner.checksum else { panic!("{inner:?}") };
        let (mut bytes, mut is_v4) = (inner.bytes().to_vec(), true);
        for protocol in protocols {
            if *protocol == Protocol::GRE {
                let fields = GreFields { checksum: Some(1), key: Some(7), sequence: None };
                let mut header = vec![0; fields.header_len()];
                let kind = if is_v4 { EtherType::IPV4 } else { EtherType::IPV6 };
                fields.write(kind, &mut header).unwrap();
                bytes.splice(..0, header);
            }
            is_v4 = !is_v4;
            let ends = if is_v4 { ["192.0.2.1", "192.0.2.2"] } else { ["fd00::1", "fd00::2"] };
            let [from, to] = ends.map(|end| end.parse().unwrap());
            bytes = packets::ip(from, to, *protocol, &bytes);
        }
        let deeper = u16::try_from(bytes.len() - inner.len()).unwrap();
        let mut packet = PacketBuf::from_slice(&bytes);
        packet.segments = Segments::Tcp { mss: MSS };
        packet.checksum = Checksum::Partial { start: start + deeper, offset };
        (packet, payload)
    }

    /// A super-packet within a tunnel in UDP, and the payload within.
    fn in_udp(
        is_v4: bool,
        has_sum: bool,
        segments: Segments,
        between: &[u8],
    ) -> (PacketBuf, Vec<u8>) {
        let payload: Vec<u8> = (0..2500_u32).map(|n| n.to_le_bytes()[0]).collect();
        let (from, to) = ("[fd00::5]:1", "[fd00::6]:2");
        let inner = match segments {
            Segments::Udp { size } => udp_super(from, to, &payload, size),
            Segments::Tcp { mss } => packets::tcp_super(from, to, &payload, mss),
            Segments::One | Segments::Burst { .. } => panic!("{segments:?}"),
        };
        let Checksum::Partial { start, offset } = inner.checksum else { panic!("{inner:?}") };
        let (from, to) = if is_v4 {
            ("192.0.2.1:5", "192.0.2.2:4789")
        } else {
            ("[fd00::1]:5", "[fd00::2]:4789")
        };
        let mut packet = packets::udp(from, to, &[between, inner.bytes()].concat());
        let sum_at = IpPacket::parse(packet.bytes()).unwrap().header_len + 6;
        if !has_sum {
            packet.bytes_mut()[sum_at..sum_at + 2].fill(0);
        }
        let deeper = u16::try_from(packet.len() - inner.len()).unwrap();
        packet.segments = inner.segments;
        packet.checksum = Checksum::Partial { start: start + deeper, offset };
        (packet, payload)
    }

    #[test]
    fn super_packet_in_udp_tunnel_is_segmented() {
        // VXLAN with Ethernet; GENEVE with options, one of which looks like the beginning of a
        // packet; FOU.
        let vxlan = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &[2; 12], &[0x86, 0xdd]].concat();
        let geneve =
            [&[2, 0, 0x86, 0xdd, 0, 0, 7, 0][..], &[0x45, 0, 0, 9, 0x60, 0, 0, 0]].concat();
        for between in [&vxlan[..], &geneve, &[]] {
            for segments in [Segments::Tcp { mss: MSS }, Segments::Udp { size: MSS }] {
                for (is_v4, has_sum) in [(true, true), (true, false), (false, true), (false, false)]
                {
                    let (packet, whole) = in_udp(is_v4, has_sum, segments, between);
                    let ip = IpPacket::parse(packet.bytes()).unwrap();
                    assert!(is_nested(&packet, &ip));
                    let pieces = segment(packet, &mut Pool::new()).unwrap();
                    assert_eq!(pieces.len(), 3);
                    let joined = pieces.iter().flat_map(|piece| {
                        let ip = IpPacket::parse(piece.bytes()).unwrap();
                        assert_eq!((ip.total_len, ip.version == Version::V4), (piece.len(), is_v4));
                        let datagram = ip.upper(piece.bytes());
                        assert_eq!(
                            usize::from(u16::from_be_bytes([datagram[4], datagram[5]])),
                            datagram.len()
                        );
                        let verified = uxfrm_packet::checksum::verify(&ip, piece.bytes());
                        let right = uxfrm_packet::checksum::Verification::Right;
                        assert_eq!(
                            (verified == right, datagram[6..8] != [0, 0]),
                            (has_sum, has_sum)
                        );
                        assert_eq!(datagram[8..8 + between.len()], *between);
                        inner_payload(&datagram[8 + between.len()..])
                    });
                    assert_eq!(joined.collect::<Vec<_>>(), whole);
                }
            }
        }
    }

    fn udp_super(from: &str, to: &str, payload: &[u8], size: u16) -> PacketBuf {
        let mut packet = packets::udp(from, to, payload);
        let start = IpPacket::parse(packet.bytes()).unwrap().header_len;
        let start = u16::try_from(start).unwrap();
        packet.segments = Segments::Udp { size };
        packet.checksum = Checksum::Partial { start, offset: 6 };
        packet
    }

    fn inner_payload(bytes: &[u8]) -> Vec<u8> {
        let ip = IpPacket::parse(bytes).unwrap();
        assert_eq!(ip.total_len, bytes.len());
        let verified = uxfrm_packet::checksum::verify(&ip, bytes);
        assert_eq!(verified, uxfrm_packet::checksum::Verification::Right);
        let upper = ip.upper(bytes);
        let header = if ip.protocol == Protocol::UDP { 8 } else { usize::from(upper[12] >> 4) * 4 };
        upper[header..].to_vec()
    }

    /// Joined datagrams are not a tunnel's, whatever they contain.
    #[test]
    fn gro_joined_plain_udp_is_not_nested() {
        let packet = udp_super("192.0.2.1:5", "192.0.2.2:4789", &[7; 2500], MSS);
        let ip = IpPacket::parse(packet.bytes()).unwrap();
        assert!(!is_nested(&packet, &ip));
    }

    /// Checks the headers around the innermost packet, and returns its TCP payload.
    fn payload(bytes: &[u8]) -> Vec<u8> {
        let ip = IpPacket::parse(bytes).unwrap();
        assert_eq!(ip.total_len, bytes.len());
        if ip.version == Version::V4 {
            assert!(Ipv4::parse(bytes).unwrap().checksum_is_right());
        }
        let upper = ip.upper(bytes);
        match ip.protocol {
            Protocol::GRE => {
                assert_eq!(Sum::of(upper).fold(), 0xffff);
                payload(Gre::parse(upper).unwrap().payload)
            }
            Protocol::TCP => {
                let verified = uxfrm_packet::checksum::verify(&ip, bytes);
                assert_eq!(verified, uxfrm_packet::checksum::Verification::Right);
                upper[usize::from(upper[12] >> 4) * 4..].to_vec()
            }
            Protocol(_) => payload(upper),
        }
    }

    #[test]
    fn super_packet_in_ip_and_gre_is_segmented() {
        let cases: [&[Protocol]; 4] = [
            &[Protocol::IPIP],
            &[Protocol::GRE],
            &[Protocol::GRE, Protocol::IPV6],
            &[Protocol::IPIP, Protocol::GRE, Protocol::GRE],
        ];
        for protocols in cases {
            let (packet, whole) = nested(protocols);
            let ip = IpPacket::parse(packet.bytes()).unwrap();
            assert!(is_nested(&packet, &ip));
            let pieces = segment(packet, &mut Pool::new()).unwrap();
            assert_eq!(pieces.len(), 3, "{protocols:?}");
            let joined: Vec<_> = pieces.iter().flat_map(|piece| payload(piece.bytes())).collect();
            assert_eq!(joined, whole, "{protocols:?}");
        }
    }

    #[test]
    fn segment_nested_gives_other_packets_back() {
        let (packet, _) = nested(&[Protocol::SCTP]);
        assert!(segment(packet, &mut Pool::new()).is_err());
        let (mut packet, _) = nested(&[Protocol::IPIP]);
        packet.checksum = Checksum::Partial { start: 7, offset: 16 };
        assert!(segment(packet, &mut Pool::new()).is_err());
    }
}
