//! Builds ICMP errors about a packet that cannot be forwarded (RFC 792, RFC 4443).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::checksum::{Sum, update_u32};
use crate::icmp::{self, Icmp, IcmpHeader};
use crate::icmpv6::{self, Icmpv6, Icmpv6Header};
use crate::ipv4::{self, Ipv4Header};
use crate::ipv6::{self, Ipv6Header};
use crate::{Fragment, IpPacket, PacketBuf, Pool, Protocol, SizeClass};

/// Length of the longest error over IPv4 (RFC 1812 §4.3.2.3).
const MOST_V4: usize = 576;
/// Precedence "internetwork control", as in routers' own messages (RFC 1812 §4.3.2.5).
const TOS: u8 = 0xc0;

/// Whether an error may be sent about a packet (RFC 1122 §3.2.2, RFC 4443 §2.4 e): not about ICMP
/// errors, later fragments, and packets to or from an address that is no single host.
#[must_use]
pub fn may_answer(ip: &IpPacket, bytes: &[u8]) -> bool {
    let is_error = match ip.protocol {
        Protocol::ICMP => Icmp::parse(ip.upper(bytes)).is_ok_and(|icmp| icmp.header.is_error()),
        Protocol::ICMPV6 => Icmpv6::parse(ip.upper(bytes)).is_ok_and(|icmp| icmp.header.is_error()),
        Protocol(_) => false,
    };
    let is_later = matches!(ip.fragment, Fragment::Later { .. });
    let from_one = !ip.source.is_unspecified() && !ip.source.is_multicast();
    !is_error && !is_later && from_one && !ip.destination.is_multicast()
}

/// An error with this header, quoting as much of the packet as fits into 576 bytes. `None` only if
/// the pool's buffers have no room.
#[must_use]
pub fn over_ipv4(
    head: IcmpHeader,
    about: &[u8],
    (from, to): (Ipv4Addr, Ipv4Addr),
    pool: &mut Pool,
) -> Option<PacketBuf> {
    let most = MOST_V4 - ipv4::HEADER_LEN - icmp::HEADER_LEN;
    let mut answer = quoting(head.as_bytes(), about, most, pool)?;
    let message = answer.bytes_mut();
    let checksum = Sum::of(message).checksum();
    IcmpHeader::mut_from_prefix(message).ok()?.0.checksum = checksum.into();
    let len = u16::try_from(answer.len() + ipv4::HEADER_LEN).ok()?;
    let mut header = Ipv4Header::new(from, to, Protocol::ICMP, len);
    header.tos = TOS;
    header.fill_checksum();
    answer.push(ipv4::HEADER_LEN)?.copy_from_slice(header.as_bytes());
    Some(answer)
}

/// Like [`over_ipv4`], quoting as much as fits into the minimum MTU of IPv6 (RFC 4443 §2.4 c).
#[must_use]
pub fn over_ipv6(
    head: Icmpv6Header,
    about: &[u8],
    (from, to): (Ipv6Addr, Ipv6Addr),
    pool: &mut Pool,
) -> Option<PacketBuf> {
    let most = ipv6::LEAST_MTU - ipv6::HEADER_LEN - icmpv6::HEADER_LEN;
    let mut answer = quoting(head.as_bytes(), about, most, pool)?;
    let message = answer.bytes_mut();
    let len = u16::try_from(message.len()).ok()?;
    let sum = Sum::of_pseudo(from.into(), to.into(), Protocol::ICMPV6, len.into());
    let checksum = sum.plus_bytes(message).checksum();
    Icmpv6Header::mut_from_prefix(message).ok()?.0.checksum = checksum.into();
    let header = Ipv6Header::new(from, to, Protocol::ICMPV6, len);
    answer.push(ipv6::HEADER_LEN)?.copy_from_slice(header.as_bytes());
    Some(answer)
}

/// Gives an error of [`over_ipv4`] or [`over_ipv6`] another source. `None`, and no change, for
/// another version or no such error.
#[must_use]
pub fn set_source(answer: &mut PacketBuf, from: IpAddr) -> Option<()> {
    let (place, field) = match from {
        IpAddr::V4(_) => (12, 10),
        IpAddr::V6(_) => (8, ipv6::HEADER_LEN + 2),
    };
    let bytes = answer.bytes_mut();
    let is_error = match (from, bytes.first()? >> 4) {
        (IpAddr::V4(_), 4) => bytes.get(9) == Some(&Protocol::ICMP.0),
        (IpAddr::V6(_), 6) => bytes.get(6) == Some(&Protocol::ICMPV6.0),
        (IpAddr::V4(_) | IpAddr::V6(_), _) => false,
    };
    if !is_error || bytes.len() < field + 2 {
        return None;
    }
    let mut checksum = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
    let (v4, v6);
    let octets: &[u8] = match from {
        IpAddr::V4(from) => {
            v4 = from.octets();
            &v4
        }
        IpAddr::V6(from) => {
            v6 = from.octets();
            &v6
        }
    };
    for (old, new) in bytes[place..].chunks_exact_mut(4).zip(octets.chunks_exact(4)) {
        checksum = update_u32(checksum, word(old), word(new));
        old.copy_from_slice(new);
    }
    bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// A message's header and at most `most` bytes of the quoted packet.
fn quoting(head: &[u8], about: &[u8], most: usize, pool: &mut Pool) -> Option<PacketBuf> {
    let quote = &about[..about.len().min(most)];
    let mut answer = pool.take(SizeClass::Packet);
    let message = answer.append(head.len() + quote.len())?;
    message[..head.len()].copy_from_slice(head);
    message[head.len()..].copy_from_slice(quote);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(about: &[u8], (from, to): (&str, &str)) -> PacketBuf {
        let mut pool = Pool::new();
        match (from.parse().unwrap(), to.parse().unwrap()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let head = IcmpHeader::fragmentation_needed(1400);
                over_ipv4(head, about, (from, to), &mut pool).unwrap()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let head = Icmpv6Header::packet_too_big(1400);
                over_ipv6(head, about, (from, to), &mut pool).unwrap()
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => unreachable!(),
        }
    }

    #[test]
    fn another_source_is_as_if_it_had_been_there_from_the_start() {
        for (from, own, to) in
            [("10.2.0.7", "10.1.0.1", "10.1.0.9"), ("fd02::7", "fd01:ffff::1", "fd01::9")]
        {
            let mut answer = message(b"quoted bytes", (from, to));
            assert_eq!(set_source(&mut answer, own.parse().unwrap()), Some(()));
            assert_eq!(answer.bytes(), message(b"quoted bytes", (own, to)).bytes(), "{own}");
        }
        let mut answer = message(b"", ("10.2.0.7", "10.1.0.9"));
        assert_eq!(set_source(&mut answer, "fd01::1".parse().unwrap()), None);
        assert_eq!(set_source(&mut PacketBuf::from_slice(b"E"), [10, 1, 0, 1].into()), None);
    }
}
