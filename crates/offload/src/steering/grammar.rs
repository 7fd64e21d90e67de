//! Parses ethtool's words for flow director rules, those behind `ethtool -U DEV`.
//!
//! ```text
//! flow-type ip4|ip6|tcp4|tcp6|udp4|udp6|sctp4|sctp6|esp4|esp6
//!     [src-ip A [m MASK]] [dst-ip A [m MASK]] [l4proto N] [src-port P [m MASK]]
//!     [dst-port P [m MASK]] [spi N [m MASK]] [vlan N [m MASK]] [vlan-etype N] [user-def N]
//!     [action QUEUE|-1] [loc N]
//! delete N
//! ```
//!
//! As in ethtool a mask has 1 where a bit does *not* count (`src-ip 10.1.0.0 m 0.0.255.255`),
//! numbers may be hexadecimal, and without `action` packets go to queue 0. `user-def` is the flex
//! field: the offset of its two bytes in bits 16 to 31, their value in bits 0 to 15.

use std::{net::IpAddr, str::FromStr};

use uxfrm_engine::Family;

use super::{
    FlowRule, RxQueueId, SteeringRuleId, Target,
    rule::{ESP, Flex, FlowType, Masked, SCTP, TCP, UDP, VLAN_ETHERTYPE, bits},
};

/// A line of `ethtool -U DEV …`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleCommand {
    /// A rule, and its requested location.
    Add(FlowRule, Option<SteeringRuleId>),
    /// `delete N`
    Delete(SteeringRuleId),
}

/// Errors of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The line has another beginning.
    #[error("expected \"flow-type TYPE …\" or \"delete N\", found \"{0}\"")]
    Beginning(String),
    /// An unknown word, or one for other flow types.
    #[error("flow-type {flow_type}: unknown option \"{word}\"")]
    Word {
        /// The type.
        flow_type: String,
        /// The word.
        word: String,
    },
    /// An unknown flow type.
    #[error(
        "unknown flow-type \"{0}\": ip4, ip6, tcp4, tcp6, udp4, udp6, sctp4, sctp6, esp4 or esp6"
    )]
    FlowType(String),
    /// A missing or invalid value.
    #[error("{word}: \"{value}\" is not {expected}")]
    Value {
        /// The option.
        word: String,
        /// The value; empty at the end of the line.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
    /// The flex field's two bytes are in the first 64 bytes.
    #[error("user-def: offset {0}: the flex field is at an even offset below 64")]
    FlexOffset(u64),
    /// The device has no such queue.
    #[error("action {0}: the device has queues 0 to {1}")]
    NoQueue(u16, u16),
    /// The device has no flex field.
    #[error("vlan-etype and user-def: the device has no flex field")]
    NoFlexField,
    /// The device has one flex field for all rules.
    #[error("the flex field is at offset {0} already, for all rules: delete those first")]
    OtherFlexOffset(u16),
    /// The device has no rules.
    #[error("the device has no flow director")]
    NoFlowDirector,
    /// No such rule.
    #[error("no rule at {0}")]
    NoRule(SteeringRuleId),
    /// No such place.
    #[error("loc {0}: the device has places 0 to {1}")]
    NoPlace(SteeringRuleId, u32),
    /// All places are taken.
    #[error("all {0} places for rules are taken")]
    Full(u32),
}

impl FromStr for RuleCommand {
    type Err = RuleError;

    fn from_str(line: &str) -> Result<Self, RuleError> {
        let mut words = Words { words: line.split_whitespace().peekable() };
        match words.words.next() {
            Some("delete") => {
                let place = words.number("delete", u32::MAX.into())?;
                words.end().map(|()| Self::Delete(SteeringRuleId(narrow(place))))
            }
            Some("flow-type") => words.rule(),
            other => Err(RuleError::Beginning(other.unwrap_or_default().to_owned())),
        }
    }
}

/// The remaining words of a line.
struct Words<'a, I: Iterator<Item = &'a str>> {
    words: std::iter::Peekable<I>,
}

impl<'a, I: Iterator<Item = &'a str>> Words<'a, I> {
    fn rule(&mut self) -> Result<RuleCommand, RuleError> {
        let flow_type = flow_type(self.words.next().unwrap_or_default())?;
        let mut rule = FlowRule::all(flow_type, Target::Queue(RxQueueId(0)));
        let mut place = None;
        while let Some(word) = self.words.next() {
            if word == "loc" {
                place = Some(SteeringRuleId(narrow(self.number(word, u32::MAX.into())?)));
            } else {
                self.option(word, &mut rule)?;
            }
        }
        Ok(RuleCommand::Add(rule, place))
    }

    fn option(&mut self, word: &str, rule: &mut FlowRule) -> Result<(), RuleError> {
        let flow_type = rule.flow_type;
        let has_ports = matches!(flow_type.protocol, Some(TCP | UDP | SCTP));
        match word {
            "src-ip" => rule.source = Some(self.address(word, flow_type.family)?),
            "dst-ip" => rule.destination = Some(self.address(word, flow_type.family)?),
            "l4proto" if flow_type.protocol.is_none() => {
                rule.protocol = Some(narrow(self.number(word, u8::MAX.into())?));
            }
            "src-port" if has_ports => rule.source_port = Some(self.masked(word)?),
            "dst-port" if has_ports => rule.destination_port = Some(self.masked(word)?),
            "spi" if flow_type.protocol == Some(ESP) => rule.spi = Some(self.masked(word)?),
            "vlan" => rule.vlan = Some(self.masked(word)?),
            "vlan-etype" => {
                let value = narrow(self.number(word, u16::MAX.into())?);
                rule.flex = Some(Flex { offset: VLAN_ETHERTYPE, value });
            }
            "user-def" => rule.flex = Some(flex(self.number(word, u64::MAX)?)?),
            "action" => rule.target = self.target()?,
            _ => {
                let (flow_type, word) = (flow_type.to_string(), word.to_owned());
                return Err(RuleError::Word { flow_type, word });
            }
        }
        Ok(())
    }

    fn target(&mut self) -> Result<Target, RuleError> {
        if self.words.next_if_eq(&"-1").is_some() {
            return Ok(Target::Drop);
        }
        let queue = self.number("action", u16::MAX.into())?;
        Ok(Target::Queue(RxQueueId(narrow(queue))))
    }

    fn address(&mut self, word: &str, family: Family) -> Result<Masked<u128>, RuleError> {
        let mut read = |word: &str| {
            let found = self.words.next().unwrap_or_default();
            let address = found.parse::<IpAddr>().ok();
            address.filter(|address| Family::of(*address) == family).ok_or_else(|| {
                let expected = match family {
                    Family::V4 => "an IPv4 address",
                    Family::V6 => "an IPv6 address",
                };
                wrong(word, found, expected)
            })
        };
        let value = bits(read(word)?);
        let ignored = if self.words.peek() == Some(&"m") {
            self.words.next();
            let found = self.words.next().unwrap_or_default();
            let mask = found.parse::<IpAddr>().ok();
            let mask = mask.filter(|mask| Family::of(*mask) == family);
            bits(mask.ok_or_else(|| wrong("m", found, "a mask of the address's family"))?)
        } else {
            0
        };
        Ok(Masked { value, mask: !ignored })
    }

    fn masked<T>(&mut self, word: &str) -> Result<Masked<T>, RuleError>
    where
        T: TryFrom<u64> + Default + std::ops::Not<Output = T>,
    {
        let most = u64::MAX >> (64 - 8 * size_of::<T>());
        let value = narrow(self.number(word, most)?);
        let ignored = match self.words.next_if_eq(&"m") {
            Some(_) => narrow(self.number("m", most)?),
            None => T::default(),
        };
        Ok(Masked { value, mask: !ignored })
    }

    fn number(&mut self, word: &str, most: u64) -> Result<u64, RuleError> {
        let found = self.words.next().unwrap_or_default();
        let read = match found.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => found.parse(),
        };
        let expected = match most {
            0xff => "a number from 0 to 255",
            0xffff => "a number from 0 to 65535",
            0xffff_ffff => "a number of at most 32 bits",
            _ => "a number of at most 64 bits",
        };
        read.ok().filter(|number| *number <= most).ok_or_else(|| wrong(word, found, expected))
    }

    fn end(&mut self) -> Result<(), RuleError> {
        match self.words.next() {
            None => Ok(()),
            Some(word) => Err(RuleError::Beginning(word.to_owned())),
        }
    }
}

fn flow_type(word: &str) -> Result<FlowType, RuleError> {
    const NAMES: [(&str, Option<u8>); 5] = [
        ("ip", None),
        ("tcp", Some(TCP)),
        ("udp", Some(UDP)),
        ("sctp", Some(SCTP)),
        ("esp", Some(ESP)),
    ];
    const FAMILIES: [(&str, Family); 2] = [("4", Family::V4), ("6", Family::V6)];
    for (suffix, family) in FAMILIES {
        let name = word.strip_suffix(suffix);
        if let Some((_, protocol)) = NAMES.iter().find(|(known, _)| Some(*known) == name) {
            return Ok(FlowType { family, protocol: *protocol });
        }
    }
    Err(RuleError::FlowType(word.to_owned()))
}

fn flex(user_defined: u64) -> Result<Flex, RuleError> {
    let offset = user_defined >> 16;
    if offset >= 64 || !offset.is_multiple_of(2) {
        return Err(RuleError::FlexOffset(offset));
    }
    Ok(Flex { offset: narrow(offset), value: narrow(user_defined & 0xffff) })
}

/// A number already checked against its type's range.
fn narrow<T: TryFrom<u64> + Default>(number: u64) -> T {
    T::try_from(number).unwrap_or_default()
}

fn wrong(word: &str, value: &str, expected: &'static str) -> RuleError {
    RuleError::Value { word: word.to_owned(), value: value.to_owned(), expected }
}
