//! Inner MTU, and ICMP errors about packets that exceed it.
//!
//! The inner MTU is that of `net/xfrm/xfrm_state.c: __xfrm_state_mtu`; the messages are
//! "fragmentation needed" of RFC 1191 §4 and "packet too big" of RFC 4443 §3.2, at the rate of
//! `net.ipv4.icmp_msgs_per_sec`.

use std::net::IpAddr;

use uxfrm_packet::icmp::IcmpHeader;
use uxfrm_packet::icmpv6::Icmpv6Header;
use uxfrm_packet::{IpPacket, PacketBuf, Pool, icmp_error, ipv6};

use crate::Moment;

/// Largest packet that one SA takes if its output may have `mtu` bytes.
///
/// `around` are the bytes around the ESP payload: headers, IV and ICV. `outside` are bytes of the
/// packet outside the payload: the IP header in transport mode, 0 in tunnel mode. `align` is the
/// cipher's block, at least 4.
pub(crate) const fn inner_mtu(mtu: usize, around: usize, outside: usize, align: usize) -> usize {
    let text = mtu.saturating_sub(around + outside);
    (text - text % align + outside).saturating_sub(2)
}

/// Rate limit of ICMP errors: a token bucket.
#[derive(Debug)]
pub struct IcmpRateLimit {
    tokens: u64,
    filled: Moment,
}

/// `net.ipv4.icmp_msgs_burst`.
const BURST: u64 = 50;
/// Nanoseconds per message at `net.ipv4.icmp_msgs_per_sec` = 1000.
const PER_TOKEN: u64 = 1_000_000;

impl IcmpRateLimit {
    /// A full bucket: `net.ipv4.icmp_msgs_burst` messages.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a full bucket is no neutral value")]
    pub const fn new() -> Self {
        Self { tokens: BURST, filled: Moment(0) }
    }

    /// Takes one token, if there is one.
    pub fn take(&mut self, now: Moment) -> bool {
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

/// The ICMP message that tells the sender of `packet` an MTU of `mtu` bytes.
///
/// Its source is the packet's destination: an error from the host's own address would enter through
/// the TUN as a martian (`net/ipv4/fib_frontend.c: __fib_validate_source`) and be dropped.
///
/// `None` where none may be sent (RFC 1122 §3.2.2, RFC 4443 §2.4 e): about ICMP errors, later
/// fragments, and packets to or from an address that is no single host.
pub(crate) fn too_big(
    packet: &PacketBuf,
    ip: &IpPacket,
    mtu: usize,
    pool: &mut Pool,
) -> Option<PacketBuf> {
    if !icmp_error::may_answer(ip, packet.bytes()) {
        return None;
    }
    let mut answer = match (ip.destination, ip.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
            let head = IcmpHeader::fragmentation_needed(mtu);
            icmp_error::over_ipv4(head, packet.bytes(), (from, to), pool)?
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mtu = u32::try_from(mtu.max(ipv6::LEAST_MTU)).unwrap_or(u32::MAX);
            let head = Icmpv6Header::packet_too_big(mtu);
            icmp_error::over_ipv6(head, packet.bytes(), (from, to), pool)?
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    answer.if_id = packet.if_id;
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_mtu_equals_kernel() {
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
    fn icmp_errors_are_rate_limited() {
        let mut budget = IcmpRateLimit::new();
        let now = Moment::from_secs(5);
        assert_eq!((0..200).filter(|_| budget.take(now)).count(), 50);
        let later = Moment(now.0 + 10 * PER_TOKEN);
        assert_eq!((0..200).filter(|_| budget.take(later)).count(), 10);
    }
}
