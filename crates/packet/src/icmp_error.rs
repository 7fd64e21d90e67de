//! Builds ICMP errors about a packet that cannot be forwarded (RFC 792, RFC 4443).

use std::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::checksum::Sum;
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

/// A message's header and at most `most` bytes of the quoted packet.
fn quoting(head: &[u8], about: &[u8], most: usize, pool: &mut Pool) -> Option<PacketBuf> {
    let quote = &about[..about.len().min(most)];
    let mut answer = pool.take(SizeClass::Packet);
    let message = answer.append(head.len() + quote.len())?;
    message[..head.len()].copy_from_slice(head);
    message[head.len()..].copy_from_slice(quote);
    Some(answer)
}
