//! Lowers the maximum segment size that a TCP SYN announces (RFC 9293 §3.7.1), as
//! `net/netfilter/xt_TCPMSS.c` does.

use crate::checksum::{TCP_CHECKSUM_AT, update};
use crate::ip::IpPacket;
use crate::tcp::{HEADER_LEN, TcpFlags};
use crate::{Checksum, PacketBuf, Protocol, Segments, Version, ipv4, ipv6};

/// Option kind: maximum segment size.
const MSS: u8 = 2;
/// Bytes of that option.
const MSS_LEN: usize = 4;
/// The least that is ever announced: 20 bytes beyond TCP's longest header in Linux
/// (`TCP_MIN_SND_MSS`).
const LEAST: u16 = 48;
/// Offset of the flags in a TCP header.
const FLAGS_AT: usize = 13;

/// The MSS of segments that fit into IP packets of `mtu` bytes without options, at least 48.
#[must_use]
pub fn fitting(version: Version, mtu: usize) -> u16 {
    let ip = match version {
        Version::V4 => ipv4::HEADER_LEN,
        Version::V6 => ipv6::HEADER_LEN,
    };
    u16::try_from(mtu.saturating_sub(ip + HEADER_LEN)).unwrap_or(u16::MAX).max(LEAST)
}

/// The IP header of a packet that is a TCP SYN, with or without ACK: whole, and not a super-packet.
#[must_use]
pub fn parse_syn(packet: &PacketBuf) -> Option<IpPacket> {
    if packet.segments != Segments::One {
        return None;
    }
    let ip = IpPacket::parse(packet.bytes()).ok()?;
    if ip.protocol != Protocol::TCP || ip.is_fragment() {
        return None;
    }
    let flags = TcpFlags(*ip.upper(packet.bytes()).get(FLAGS_AT)?);
    (flags.has(TcpFlags::SYN) && !flags.has(TcpFlags::RST)).then_some(ip)
}

/// Lowers the MSS of a SYN to `most`, and corrects its checksum; whether anything changed.
///
/// `ip` is what [`parse_syn`] found in this packet. A smaller MSS stays, and so does a packet
/// without the option, whose sender expects 536 bytes. Options behind a malformed one are not read.
/// A wrong checksum stays wrong.
pub fn lower(packet: &mut PacketBuf, ip: &IpPacket, most: u16) -> bool {
    let start = ip.header_len;
    let correction = match packet.checksum {
        Checksum::AsIs | Checksum::Verified => Correction::Update,
        Checksum::Partial { start: from, offset }
            if usize::from(from) == start && usize::from(offset) == TCP_CHECKSUM_AT =>
        {
            Correction::Later
        }
        Checksum::Partial { .. } => return false,
    };
    let Some(segment) = packet.bytes_mut().get_mut(start..ip.total_len) else { return false };
    let mut changed = false;
    let mut at = HEADER_LEN;
    while let Some(option) = next_option(segment, &mut at) {
        changed |= lower_option(segment, option, most, correction);
    }
    changed
}

/// Whether the field is corrected, or completed later as the host has left it partial.
#[derive(Clone, Copy)]
enum Correction {
    Update,
    Later,
}

/// The place of the next MSS option's value, from `at` on, which moves behind it.
fn next_option(segment: &[u8], at: &mut usize) -> Option<usize> {
    let end = usize::from(segment.get(12)? >> 4) * 4;
    let options = segment.get(..end)?;
    loop {
        let here = *at;
        let len = match *options.get(here)? {
            0 => return None,
            1 => 1,
            _ => usize::from(*options.get(here + 1)?),
        };
        let is_valid = options[here] == 1 || (len >= 2 && here + len <= end);
        if !is_valid {
            return None;
        }
        *at = here + len;
        if options[here] == MSS {
            return (len == MSS_LEN).then_some(here + 2);
        }
    }
}

fn lower_option(segment: &mut [u8], at: usize, most: u16, correction: Correction) -> bool {
    let old = u16::from_be_bytes([segment[at], segment[at + 1]]);
    if old <= most {
        return false;
    }
    segment[at..at + 2].copy_from_slice(&most.to_be_bytes());
    if let Correction::Update = correction {
        let field = [segment[TCP_CHECKSUM_AT], segment[TCP_CHECKSUM_AT + 1]];
        let checksum = u16::from_be_bytes(field);
        // At an odd place the two bytes belong to two words, in each to the other half.
        let new = match at % 2 {
            0 => update(checksum, old, most),
            _ => update(checksum, old.swap_bytes(), most.swap_bytes()),
        };
        segment[TCP_CHECKSUM_AT..TCP_CHECKSUM_AT + 2].copy_from_slice(&new.to_be_bytes());
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::checksum::{Sum, Verification, verify};
    use crate::ipv4::Ipv4Header;
    use crate::ipv6::Ipv6Header;
    use zerocopy::IntoBytes as _;

    /// A segment with these flags and options, padded to words, with a valid checksum.
    fn segment(version: Version, flags: TcpFlags, options: &[u8], payload: &[u8]) -> PacketBuf {
        let mut options = options.to_vec();
        options.resize(options.len().next_multiple_of(4), 0);
        let mut tcp = vec![0; HEADER_LEN];
        tcp[..4].copy_from_slice(&[0x30, 0x39, 1, 187]);
        tcp[12] = u8::try_from((HEADER_LEN + options.len()) / 4).unwrap() << 4;
        tcp[FLAGS_AT] = flags.0;
        tcp.extend(options);
        tcp.extend(payload);
        let len = u16::try_from(tcp.len()).unwrap();
        let (from, to) = match version {
            Version::V4 => ("10.1.0.1", "10.2.0.1"),
            Version::V6 => ("fd00::1", "fd00::2"),
        };
        let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
        let pseudo = Sum::of_pseudo(from, to, Protocol::TCP, len.into());
        let checksum = pseudo.plus_bytes(&tcp).checksum();
        tcp[TCP_CHECKSUM_AT..][..2].copy_from_slice(&checksum.to_be_bytes());
        let mut packet = PacketBuf::from_slice(&tcp);
        match (from, to) {
            (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => {
                let mut ip = Ipv4Header::new(from, to, Protocol::TCP, 20 + len);
                ip.fill_checksum();
                packet.push(20).unwrap().copy_from_slice(ip.as_bytes());
            }
            (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => {
                let ip = Ipv6Header::new(from, to, Protocol::TCP, len);
                packet.push(40).unwrap().copy_from_slice(ip.as_bytes());
            }
            _ => unreachable!("both are of one version"),
        }
        packet
    }

    /// Lowers, and tells the value behind if a SYN was seen.
    fn lowered(packet: &mut PacketBuf, most: u16) -> bool {
        parse_syn(packet).is_some_and(|ip| lower(packet, &ip, most))
    }

    fn is_right(packet: &PacketBuf) -> bool {
        let ip = IpPacket::parse(packet.bytes()).unwrap();
        verify(&ip, packet.bytes()) == Verification::Right
    }

    const SYN: TcpFlags = TcpFlags::SYN;
    const SYN_ACK: TcpFlags = SYN.with(TcpFlags::ACK);

    #[test]
    fn mss_by_table() {
        let mss = |value: u16| [2, 4, value.to_be_bytes()[0], value.to_be_bytes()[1]].to_vec();
        let behind = |before: &[u8], value| [before, &mss(value)].concat();
        for (flags, options, expected) in [
            (SYN, mss(1460), Some(mss(1386))),
            (SYN_ACK, mss(1387), Some(mss(1386))),
            // Never raised.
            (SYN, mss(1386), None),
            (SYN, mss(536), None),
            // Not a SYN, or one that breaks the connection.
            (TcpFlags::ACK, mss(1460), None),
            (SYN.with(TcpFlags::RST), mss(1460), None),
            // None there.
            (SYN, vec![], None),
            (SYN, vec![1, 1, 1, 3, 3, 7], None),
            // Behind others, at an odd place too.
            (SYN, behind(&[4, 2, 3, 3, 7, 1], 1460), Some(behind(&[4, 2, 3, 3, 7, 1], 1386))),
            (SYN, behind(&[3, 3, 7], 1460), Some(behind(&[3, 3, 7], 1386))),
            (SYN, behind(&[1], 1460), Some(behind(&[1], 1386))),
            // Behind the end of the list, behind a malformed one, and malformed itself.
            (SYN, behind(&[0, 0, 0, 0], 1460), None),
            (SYN, behind(&[5, 1], 1460), None),
            (SYN, behind(&[5, 40], 1460), None),
            (SYN, vec![2, 3, 5, 0xb4], None),
            (SYN, vec![1, 1, 1, 2], None),
            (SYN, vec![1, 2, 4, 5], None),
        ] {
            for version in [Version::V4, Version::V6] {
                let mut packet = segment(version, flags, &options, b"");
                let before = packet.bytes().to_vec();
                assert_eq!(lowered(&mut packet, 1386), expected.is_some(), "{options:x?}");
                assert!(is_right(&packet), "{options:x?}");
                let expected = expected.as_ref().unwrap_or(&options);
                let whole = segment(version, flags, expected, b"");
                assert_eq!(packet.bytes(), whole.bytes(), "{before:x?}");
            }
        }
    }

    #[test]
    fn fragments_and_super_packets_stay() {
        let mut packet = segment(Version::V4, SYN, &[2, 4, 5, 0xb4], b"");
        packet.segments = Segments::Tcp { mss: 1000 };
        assert!(!lowered(&mut packet, 536));
        packet.segments = Segments::One;
        packet.bytes_mut()[6] = 0x20;
        assert!(!lowered(&mut packet, 536));
        packet.bytes_mut()[6] = 0;
        assert!(lowered(&mut packet, 536));
        // A header that claims more than there is.
        let mut packet = segment(Version::V4, SYN, &[2, 4, 5, 0xb4], b"");
        packet.bytes_mut()[20 + 12] = 0xf0;
        assert!(!lowered(&mut packet, 536));
    }

    #[test]
    fn partial_checksum_is_left_to_who_completes_it() {
        let mut packet = segment(Version::V4, SYN, &[2, 4, 5, 0xb4], b"");
        let (from, to) = ([10, 1, 0, 1].into(), [10, 2, 0, 1].into());
        let partial = Sum::of_pseudo(from, to, Protocol::TCP, 24).fold();
        packet.bytes_mut()[36..38].copy_from_slice(&partial.to_be_bytes());
        packet.checksum = Checksum::Partial { start: 20, offset: 16 };
        assert!(lowered(&mut packet, 1000));
        crate::checksum::complete(&mut packet).unwrap();
        assert!(is_right(&packet));
        packet.checksum = Checksum::Partial { start: 20, offset: 4 };
        assert!(!lowered(&mut packet, 900), "not TCP's own field");
    }

    #[test]
    fn mss_of_mtu_by_table() {
        for (version, mtu, mss) in [
            (Version::V4, 1446, 1406),
            (Version::V6, 1426, 1366),
            (Version::V4, 65_535, 65_495),
            (Version::V4, 60, LEAST),
            (Version::V6, 0, LEAST),
        ] {
            assert_eq!(fitting(version, mtu), mss, "{mtu}");
        }
    }

    proptest! {
        /// Whatever the options are, only MSS values and the checksum change, none grows, and a
        /// right checksum stays right.
        #[test]
        fn nothing_else_changes(
            version in prop_oneof![Just(Version::V4), Just(Version::V6)],
            flags: u8,
            options in vec(prop_oneof![0_u8..6, any::<u8>()], 0..40),
            payload in vec(any::<u8>(), 0..9),
            most: u16,
        ) {
            let mut packet = segment(version, TcpFlags(flags), &options, &payload);
            let before = packet.bytes().to_vec();
            let changed = lowered(&mut packet, most);
            let after = packet.bytes();
            prop_assert!(is_right(&packet));
            prop_assert_eq!(before.len(), after.len());
            prop_assert_eq!(changed, before != after);
            let ip = if version == Version::V4 { 20 } else { 40 };
            let options_end = ip + usize::from(before[ip + 12] >> 4) * 4;
            let mut at = 0;
            while at < before.len() {
                let is_checksum = (ip + 16..ip + 18).contains(&at);
                if before[at] == after[at] || is_checksum {
                    at += 1;
                    continue;
                }
                // The first byte of a value that differs, or the second one.
                let start = if before[at - 2..at] == [2, 4] { at } else { at - 1 };
                prop_assert_eq!(&before[start - 2..start], &[2, 4]);
                prop_assert!(start >= ip + 22 && start + 2 <= options_end);
                let old = u16::from_be_bytes([before[start], before[start + 1]]);
                let new = u16::from_be_bytes([after[start], after[start + 1]]);
                prop_assert!(new == most && new < old);
                at = start + 2;
            }
        }
    }
}
