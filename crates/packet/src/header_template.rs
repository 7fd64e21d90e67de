//! Header templates: masked header words that packets of one flow or SA share, so that consecutive
//! packets need no full parse.

use crate::checksum::Sum;
use crate::{Protocol, ipv4, ipv6};

/// Version, addresses, protocol and the first four bytes behind the header: ports, or an SPI. Only
/// for whole packets of TCP, UDP and ESP, over IPv4 without options or directly over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderTemplate {
    /// IPv4 in network byte order, with variable fields masked out.
    V4([u64; 3]),
    /// IPv6, likewise; the four bytes behind the header are separate.
    V6([u64; 5], u32),
}

/// Fields read from a packet that matches a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedLen {
    /// Length by the packet's own header.
    pub len: usize,
    /// The TOS byte or traffic class.
    pub tos: u8,
}

/// Bytes compared.
const V4_LEN: usize = ipv4::HEADER_LEN + 4;
const V6_LEN: usize = ipv6::HEADER_LEN + 4;

/// Version and header length; fragment bits. Not TOS, length, id and DF.
const V4_FIRST: u64 = u64::from_ne_bytes([0xff, 0, 0, 0, 0, 0, 0x3f, 0xff]);
/// Protocol and source. Not TTL and checksum.
const V4_SECOND: u64 = u64::from_ne_bytes([0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]);
/// The part of the last word that belongs to the header.
const V4_THIRD: u64 = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
/// Version and next header. Not traffic class, flow label, length and hop limit.
const V6_FIRST: u64 = u64::from_ne_bytes([0xf0, 0, 0, 0, 0, 0, 0xff, 0]);

impl HeaderTemplate {
    /// Template of a whole packet that was parsed before. `None` if it does not qualify.
    #[must_use]
    pub fn of(packet: &[u8]) -> Option<Self> {
        match packet.first()? {
            &ipv4::WITHOUT_OPTIONS => {
                let [first, second, third] = words_v4(packet.first_chunk()?);
                let is_whole = [packet[6] & 0x3f, packet[7]] == [0, 0];
                (is_whole && has_outline(packet[9])).then_some(Self::V4([
                    first & V4_FIRST,
                    second & V4_SECOND,
                    third,
                ]))
            }
            first if first >> 4 == 6 => {
                let ([first, addresses @ ..], upper) = words_v6(packet.first_chunk()?);
                let [a, b, c, d] = addresses;
                has_outline(packet[6]).then_some(Self::V6([first & V6_FIRST, a, b, c, d], upper))
            }
            _ => None,
        }
    }

    /// Like [`HeaderTemplate::matches`], with a check of the header checksum.
    #[must_use]
    #[inline(always)]
    pub fn matches_with_checksum(&self, bytes: &[u8]) -> Option<ParsedLen> {
        let extent = self.matches(bytes)?;
        match self {
            Self::V4(_) => {
                let [one, two, three] = words_v4(bytes.first_chunk()?);
                let destination = Sum::of_word(three & V4_THIRD);
                let sum = Sum::of_word(one).plus(Sum::of_word(two)).plus(destination);
                sum.is_right().then_some(extent)
            }
            Self::V6(..) => Some(extent),
        }
    }

    /// Length and TOS of the packet at the start of `bytes`, if it matches and is complete.
    // Branches, as they are well predicted.
    #[must_use]
    #[inline(always)]
    pub fn matches(&self, bytes: &[u8]) -> Option<ParsedLen> {
        match self {
            Self::V4(outline) => {
                let first = bytes.first_chunk()?;
                let [one, two, three] = words_v4(first);
                let differs = (one & V4_FIRST ^ outline[0])
                    | (two & V4_SECOND ^ outline[1])
                    | (three ^ outline[2]);
                let len = usize::from(u16::from_be_bytes([first[2], first[3]]));
                let is_like = differs == 0 && (V4_LEN..=bytes.len()).contains(&len);
                is_like.then_some(ParsedLen { len, tos: first[1] })
            }
            Self::V6(outline, outline_upper) => {
                let first = bytes.first_chunk()?;
                let ([one, two, three, four, five], upper) = words_v6(first);
                let differs = (one & V6_FIRST ^ outline[0])
                    | (two ^ outline[1])
                    | (three ^ outline[2])
                    | (four ^ outline[3])
                    | (five ^ outline[4])
                    | u64::from(upper ^ outline_upper);
                let len = usize::from(u16::from_be_bytes([first[4], first[5]])) + ipv6::HEADER_LEN;
                let is_like = differs == 0 && (V6_LEN..=bytes.len()).contains(&len);
                is_like.then_some(ParsedLen { len, tos: first[0] << 4 | first[1] >> 4 })
            }
        }
    }

    /// The packet's protocol number in a tunnel's trailer.
    #[must_use]
    #[inline(always)]
    pub const fn protocol(&self) -> Protocol {
        match self {
            Self::V4(..) => Protocol::IPIP,
            Self::V6(..) => Protocol::IPV6,
        }
    }

    /// Bytes before the last four.
    #[must_use]
    #[inline(always)]
    pub const fn header_len(&self) -> usize {
        match self {
            Self::V4(..) => ipv4::HEADER_LEN,
            Self::V6(..) => ipv6::HEADER_LEN,
        }
    }
}

/// Whether packets of this protocol that match a template belong to one flow or SA.
const fn has_outline(protocol: u8) -> bool {
    matches!(Protocol(protocol), Protocol::TCP | Protocol::UDP | Protocol::ESP)
}

#[inline(always)]
fn words_v4(first: &[u8; V4_LEN]) -> [u64; 3] {
    // It is three words long.
    let (words, _) = first.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_ne_bytes(words[at]))
}

#[inline(always)]
fn words_v6(first: &[u8; V6_LEN]) -> ([u64; 5], u32) {
    // It is five and a half words long.
    let (words, upper) = first.as_chunks::<8>();
    let upper = upper.first_chunk().map_or(0, |upper| u32::from_ne_bytes(*upper));
    (std::array::from_fn(|at| u64::from_ne_bytes(words[at])), upper)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ipv4::Ipv4;
    use crate::{FlowPorts, IpPacket};

    fn packet(v6: bool, protocol: Protocol, upper: usize) -> Vec<u8> {
        let (upper, mut packet) = (vec![7; upper], vec![0; if v6 { 40 } else { 20 }]);
        let len = u16::try_from(if v6 { upper.len() } else { 20 + upper.len() }).unwrap();
        let [high, low] = len.to_be_bytes();
        if v6 {
            packet[..8].copy_from_slice(&[0x60, 0, 0, 0, high, low, protocol.0, 64]);
        } else {
            packet[..10].copy_from_slice(&[0x45, 0, high, low, 0, 1, 0, 0, 64, protocol.0]);
        }
        packet.extend(upper);
        let _not_ipv4 = ipv4::fill_checksum(&mut packet);
        packet
    }

    /// A packet with flipped bits and a valid checksum.
    fn changed(mut packet: Vec<u8>, changes: &[(usize, u8)], summed: bool) -> Vec<u8> {
        for (at, bits) in changes {
            packet.get_mut(*at).into_iter().for_each(|byte| *byte ^= bits);
        }
        if summed && packet[0] >> 4 == 4 {
            packet[10..12].fill(0);
            let checksum = Sum::of(&packet[..20]).checksum();
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        packet
    }

    fn change() -> impl Strategy<Value = (usize, u8)> {
        (0..50_usize, (0..8_u32).prop_map(|bit| 1 << bit))
    }

    proptest! {
        /// A packet that matches another's template is of the same flow by a full parse, and valid.
        #[test]
        fn packet_matching_template_is_of_its_flow(
            v6: bool,
            protocol in prop::sample::select(&[Protocol::UDP, Protocol::TCP, Protocol::ESP, Protocol::ICMP]),
            upper in 0..30_usize,
            before in prop::collection::vec(change(), 0..2),
            after in prop::collection::vec(change(), 0..3),
            (behind, summed) in (-4..4_isize, any::<bool>()),
        ) {
            let first = changed(packet(v6, protocol, upper), &before, true);
            let mut second = changed(first.clone(), &after, summed);
            second.resize(second.len().saturating_add_signed(behind), 0);
            let Ok(known) = IpPacket::parse(&first) else { return Ok(()) };
            let Some(outline) = HeaderTemplate::of(&first[..known.total_len]) else { return Ok(()) };
            let Some(ParsedLen { len, tos }) = outline.matches_with_checksum(&second) else { return Ok(()) };
            let found = IpPacket::parse(&second).unwrap();
            prop_assert_eq!((found.total_len, found.tos), (len, tos));
            prop_assert_eq!((found.source, found.destination), (known.source, known.destination));
            prop_assert_eq!((found.protocol, found.has_options), (known.protocol, false));
            prop_assert!(!found.is_fragment() && !known.is_fragment() && !known.has_options);
            prop_assert_eq!(FlowPorts::of(&found, &second), FlowPorts::of(&known, &first));
            prop_assert_eq!(&found.upper(&second)[..4], &known.upper(&first)[..4]);
            prop_assert_eq!(outline.matches(&second), outline.matches_with_checksum(&second));
            prop_assert!(v6 || Ipv4::parse(&second).unwrap().checksum_is_right());
        }
    }

    #[test]
    fn fragments_and_other_protocols_have_no_template() {
        for fragment in [(6, 0x20), (6, 0x01), (7, 0x01)] {
            let piece = changed(packet(false, Protocol::UDP, 12), &[fragment], true);
            assert_eq!(HeaderTemplate::of(&piece), None, "{fragment:?}");
        }
        for v6 in [false, true] {
            assert_eq!(HeaderTemplate::of(&packet(v6, Protocol::ICMP, 12)), None);
            assert_eq!(HeaderTemplate::of(&packet(v6, Protocol::UDP, 3)), None);
            let outline = HeaderTemplate::of(&packet(v6, Protocol::UDP, 12)).unwrap();
            // The bytes behind it look like ports.
            let short = [packet(v6, Protocol::UDP, 3), vec![7; 9]].concat();
            assert_eq!(outline.matches_with_checksum(&short), None);
        }
    }

    #[test]
    fn variable_fields_do_not_affect_match() {
        for (v6, places) in [(false, &[1, 4, 5, 8, 25, 29][..]), (true, &[1, 2, 3, 7, 45, 49])] {
            let first = packet(v6, Protocol::UDP, 12);
            let outline = HeaderTemplate::of(&first).unwrap();
            for at in places {
                let second = changed(first.clone(), &[(*at, 0x10)], true);
                assert_eq!(
                    outline.matches_with_checksum(&second).map(|extent| extent.len),
                    Some(first.len()),
                    "{at}"
                );
            }
            let longer = packet(v6, Protocol::UDP, 20);
            assert_eq!(
                outline.matches_with_checksum(&longer).map(|extent| extent.len),
                Some(longer.len())
            );
        }
        let unlike = changed(packet(false, Protocol::UDP, 12), &[(6, 0x40)], true);
        assert!(
            HeaderTemplate::of(&unlike)
                .unwrap()
                .matches_with_checksum(&packet(false, Protocol::UDP, 12))
                .is_some(),
            "DF"
        );
    }
}
