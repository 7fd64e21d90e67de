//! ESP in UDP: the encapsulation of an SA, and the one table of its kinds.

use std::net::{IpAddr, SocketAddr};

use crate::Family;

/// `encap espinudp SPORT DPORT OADDR`.
///
/// With a source port of 0, which Linux would send as it stands, each inner flow gets its own
/// source port, as with `encap-sport auto` of a tunnel: so networks spread the flows of one SA over
/// paths and queues. Such a packet is ESP in FOU as well (`ip fou add port DPORT ipproto 50`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpEncap {
    /// RFC 3948, or the older drafts' form with eight zero bytes.
    pub kind: UdpEncapKind,
    /// Source port of the UDP header; 0 for one per inner flow.
    pub source_port: u16,
    /// Destination port of the UDP header.
    pub destination_port: u16,
    /// The original address, kept for listing.
    pub original_address: IpAddr,
}

impl UdpEncap {
    /// ESP in UDP as RFC 3948 has it: `encap espinudp SPORT DPORT 0.0.0.0`.
    ///
    /// ```
    /// use uxfrm_engine::{UdpEncap, UdpEncapKind};
    ///
    /// let encap = UdpEncap::espinudp(4500, 4500);
    /// assert!(encap.kind == UdpEncapKind::Esp && !encap.spreads_flows());
    /// ```
    #[must_use]
    pub const fn espinudp(source_port: u16, destination_port: u16) -> Self {
        Self {
            kind: UdpEncapKind::Esp,
            source_port,
            destination_port,
            original_address: Family::V4.unspecified(),
        }
    }

    /// Whether each inner flow has its own source port.
    #[must_use]
    pub const fn spreads_flows(&self) -> bool {
        self.source_port == 0
    }

    /// Whether `sender` is not the source that an SA with this encapsulation and `source` expects.
    pub(crate) fn has_moved(&self, source: IpAddr, sender: SocketAddr) -> bool {
        sender.ip() != source || !self.spreads_flows() && sender.port() != self.source_port
    }
}

/// The kinds of UDP encapsulation that the kernel names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UdpEncapKind {
    /// `espinudp-nonike`: eight zero bytes before ESP.
    NonIke,
    /// `espinudp`: RFC 3948.
    Esp,
    /// `espintcp`: RFC 8229; known, not processed.
    Tcp,
}

/// A kind's row: what the kernel and users call it, and what is done with it.
#[derive(Clone, Copy, Debug)]
pub struct UdpEncapProperties {
    /// `UDP_ENCAP_*` of `linux/udp.h`.
    pub number: u16,
    /// The word of `ip xfrm`.
    pub word: &'static str,
    /// Bytes between UDP and ESP.
    pub marker: &'static [u8],
    /// Whether such packets are sent and received; else the kind is refused.
    pub is_processed: bool,
    /// Whether an SA may have NAT keepalives.
    pub allows_keepalives: bool,
    /// Whether `XFRM_MSG_MIGRATE_STATE` can ask for it.
    pub allows_migration: bool,
}

impl UdpEncapKind {
    /// All of them, in the order of `ip xfrm state help`.
    pub const ALL: [Self; 3] = [Self::Esp, Self::NonIke, Self::Tcp];

    /// The kind's row.
    #[inline(always)]
    #[must_use]
    pub const fn properties(self) -> UdpEncapProperties {
        match self {
            Self::Esp => UdpEncapProperties {
                number: 2,
                word: "espinudp",
                marker: &[],
                is_processed: true,
                allows_keepalives: true,
                allows_migration: true,
            },
            Self::NonIke => UdpEncapProperties {
                number: 1,
                word: "espinudp-nonike",
                marker: &[0; 8],
                is_processed: true,
                allows_keepalives: false,
                allows_migration: false,
            },
            Self::Tcp => UdpEncapProperties {
                number: 7,
                word: "espintcp",
                marker: &[],
                is_processed: false,
                allows_keepalives: false,
                allows_migration: false,
            },
        }
    }

    /// The kinds that are sent and received.
    pub fn processed() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| kind.properties().is_processed)
    }

    /// The kind with this `UDP_ENCAP_*`.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.properties().number == number)
    }

    /// Kind of a UDP payload by its marker (RFC 3948 §2;
    /// `net/ipv4/xfrm4_input.c: __xfrm4_udp_encap_rcv`); `None` for IKE. Eight zero bytes before
    /// ESP are the form of older drafts. An IKE message after four zero bytes never begins with
    /// four more, as its initiator SPI is not 0.
    #[inline(always)]
    #[must_use]
    pub const fn of_payload(payload: &[u8]) -> Option<Self> {
        match payload {
            [0, 0, 0, 0, 0, 0, 0, 0, ..] => Some(Self::NonIke),
            [0, 0, 0, 0, ..] => None,
            _ => Some(Self::Esp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processed_kind_is_recognized_by_its_marker() {
        for kind in UdpEncapKind::processed() {
            let packet = [kind.properties().marker, &[1; 20]].concat();
            assert_eq!(UdpEncapKind::of_payload(&packet), Some(kind));
        }
        assert_eq!(UdpEncapKind::of_payload(&[0, 0, 0, 0, 1, 2, 3, 4]), None);
    }

    #[test]
    fn kernel_number_names_one_kind() {
        for kind in UdpEncapKind::ALL {
            assert_eq!(UdpEncapKind::from_number(kind.properties().number), Some(kind));
        }
        assert_eq!(UdpEncapKind::from_number(0), None);
    }
}
