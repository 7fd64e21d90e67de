//! The quoted beginning of a packet in ICMP errors, whose length field cannot be trusted.

use std::net::IpAddr;

use uxfrm_packet::Protocol;
use uxfrm_packet::icmp::Icmp;
use uxfrm_packet::icmpv6::Icmpv6;
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{ExtensionChain, Ipv6Header};
use zerocopy::FromBytes;

/// Fields from the first bytes of an IP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a> {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: Protocol,
    /// A fragment other than the first: without transport header.
    pub(crate) later_fragment: bool,
    /// The available part of the upper layer.
    pub(crate) upper: &'a [u8],
}

impl<'a> Quoted<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Option<Self> {
        match bytes.first()? >> 4 {
            4 => Self::of_ipv4(bytes),
            6 => Self::of_ipv6(bytes),
            _ => None,
        }
    }

    fn of_ipv4(bytes: &'a [u8]) -> Option<Self> {
        let (header, _) = Ipv4Header::ref_from_prefix(bytes).ok()?;
        if header.header_len() < ipv4::HEADER_LEN {
            return None;
        }
        Some(Self {
            source: header.source().into(),
            destination: header.destination().into(),
            protocol: header.protocol,
            later_fragment: header.fragment_offset() != 0,
            upper: bytes.get(header.header_len()..)?,
        })
    }

    fn of_ipv6(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = Ipv6Header::ref_from_prefix(bytes).ok()?;
        let chain = ExtensionChain::walk(header.next_header, rest).ok()?;
        Some(Self {
            source: header.source().into(),
            destination: header.destination().into(),
            protocol: chain.upper,
            later_fragment: chain.fragment.is_some_and(|fragment| fragment.offset() != 0),
            upper: bytes.get(chain.upper_place.offset..)?,
        })
    }

    /// Whether an ICMP error may be sent about the packet.
    pub(crate) fn may_be_answered(&self) -> bool {
        let error = match self.protocol {
            Protocol::ICMP => Icmp::parse(self.upper).is_ok_and(|icmp| icmp.header.is_error()),
            Protocol::ICMPV6 => Icmpv6::parse(self.upper).is_ok_and(|icmp| icmp.header.is_error()),
            Protocol(_) => false,
        };
        let single = !self.source.is_unspecified() && !self.source.is_multicast();
        !error && !self.later_fragment && single && !self.destination.is_multicast()
    }
}
