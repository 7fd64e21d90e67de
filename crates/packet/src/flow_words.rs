//! Flow key of most IPv4 packets, TCP or UDP, in a few words.

use crate::{Protocol, ipv4};

/// Flow key of a whole TCP or UDP packet over IPv4 without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4FlowKey {
    /// Source address in network byte order.
    pub source: u32,
    /// Destination address in network byte order.
    pub destination: u32,
    /// Source port in the upper half, destination port in the lower.
    pub ports: u32,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Length by the packet's own header.
    pub len: usize,
}

/// Header and ports.
const LEN: usize = ipv4::HEADER_LEN + 4;
/// Mask and value of version, header length and fragment bits.
const FIRST: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]);
const WHOLE: u64 = u64::from_ne_bytes([ipv4::WITHOUT_OPTIONS, 0, 0, 0, 0, 0, 0, 0]);

impl Ipv4FlowKey {
    /// Key of the packet at the start of `bytes`, which must be complete; `None` for all others,
    /// valid or not.
    #[must_use]
    #[inline(always)]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let first = bytes.first_chunk::<LEN>()?;
        // It is six words long.
        let (words, _) = first.as_chunks::<4>();
        let start = u64::from_ne_bytes(*first.first_chunk()?);
        let len = usize::from(u16::from_be_bytes([first[2], first[3]]));
        let protocol = Protocol(first[9]);
        let has_ports = matches!(protocol, Protocol::TCP | Protocol::UDP);
        let is_whole = start & FIRST == WHOLE && (LEN..=bytes.len()).contains(&len);
        (has_ports && is_whole).then_some(Self {
            source: u32::from_ne_bytes(words[3]),
            destination: u32::from_ne_bytes(words[4]),
            ports: u32::from_be_bytes(words[5]),
            protocol,
            len,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::{FlowPorts, IpPacket};

    proptest! {
        /// The key equals that of a full parse, for such packets only.
        #[test]
        fn flow_words_agree_with_full_parse(
            mut bytes in prop::collection::vec(any::<u8>(), 20..60),
            (first, protocol) in (
                prop::sample::select(&[0x45_u8, 0x45, 0x45, 0x46, 0x65]),
                prop::sample::select(&[6_u8, 17, 1, 50, 132]),
            ),
            (fragment, len) in (prop::sample::select(&[0_u16, 0, 0x4000, 0x2000, 1, 0x100]), 18..64_u16),
        ) {
            (bytes[0], bytes[9]) = (first, protocol);
            bytes[2..4].copy_from_slice(&len.to_be_bytes());
            bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
            let parsed = IpPacket::parse(&bytes).ok().filter(|ip| {
                let has_ports = matches!(ip.protocol, Protocol::TCP | Protocol::UDP);
                first == 0x45 && has_ports && !ip.is_fragment() && ip.total_len >= 24
            });
            let words = Ipv4FlowKey::of(&bytes);
            prop_assert_eq!(words.is_some(), parsed.is_some());
            if let (Some(words), Some(ip)) = (words, parsed) {
                let address = |word: u32| IpAddr::V4(word.to_ne_bytes().into());
                let ends = [words.source, words.destination].map(address);
                let FlowPorts { source, destination } = FlowPorts::of(&ip, &bytes);
                prop_assert_eq!(ends, [ip.source, ip.destination]);
                prop_assert_eq!(words.ports, u32::from(source) << 16 | u32::from(destination));
                prop_assert_eq!((words.protocol, words.len), (ip.protocol, ip.total_len));
            }
        }
    }
}
