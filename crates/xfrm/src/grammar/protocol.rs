//! Protocols by name and number: those of IPsec, and the upper-layer ones of a selector.

use uxfrm_engine::SaProtocol;

use super::{
    cursor::{Cursor, SyntaxError},
    error::one_of,
    keyword::PROTOCOLS,
    number::Number,
};

/// The value behind `proto` in an ID: a name, or its IP protocol number.
pub(super) fn parse_ipsec(cursor: &mut Cursor<'_, '_>) -> Result<SaProtocol, SyntaxError> {
    let word = cursor.value()?;
    let by_name = PROTOCOLS.exact(word.text()).map(|entry| entry.meaning);
    by_name
        .or_else(|| u8::read(word.text()).and_then(SaProtocol::from_number))
        .ok_or_else(|| cursor.wrong(word, one_of(&PROTOCOLS.words())))
}

/// iproute2's name.
pub(super) fn ipsec_name(protocol: SaProtocol) -> &'static str {
    match protocol {
        SaProtocol::Esp => "esp",
        SaProtocol::Ah => "ah",
        SaProtocol::Comp => "comp",
        SaProtocol::Route2 => "route2",
        SaProtocol::Hao => "hao",
        SaProtocol::Any => "ipsec-any",
    }
}

/// The value behind `proto` in a selector: `any`, a name of `/etc/protocols`, or a number.
pub(super) fn parse_upper(cursor: &mut Cursor<'_, '_>) -> Result<u8, SyntaxError> {
    let word = cursor.value()?;
    match word.text() {
        "any" => Ok(0),
        text => upper_by_name(text).or_else(|| u8::read(text)).ok_or_else(|| {
            cursor.wrong(word, "\"any\", a protocol's name such as tcp or a number from 0 to 255")
        }),
    }
}

/// The name, or the number where it has none.
pub(super) fn upper_name(number: u8) -> String {
    let named = UPPER_PROTOCOLS.iter().find(|(_, known)| *known == number);
    named.map_or_else(|| number.to_string(), |(name, _)| (*name).to_owned())
}

fn upper_by_name(name: &str) -> Option<u8> {
    let named = UPPER_PROTOCOLS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    named.map(|(_, number)| *number)
}

pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
pub(super) const DCCP: u8 = 33;
pub(super) const GRE: u8 = 47;
pub(super) const ICMPV6: u8 = 58;
pub(super) const SCTP: u8 = 132;
pub(super) const MOBILITY_HEADER: u8 = 135;

/// IANA's names as in `/etc/protocols`; the first name of a number is printed.
const UPPER_PROTOCOLS: &[(&str, u8)] = &[
    ("ip", 0),
    ("icmp", ICMP),
    ("igmp", 2),
    ("ggp", 3),
    ("ipencap", 4),
    ("ip-encap", 4),
    ("ipv4", 4),
    ("st", 5),
    ("tcp", TCP),
    ("egp", 8),
    ("igp", 9),
    ("pup", 12),
    ("udp", UDP),
    ("hmp", 20),
    ("xns-idp", 22),
    ("rdp", 27),
    ("iso-tp4", 29),
    ("dccp", DCCP),
    ("xtp", 36),
    ("ddp", 37),
    ("idpr-cmtp", 38),
    ("ipv6", 41),
    ("ipv6-route", 43),
    ("ipv6-frag", 44),
    ("idrp", 45),
    ("rsvp", 46),
    ("gre", GRE),
    ("esp", 50),
    ("ipsec-esp", 50),
    ("ah", 51),
    ("ipsec-ah", 51),
    ("skip", 57),
    ("ipv6-icmp", ICMPV6),
    ("icmpv6", ICMPV6),
    ("ipv6-nonxt", 59),
    ("ipv6-opts", 60),
    ("rspf", 73),
    ("vmtp", 81),
    ("eigrp", 88),
    ("ospf", 89),
    ("ospfigp", 89),
    ("ax.25", 93),
    ("ipip", 94),
    ("etherip", 97),
    ("encap", 98),
    ("pim", 103),
    ("ipcomp", 108),
    ("vrrp", 112),
    ("l2tp", 115),
    ("isis", 124),
    ("sctp", SCTP),
    ("fc", 133),
    ("mobility-header", MOBILITY_HEADER),
    ("udplite", 136),
    ("mpls-in-ip", 137),
    ("manet", 138),
    ("hip", 139),
    ("shim6", 140),
    ("wesp", 141),
    ("rohc", 142),
    ("ethernet", 143),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipsec_protocol_names_match_numbers() {
        for word in PROTOCOLS.words() {
            assert_eq!(ipsec_name(PROTOCOLS.exact(word).unwrap().meaning), word);
        }
    }

    #[test]
    fn upper_protocol_names_and_numbers_match() {
        assert_eq!((upper_by_name("UDP"), upper_by_name("mobility-header")), (Some(17), Some(135)));
        assert_eq!((upper_name(58), upper_name(200)), ("ipv6-icmp".to_owned(), "200".to_owned()));
    }
}
