//! Addresses and prefixes as iproute2 reads them (`lib/utils.c: get_prefix, get_addr_ipv4`).

use std::net::{IpAddr, Ipv4Addr};

use uxfrm_engine::{Family, Prefix};

use super::{
    cursor::{Cursor, SyntaxError},
    error::Error,
    lexer::Word,
    number::Number,
};

/// What stands behind `src` or `dst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// `any`, `all`, `default`: no bit counts. Its family is another word's.
    Any,
    /// Host bits are kept.
    Prefix(Prefix),
}

impl Address {
    fn family(self) -> Option<Family> {
        match self {
            Self::Any => None,
            Self::Prefix(prefix) => Some(prefix.family()),
        }
    }

    fn in_family(self, family: Family) -> Prefix {
        match self {
            Self::Any => Prefix::any(family),
            Self::Prefix(prefix) => prefix,
        }
    }
}

/// A source and a destination with their words, which have to be of one family.
#[derive(Default)]
pub(super) struct Ends<'l, 'a> {
    source: Option<(Address, &'l Word<'a>)>,
    destination: Option<(Address, &'l Word<'a>)>,
}

/// Ends of one family; a missing one was not given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) source: Option<Prefix>,
    pub(super) destination: Option<Prefix>,
    /// `None` if neither end was given and none was preferred.
    pub(super) family: Option<Family>,
}

impl Pair {
    /// The source, or the one that stands for none.
    pub(super) fn source_or_any(&self, family: Family) -> Prefix {
        self.source.unwrap_or_else(|| Prefix::any(family))
    }

    /// The destination, or the one that stands for none.
    pub(super) fn destination_or_any(&self, family: Family) -> Prefix {
        self.destination.unwrap_or_else(|| Prefix::any(family))
    }
}

impl<'l, 'a> Ends<'l, 'a> {
    /// The value behind `src`.
    pub(super) fn source(&mut self, cursor: &mut Cursor<'l, 'a>) -> Result<(), SyntaxError> {
        self.source = Some(parse_prefix(cursor)?);
        Ok(())
    }

    /// The value behind `dst`.
    pub(super) fn destination(&mut self, cursor: &mut Cursor<'l, 'a>) -> Result<(), SyntaxError> {
        self.destination = Some(parse_prefix(cursor)?);
        Ok(())
    }

    /// Both addresses in one family: an address's, else the preferred one.
    pub(super) fn pair(&self, cursor: &Cursor<'l, 'a>) -> Result<Pair, SyntaxError> {
        let family_of =
            |end: &Option<(Address, &Word<'a>)>| end.and_then(|(address, _)| address.family());
        let (source, destination) = (family_of(&self.source), family_of(&self.destination));
        if let (Some(one), Some(other), Some((_, word))) = (source, destination, self.destination)
            && one != other
        {
            let what =
                "the same address family is required between values after \"src\" and \"dst\"";
            return Err(cursor.misplaced(word, what));
        }
        let family = source.or(destination).or(cursor.family);
        let in_family = |end: Option<(Address, &Word<'a>)>| {
            match (end, family) {
            (None, _) => Ok(None),
            (Some((address, _)), Some(family)) => Ok(Some(address.in_family(family))),
            (Some((_, word)), None) => Err(cursor.misplaced(
                word,
                "it has an unrecognized address family; 0.0.0.0/0 and ::/0 have one, -4 and -6 before \"xfrm\" say it",
            )),
        }
        };
        Ok(Pair {
            source: in_family(self.source)?,
            destination: in_family(self.destination)?,
            family,
        })
    }
}

fn parse_prefix<'l, 'a>(
    cursor: &mut Cursor<'l, 'a>,
) -> Result<(Address, &'l Word<'a>), SyntaxError> {
    let word = cursor.value()?;
    match read_prefix(word.text()).filter(|address| fits(*address, cursor.family)) {
        Some(address) => Ok((address, word)),
        None => Err(prefix_expected(cursor, word)),
    }
}

/// The value behind a keyword that takes one address; `None` for `any`.
pub(super) fn parse_address(
    cursor: &mut Cursor<'_, '_>,
    part: (&'static str, &'static str),
) -> Result<Option<IpAddr>, SyntaxError> {
    let word = cursor.operand(part.0, part.1)?;
    match word.text() {
        "any" | "all" | "default" => Ok(None),
        text => read_address(text).map(Some).ok_or_else(|| SyntaxError {
            at: word.at,
            error: Error::Address {
                family: "any valid",
                kind: "address",
                word: cursor.shown(word),
            },
        }),
    }
}

/// The value behind `coa`: `ADDR[/PLEN]`, of which the address counts.
pub(super) fn parse_care_of(cursor: &mut Cursor<'_, '_>) -> Result<IpAddr, SyntaxError> {
    let (address, word) = parse_prefix(cursor)?;
    match (address, cursor.family) {
        (Address::Prefix(prefix), _) => Ok(prefix.address()),
        (Address::Any, Some(family)) => Ok(family.unspecified()),
        (Address::Any, None) => {
            Err(cursor.misplaced(word, "value after \"coa\" has an unrecognized address family"))
        }
    }
}

fn fits(address: Address, preferred: Option<Family>) -> bool {
    match (address.family(), preferred) {
        (Some(family), Some(preferred)) => family == preferred,
        (None, _) | (_, None) => true,
    }
}

fn prefix_expected(cursor: &Cursor<'_, '_>, word: &Word<'_>) -> SyntaxError {
    let family = match cursor.family {
        None => "any valid",
        Some(Family::V4) => "inet",
        Some(Family::V6) => "inet6",
    };
    SyntaxError {
        at: word.at,
        error: Error::Address { family, kind: "prefix", word: cursor.shown(word) },
    }
}

fn read_prefix(text: &str) -> Option<Address> {
    if matches!(text, "any" | "all" | "default") {
        return Some(Address::Any);
    }
    let Some((address, len)) = text.split_once('/') else {
        return read_address(text).map(|address| Address::Prefix(Prefix::host(address)));
    };
    let len = u8::read(len).or_else(|| netmask_len(len))?;
    Prefix::new(read_address(address)?, len).ok().map(Address::Prefix)
}

/// `255.255.255.0`
fn netmask_len(text: &str) -> Option<u8> {
    let mask = read_ipv4(text)?.to_bits();
    let len = mask.leading_ones();
    (mask.count_ones() == len).then(|| u8::try_from(len).ok()).flatten()
}

fn read_address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok().map(IpAddr::V6);
    }
    read_ipv4(text).map(IpAddr::V4)
}

/// One to four numbers of any base, zero-filled at the *end*: `10.8` is 10.8.0.0.
pub(super) fn read_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut places = octets.iter_mut();
    for part in text.split('.') {
        *places.next()? = u8::read(part)?;
    }
    Some(octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_parse_as_in_iproute2() {
        for (text, shown) in [
            ("14.0.0.52/24", "14.0.0.52/24"),
            ("14.0.0.52", "14.0.0.52/32"),
            ("10.8", "10.8.0.0/32"),
            ("10/8", "10.0.0.0/8"),
            ("0x0a.010.1.1/255.255.0.0", "10.8.1.1/16"),
            ("10.0.0.0/0.0.0.0", "10.0.0.0/0"),
            ("10.0.0.0/0x18", "10.0.0.0/24"),
            ("::/0", "::/0"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("::ffff:10.0.0.1/96", "::ffff:10.0.0.1/96"),
        ] {
            let Some(Address::Prefix(prefix)) = read_prefix(text) else { panic!("{text}") };
            assert_eq!(prefix.to_string(), shown);
        }
        for text in ["any", "all", "default"] {
            assert_eq!(read_prefix(text), Some(Address::Any));
        }
        for text in [
            "",
            "10.",
            ".1",
            "1.2.3.4.5",
            "256.1.1.1",
            "10.1.0.1/33",
            "10.0.0.1/",
            "::1/129",
            "::g",
            "any/0",
            "10.0.0.0/255.0.255.0",
            "10.0.0.0/-1",
            "localhost",
        ] {
            assert_eq!(read_prefix(text), None, "{text}");
        }
    }
}
