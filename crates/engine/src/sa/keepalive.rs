//! NAT keepalives: an idle SA sends one byte now and then, so that the NAT keeps its mapping (RFC
//! 3948 §4). Mirrors `net/xfrm/xfrm_nat_keepalive.c`: the first one at once, the next when nothing
//! was sent for the interval.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU32,
    time::Duration,
};

use uxfrm_packet::{
    PacketBuf, Protocol,
    checksum::Sum,
    ipv4::{self, Ipv4Header},
    ipv6::Ipv6Header,
    udp::{self, UdpHeader},
};
use zerocopy::IntoBytes as _;

use crate::{Moment, Sa};

/// Seconds of silence after which an outbound SA sends a keepalive
/// (`XFRMA_NAT_KEEPALIVE_INTERVAL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeepaliveInterval(pub NonZeroU32);

/// A due keepalive: a datagram of the byte 0xff between the UDP endpoints of an SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// The SA's source, unspecified if the host is to choose, and the encapsulation's source port.
    pub source: SocketAddr,
    /// The SA's destination and the encapsulation's destination port.
    pub destination: SocketAddr,
}

/// What an SA has to do about keepalives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepaliveAction {
    /// Send now, and check again at this time.
    Send(Keepalive, Moment),
    /// Something was sent: check again at this time.
    Wait(Moment),
}

/// RFC 3948 §2.3.
const PAYLOAD: [u8; 1] = [0xff];
const UDP_LEN: u16 = 9;
const _: () = assert!(UDP_LEN as usize == udp::HEADER_LEN + PAYLOAD.len());

impl KeepaliveInterval {
    /// `None` for 0, which means no keepalives.
    #[must_use]
    pub const fn from_secs(seconds: u32) -> Option<Self> {
        match NonZeroU32::new(seconds) {
            Some(seconds) => Some(Self(seconds)),
            None => None,
        }
    }

    const fn duration(self) -> Duration {
        Duration::from_secs(self.0.get() as u64)
    }
}

impl Keepalive {
    /// The whole IP packet; `None` if the families differ, which no SA has.
    #[must_use]
    pub fn packet(&self) -> Option<PacketBuf> {
        let mut bytes = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ipv4_header(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => ipv6_header(from, to),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        };
        let mut header = UdpHeader {
            source: self.source.port().into(),
            destination: self.destination.port().into(),
            length: UDP_LEN.into(),
            checksum: 0.into(),
        };
        // 0 is no checksum; IPv6 needs one (RFC 8200 §8.1).
        if self.source.is_ipv6() {
            let (from, to) = (self.source.ip(), self.destination.ip());
            let sum = Sum::of_pseudo(from, to, Protocol::UDP, UDP_LEN.into());
            let sum = sum.plus_bytes(header.as_bytes()).plus_bytes(&PAYLOAD);
            header.checksum = sum.nonzero_checksum().into();
        }
        bytes.extend(header.as_bytes());
        bytes.extend(PAYLOAD);
        Some(PacketBuf::from_slice(&bytes))
    }
}

/// `None` for SAs without an interval, and for those with a source port per flow: there is no
/// single mapping to keep.
pub(crate) fn turn(sa: &Sa, now: Moment) -> Option<KeepaliveAction> {
    let config = sa.config();
    let encap = config.encap.filter(|encap| !encap.spreads_flows())?;
    let interval = config.nat_keepalive?.duration();
    let silent_from = sa.usage().last_used().map(|used| used.plus(interval));
    Some(match silent_from.filter(|moment| *moment > now) {
        Some(later) => KeepaliveAction::Wait(later),
        None => {
            let keepalive = Keepalive {
                source: SocketAddr::new(sa.source(), encap.source_port),
                destination: SocketAddr::new(sa.id().destination, encap.destination_port),
            };
            KeepaliveAction::Send(keepalive, now.plus(interval))
        }
    })
}

/// The host fills in an unspecified source, and then the checksum.
fn ipv4_header(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    const LEN: u16 = 20 + UDP_LEN;
    let mut header = Ipv4Header::new(from, to, Protocol::UDP, LEN);
    header.flags_fragment = ipv4::DONT_FRAGMENT.into();
    header.fill_checksum();
    header.as_bytes().to_vec()
}

fn ipv6_header(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    Ipv6Header::new(from, to, Protocol::UDP, UDP_LEN).as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use uxfrm_packet::{ipv4::Ipv4, udp::UdpDatagram};

    use super::*;

    fn between(source: &str, destination: &str) -> Keepalive {
        Keepalive { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    /// As Linux sends it.
    #[test]
    fn keepalive_is_one_byte_over_udp() {
        let packet = between("192.0.2.1:4500", "192.0.2.2:1024").packet().unwrap();
        let ip = Ipv4::parse(packet.bytes()).unwrap();
        assert!(ip.checksum_is_right() && ip.header.dont_fragment());
        let udp = UdpDatagram::parse(&packet.bytes()[20..]).unwrap();
        assert_eq!((udp.header.source.get(), udp.header.destination.get()), (4500, 1024));
        assert_eq!((udp.payload, udp.header.checksum.get()), (&[0xff][..], 0));
        let packet = between("[2001:db8::1]:4500", "[2001:db8::2]:4500").packet().unwrap();
        let bytes = packet.bytes();
        let [from, to] = ["2001:db8::1", "2001:db8::2"].map(|end| end.parse().unwrap());
        let sum = Sum::of_pseudo(from, to, Protocol::UDP, 9).plus_bytes(&bytes[40..]);
        assert_eq!((bytes.len(), bytes[48], sum.checksum()), (49, 0xff, 0), "the sum verifies");
    }
}
