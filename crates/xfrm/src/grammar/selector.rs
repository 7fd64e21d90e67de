//! `SELECTOR`: `[src ADDR[/PLEN]] [dst ADDR[/PLEN]] [dev DEV] [UPSPEC]`.

use nix::net::if_::if_nametoindex;
use uxfrm_engine::{Family, PortMask, Prefix, Selector};

use super::{
    address::{Ends, Pair, read_ipv4},
    cursor::{Cursor, SyntaxError},
    keyword::{SELECTOR, SelectorWord, UPPER, UpperWord, words_of},
    number::Number,
    protocol::{self, DCCP, GRE, ICMP, ICMPV6, MOBILITY_HEADER, SCTP, TCP, UDP},
};

/// The fields of a selector that a line named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelectorFilter {
    /// `src`
    pub source: Option<Prefix>,
    /// `dst`
    pub destination: Option<Prefix>,
    /// Of the prefixes, or preferred (`-4`, `-6`).
    pub family: Option<Family>,
    /// `proto`
    pub protocol: Option<u8>,
    /// `sport`, `type`, upper half of `key`.
    pub source_port: Option<PortMask>,
    /// `dport`, `code`, lower half of `key`.
    pub destination_port: Option<PortMask>,
    /// `dev`
    pub ifindex: Option<u32>,
}

impl SelectorFilter {
    /// Whether a selector's prefixes lie in those named and its other fields are those named.
    #[must_use]
    pub fn fits(&self, selector: &Selector) -> bool {
        let inside = |named: Option<Prefix>, prefix: Prefix| {
            named.is_none_or(|named| {
                named.contains(prefix.address()) && named.prefix_len() <= prefix.prefix_len()
            })
        };
        inside(self.source, selector.source)
            && inside(self.destination, selector.destination)
            && self.family.is_none_or(|family| family == selector.family())
            && self.protocol.is_none_or(|protocol| protocol == selector.protocol)
            && self.source_port.is_none_or(|port| port == selector.source_port)
            && self.destination_port.is_none_or(|port| port == selector.destination_port)
            && self.ifindex.is_none_or(|ifindex| ifindex == selector.ifindex)
    }

    /// The selector; omitted fields match everything, and `default` is the family where none is
    /// given.
    #[must_use]
    pub fn selector(&self, default: Family) -> Selector {
        let family = self.family.unwrap_or(default);
        Selector {
            source: self.source.unwrap_or_else(|| Prefix::any(family)),
            destination: self.destination.unwrap_or_else(|| Prefix::any(family)),
            protocol: self.protocol.unwrap_or_default(),
            source_port: self.source_port.unwrap_or_default(),
            destination_port: self.destination_port.unwrap_or_default(),
            ifindex: self.ifindex.unwrap_or_default(),
            user: 0,
        }
    }
}

/// Whether a selector begins here.
pub(super) fn begins(cursor: &Cursor<'_, '_>) -> bool {
    cursor.peek().is_some_and(|word| {
        SELECTOR.exact(word.text()).is_some() || UPPER.exact(word.text()).is_some()
    })
}

/// The next word is none of a selector's.
pub(super) fn expected(cursor: &Cursor<'_, '_>) -> SyntaxError {
    cursor.unknown(&words_of!(SELECTOR, UPPER))
}

/// The selector that begins here (`ip/ipxfrm.c: xfrm_selector_parse`).
pub(super) fn parse(cursor: &mut Cursor<'_, '_>) -> Result<SelectorFilter, SyntaxError> {
    let mut selector = SelectorFilter::default();
    let mut ends = Ends::default();
    let mut upper = Upper::default();
    loop {
        match cursor.keyword(&SELECTOR) {
            Some(SelectorWord::Source) => ends.source(cursor)?,
            Some(SelectorWord::Destination) => ends.destination(cursor)?,
            Some(SelectorWord::Device) => selector.ifindex = Some(parse_device(cursor)?),
            None if upper.named.is_empty() && upper.parse(cursor, &mut selector)? => {}
            None => break,
        }
    }
    let Pair { source, destination, family } = ends.pair(cursor)?;
    Ok(SelectorFilter { source, destination, family, ..selector })
}

/// The value behind `dev`: `none`, a name that this host knows, or `if` and an index.
fn parse_device(cursor: &mut Cursor<'_, '_>) -> Result<u32, SyntaxError> {
    let word = cursor.value()?;
    match word.text() {
        "none" => Ok(0),
        name => if_nametoindex(name)
            .ok()
            .or_else(|| name.strip_prefix("if").and_then(u32::read))
            .filter(|index| *index != 0)
            .ok_or_else(|| cursor.wrong(word, "\"none\" or the name of an interface of this host")),
    }
}

/// `UPSPEC`: a run of words that has to fit its protocol.
#[derive(Default)]
struct Upper {
    named: Vec<(UpperWord, PortForm)>,
}

/// How a port is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PortForm {
    /// As iproute2 takes it, or the word is no port.
    Plain,
    /// With the bits that count: this is for any protocol, as it is on the wire.
    Masked,
}

impl Upper {
    /// Whether there was one.
    fn parse(
        &mut self,
        cursor: &mut Cursor<'_, '_>,
        selector: &mut SelectorFilter,
    ) -> Result<bool, SyntaxError> {
        while let Some(word) = cursor.keyword(&UPPER) {
            let mut form = PortForm::Plain;
            match word {
                UpperWord::Protocol => selector.protocol = Some(protocol::parse_upper(cursor)?),
                UpperWord::SourcePort => {
                    let port;
                    (port, form) = parse_port(cursor)?;
                    selector.source_port = Some(port);
                }
                UpperWord::DestinationPort => {
                    let port;
                    (port, form) = parse_port(cursor)?;
                    selector.destination_port = Some(port);
                }
                UpperWord::Type => selector.source_port = Some(octet(cursor.number()?)),
                UpperWord::Code => selector.destination_port = Some(octet(cursor.number()?)),
                UpperWord::Key => {
                    let [upper, lower] = parse_key(cursor)?;
                    selector.source_port = Some(PortMask::exactly(upper));
                    selector.destination_port = Some(PortMask::exactly(lower));
                }
            }
            self.named.push((word, form));
        }
        self.check(selector.protocol.unwrap_or_default(), cursor)?;
        Ok(!self.named.is_empty())
    }

    fn check(&self, protocol: u8, cursor: &Cursor<'_, '_>) -> Result<(), SyntaxError> {
        for (word, _) in self.named.iter().filter(|(_, form)| *form == PortForm::Plain) {
            let (fits, words) = match word {
                UpperWord::Protocol => (true, ""),
                // 0: one state for several protocols.
                UpperWord::SourcePort | UpperWord::DestinationPort => {
                    ([0, TCP, UDP, SCTP, DCCP].contains(&protocol), "\"sport\" and \"dport\" are")
                }
                UpperWord::Type | UpperWord::Code => (
                    [ICMP, ICMPV6, MOBILITY_HEADER].contains(&protocol),
                    "\"type\" and \"code\" are",
                ),
                UpperWord::Key => (protocol == GRE, "\"key\" is"),
            };
            if !fits {
                let name = protocol::upper_name(protocol);
                return Err(cursor.refuse(format!("{words} invalid with PROTO value \"{name}\"")));
            }
        }
        Ok(())
    }
}

/// `PORT` or `PORT/MASK`.
fn parse_port(cursor: &mut Cursor<'_, '_>) -> Result<(PortMask, PortForm), SyntaxError> {
    let word = cursor.value()?;
    let read = match word.text().split_once('/') {
        None => u16::read(word.text()).map(|number| (port(number), PortForm::Plain)),
        Some((value, mask)) => {
            let mask = u16::read(value).zip(u16::read(mask));
            mask.map(|(value, mask)| (PortMask { value, mask }, PortForm::Masked))
        }
    };
    let expected = || format!("{}, or such a number/MASK", u16::expected());
    read.ok_or_else(|| cursor.wrong(word, expected()))
}

/// Port 0 is every port.
fn port(number: u16) -> PortMask {
    if number == 0 { PortMask::default() } else { PortMask::exactly(number) }
}

fn octet(number: u8) -> PortMask {
    PortMask::exactly(u16::from(number))
}

/// Upper and lower half of a GRE key.
fn parse_key(cursor: &mut Cursor<'_, '_>) -> Result<[u16; 2], SyntaxError> {
    let word = cursor.value()?;
    let text = word.text();
    let key = if text.contains('.') { read_ipv4(text).map(u32::from) } else { u32::read(text) };
    let [a, b, c, d] = key
        .ok_or_else(|| cursor.wrong(word, "a dotted quad or a number from 0 to 4294967295"))?
        .to_be_bytes();
    Ok([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}
