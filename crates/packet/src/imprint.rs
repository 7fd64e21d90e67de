//! Telling by a few words of raw headers that a packet is of the same flow as the one before it.

use crate::flow::ports_come_first;
use crate::{IpPacket, Version, ipv4, ipv6};

/// What a packet's first bytes say of its flow: addresses, protocol, and the four bytes in which a protocol that has ports has them. TOS, lengths,
/// identification, DF, hops, flow label and checksum are not part of it.
///
/// Only packets without options, extension headers and fragments leave one, of protocols whose [`FlowPorts`](crate::FlowPorts) lie in those four bytes if anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Imprint {
    /// No packet is like it.
    #[default]
    None,
    /// IPv4: the words that the header and the first four bytes behind it lie in.
    V4([u64; V4_WORDS]),
    /// IPv6: those of the header, and the first four bytes behind it.
    V6([u64; V6_WORDS], u32),
}

const V4_WORDS: usize = 3;
const V6_WORDS: usize = 5;
/// What of a protocol's header is looked at.
const PORTS: usize = 4;

/// Version and header length, fragment bits, protocol, addresses, ports.
const V4: [u64; V4_WORDS] = [
    u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]),
    u64::from_ne_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    u64::MAX,
];
/// Version, next header; the addresses are whole.
const V6_FIRST: u64 = u64::from_ne_bytes([0xf0, 0, 0, 0, 0, 0, 0xff, 0]);

impl Imprint {
    /// That of a packet; `ip` was parsed from `bytes`.
    #[must_use]
    #[inline(always)]
    pub fn of(ip: &IpPacket, bytes: &[u8]) -> Self {
        let is_near = ip.total_len >= ip.header_len + PORTS && ports_come_first(ip.protocol);
        if !is_near || ip.has_options || ip.is_fragment() {
            return Self::None;
        }
        match ip.version {
            Version::V4 => v4(bytes).map_or(Self::None, Self::V4),
            Version::V6 => v6(bytes).map_or(Self::None, |(header, ports)| Self::V6(header, ports)),
        }
    }

    /// The total length of the packet that `bytes` begin with, when it left this imprint too, and is as long as it says.
    #[must_use]
    #[inline(always)]
    pub fn length_of_like(&self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::V4(words) if v4(bytes)? == *words => {
                let len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
                (ipv4::HEADER_LEN + PORTS..=bytes.len()).contains(&len).then_some(len)
            }
            Self::V6(header, ports) if v6(bytes)? == (*header, *ports) => {
                let payload = usize::from(u16::from_be_bytes([bytes[4], bytes[5]]));
                let len = ipv6::HEADER_LEN + payload;
                (PORTS <= payload && len <= bytes.len()).then_some(len)
            }
            Self::V4(_) | Self::V6(..) | Self::None => None,
        }
    }
}

#[inline(always)]
fn v4(bytes: &[u8]) -> Option<[u64; V4_WORDS]> {
    let [first, second, third] = *bytes.as_chunks().0.first_chunk()?;
    let words = [first, second, third].map(u64::from_ne_bytes);
    Some([words[0] & V4[0], words[1] & V4[1], words[2] & V4[2]])
}

#[inline(always)]
fn v6(bytes: &[u8]) -> Option<([u64; V6_WORDS], u32)> {
    let (header, behind) = bytes.split_first_chunk::<{ ipv6::HEADER_LEN }>()?;
    let ports = u32::from_ne_bytes(*behind.first_chunk()?);
    let mut words = [0; V6_WORDS];
    for (word, bytes) in words.iter_mut().zip(header.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words[0] &= V6_FIRST;
    Some((words, ports))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{FlowPorts, Protocol};

    const V4_PACKET: [u8; 32] = [
        0x45, 0, 0, 32, 1, 2, 0x40, 0, 64, 17, 9, 9, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 12,
        0, 0, 1, 2, 3, 4,
    ];

    fn v6_packet() -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 12, 17, 64];
        packet.extend((0..32).chain(100..112));
        packet
    }

    /// What all of a flow share, as the whole header says it.
    fn flow(bytes: &[u8]) -> Option<impl PartialEq + std::fmt::Debug> {
        let ip = IpPacket::parse(bytes).ok()?;
        let whole = !ip.is_fragment() && !ip.has_options;
        let ports = FlowPorts::of(&ip, bytes);
        whole.then_some((ip.version, ip.source, ip.destination, ip.protocol, ports))
    }

    fn imprint(bytes: &[u8]) -> Imprint {
        IpPacket::parse(bytes).map_or(Imprint::None, |ip| Imprint::of(&ip, bytes))
    }

    #[test]
    fn what_a_flow_does_not_share_leaves_the_imprint_as_it_is() {
        let mut other = V4_PACKET;
        // TOS, total length, identification, DF, TTL, checksum, payload.
        for (at, value) in [(1, 7), (3, 24), (5, 9), (6, 0), (8, 1), (10, 3), (11, 4), (31, 0)] {
            other[at] = value;
        }
        assert_eq!(imprint(&V4_PACKET).length_of_like(&other), Some(24));
        let mut other = v6_packet();
        // Traffic class, flow label, hop limit.
        for (at, value) in [(0, 0x6f), (1, 0xff), (3, 9), (7, 3)] {
            other[at] = value;
        }
        assert_eq!(imprint(&v6_packet()).length_of_like(&other), Some(52));
    }

    #[test]
    fn a_protocol_with_its_ports_elsewhere_leaves_none() {
        let mut packet = V4_PACKET;
        packet[9] = Protocol::GRE.0;
        assert_eq!(imprint(&packet), Imprint::None);
        assert_eq!(Imprint::None.length_of_like(&packet), None);
    }

    proptest! {
        #[test]
        fn packets_that_are_alike_are_of_one_flow(
            six in any::<bool>(),
            changes in prop::collection::vec((0_usize..48, any::<u8>()), 0..3),
            cut in 0_usize..64,
        ) {
            let one = if six { v6_packet() } else { V4_PACKET.to_vec() };
            let mut other = one.clone();
            for (at, value) in changes {
                if let Some(byte) = other.get_mut(at) { *byte = value; }
            }
            other.truncate(cut);
            if let Some(len) = imprint(&one).length_of_like(&other) {
                let ip = IpPacket::parse(&other).expect("it is like one that was parsed");
                prop_assert_eq!(len, ip.total_len);
                prop_assert!(len >= ip.header_len + PORTS);
                prop_assert_eq!(flow(&one), flow(&other));
                prop_assert!(flow(&other).is_some());
            }
        }
    }
}
