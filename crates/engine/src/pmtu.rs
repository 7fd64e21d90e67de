//! How large a packet may be, and what its sender is told when it is not.
//!
//! The inner MTU is `net/xfrm/xfrm_state.c: __xfrm_state_mtu`'s; the messages are RFC 1191 §4's "fragmentation needed" and
//! RFC 4443 §3.2's "packet too big", sent at the rate that `net.ipv4.icmp_msgs_per_sec` allows.

use std::net::IpAddr;

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::icmp::{self, Icmp, IcmpHeader};
use uxfrm_packet::icmpv6::{self, Icmpv6, Icmpv6Header};
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6Header};
use uxfrm_packet::{Fragment, IpPacket, PacketBuf, Pool, Protocol, SizeClass};
use zerocopy::{FromBytes, IntoBytes};

use crate::Moment;

/// No IPv6 link is narrower (RFC 8200 §5).
pub(crate) const IPV6_LEAST: usize = 1280;

/// The most that one SA takes in, when what it puts out may be `mtu` bytes long.
///
/// `around` is what goes around the ESP text: headers, IV and ICV. `outside` are those bytes of the packet that stay outside the
/// text: the IP header in transport mode, 0 in tunnel mode. `align` is the cipher's block, at least 4.
pub(crate) const fn inner_mtu(mtu: usize, around: usize, outside: usize, align: usize) -> usize {
    let text = mtu.saturating_sub(around + outside);
    (text - text % align + outside).saturating_sub(2)
}

/// How many ICMP errors may still be sent: a bucket of tokens, filled as time passes.
#[derive(Debug)]
pub(crate) struct ErrorBudget {
    tokens: u64,
    filled: Moment,
}

/// `net.ipv4.icmp_msgs_burst`.
const BURST: u64 = 50;
/// Nanoseconds per message at `net.ipv4.icmp_msgs_per_sec` = 1000.
const PER_TOKEN: u64 = 1_000_000;

impl ErrorBudget {
    pub(crate) const fn new() -> Self {
        Self { tokens: BURST, filled: Moment(0) }
    }

    /// Takes one token, if there is one.
    pub(crate) fn take(&mut self, now: Moment) -> bool {
        let fresh = now.0.saturating_sub(self.filled.0) / PER_TOKEN;
        if fresh > 0 {
            self.tokens = self.tokens.saturating_add(fresh).min(BURST);
            self.filled = now;
        }
        let some = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        some
    }
}

/// The ICMP message that tells the sender of `packet` to send no more than `mtu` bytes at once.
///
/// It comes from the packet's destination: an error from an own address would enter the host through the TUN as a martian
/// (`net/ipv4/fib_frontend.c: __fib_validate_source`) and be dropped, and the sender would never learn.
///
/// `None` where none may be sent (RFC 1122 §3.2.2, RFC 4443 §2.4 e): about ICMP errors, later fragments, and packets to or from what is
/// no single host.
pub(crate) fn too_big(
    packet: &PacketBuf,
    ip: &IpPacket,
    mtu: usize,
    pool: &mut Pool,
) -> Option<PacketBuf> {
    if !may_be_answered(ip, packet.bytes()) {
        return None;
    }
    let mut answer = match (ip.destination, ip.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            about_ipv4(packet.bytes(), Ipv4Header::new(from, to, Protocol::ICMP, 0), mtu, pool)?
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mtu = u32::try_from(mtu.max(IPV6_LEAST)).unwrap_or(u32::MAX);
            about_ipv6(packet.bytes(), Ipv6Header::new(from, to, Protocol::ICMPV6, 0), mtu, pool)?
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    answer.if_id = packet.if_id;
    Some(answer)
}

fn may_be_answered(ip: &IpPacket, bytes: &[u8]) -> bool {
    let error = match ip.protocol {
        Protocol::ICMP => Icmp::parse(ip.upper(bytes)).is_ok_and(|icmp| icmp.header.is_error()),
        Protocol::ICMPV6 => Icmpv6::parse(ip.upper(bytes)).is_ok_and(|icmp| icmp.header.is_error()),
        Protocol(_) => false,
    };
    let later = matches!(ip.fragment, Fragment::Later { .. });
    let single = !ip.source.is_unspecified() && !ip.source.is_multicast();
    // The answer comes from the destination, so it must be one that can send (RFC 1122 §3.2.2).
    let to_one = !ip.destination.is_multicast();
    !error && !later && single && to_one
}

/// As much of the packet as fits into 576 bytes (RFC 1812 §4.3.2.3).
fn about_ipv4(
    about: &[u8],
    mut header: Ipv4Header,
    mtu: u16,
    pool: &mut Pool,
) -> Option<PacketBuf> {
    const HEADERS: usize = ipv4::HEADER_LEN + icmp::HEADER_LEN;
    let quote = &about[..about.len().min(576 - HEADERS)];
    let mut answer = pool.take(SizeClass::Packet);
    let bytes = answer.append(HEADERS + quote.len())?;
    header.total_len = u16::try_from(bytes.len()).ok()?.into();
    header.tos = 0xc0;
    header.fill_checksum();
    let (network, message) = bytes.split_at_mut(ipv4::HEADER_LEN);
    network.copy_from_slice(header.as_bytes());
    message[..icmp::HEADER_LEN].copy_from_slice(IcmpHeader::fragmentation_needed(mtu).as_bytes());
    message[icmp::HEADER_LEN..].copy_from_slice(quote);
    let checksum = Sum::of(message).checksum();
    IcmpHeader::mut_from_prefix(message).ok()?.0.checksum = checksum.into();
    Some(answer)
}

/// As much of the packet as fits into 1280 bytes (RFC 4443 §2.4 c).
fn about_ipv6(
    about: &[u8],
    mut header: Ipv6Header,
    mtu: u32,
    pool: &mut Pool,
) -> Option<PacketBuf> {
    const HEADERS: usize = ipv6::HEADER_LEN + icmpv6::HEADER_LEN;
    let quote = &about[..about.len().min(IPV6_LEAST - HEADERS)];
    let mut answer = pool.take(SizeClass::Packet);
    let bytes = answer.append(HEADERS + quote.len())?;
    let (network, message) = bytes.split_at_mut(ipv6::HEADER_LEN);
    let len = u16::try_from(message.len()).ok()?;
    header.payload_len = len.into();
    network.copy_from_slice(header.as_bytes());
    message[..icmpv6::HEADER_LEN].copy_from_slice(Icmpv6Header::packet_too_big(mtu).as_bytes());
    message[icmpv6::HEADER_LEN..].copy_from_slice(quote);
    let (from, to) = (header.source().into(), header.destination().into());
    let sum = Sum::of_pseudo(from, to, Protocol::ICMPV6, len.into()).plus_bytes(message);
    Icmpv6Header::mut_from_prefix(message).ok()?.0.checksum = sum.checksum().into();
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_mtu_is_the_kernels() {
        // net/xfrm/xfrm_state.c: __xfrm_state_mtu, by hand. Tunnel GCM: 20 + 8 + 8 + 16.
        for (mtu, around, outside, align, inner) in [
            (1500, 52, 0, 4, 1446),
            (1500, 52 + 8, 0, 4, 1438),
            (1500, 20 + 8 + 16 + 12, 0, 16, 1438),
            (1500, 32, 20, 4, 1466),
            (1500, 8 + 16 + 12, 20, 16, 1458),
            (1500, 72, 0, 4, 1426),
            (40, 52, 0, 4, 0),
        ] {
            assert_eq!(inner_mtu(mtu, around, outside, align), inner, "{mtu} {around} {outside}");
        }
    }

    #[test]
    fn errors_are_rationed() {
        let mut budget = ErrorBudget::new();
        let now = Moment::from_secs(5);
        assert_eq!((0..200).filter(|_| budget.take(now)).count(), 50);
        let later = Moment(now.0 + 10 * PER_TOKEN);
        assert_eq!((0..200).filter(|_| budget.take(later)).count(), 10);
    }
}
