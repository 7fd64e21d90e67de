//! Routing policy rules.

use std::fmt;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::rule::{RuleAction as Action, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use uxfrm_packet::Version;

use super::{Error, RoutePrefix, Rtnetlink};

/// The kernel's input device for the host's own packets.
const LOOPBACK: &str = "lo";

/// Mark selector of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirewallMark {
    /// Any mark.
    Any,
    /// Mark equals the first number under the mask of the second.
    Is(u32, u32),
    /// Mark differs from the first number under the mask of the second (`not fwmark`).
    IsNot(u32, u32),
}

/// Origin selector of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOrigin {
    /// Any origin.
    Any,
    /// The host itself (`iif lo`).
    Host,
}

/// A rule: packets of a version that match are looked up in a table, or skip rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutingRule {
    /// IPv4 or IPv6.
    pub version: Version,
    /// Selects by mark.
    pub mark: FirewallMark,
    /// Selects by origin. A rule for another input device is read as one for all.
    pub sender: RuleOrigin,
    /// Selects by source; a packet without source address yet matches only `/0`.
    pub source: Option<RoutePrefix>,
    /// Selects by destination.
    pub destination: Option<RoutePrefix>,
    /// Its action.
    pub action: RuleAction,
    /// Lower comes first.
    pub priority: u32,
    /// Ignores routes with a prefix this short or shorter (`suppress_prefixlength`).
    pub suppress_prefix_length: Option<u32>,
}

/// Actions of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Looks them up in a table.
    Lookup(u32),
    /// Continues at the rule of this larger priority.
    Goto(u32),
}

impl RoutingRule {
    /// The table that is looked up.
    #[must_use]
    pub const fn table(&self) -> Option<u32> {
        match self.action {
            RuleAction::Lookup(table) => Some(table),
            RuleAction::Goto(_) => None,
        }
    }
}

impl fmt::Display for RoutingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "priority {}", self.priority)?;
        match self.mark {
            FirewallMark::Any => {}
            FirewallMark::Is(mark, mask) => write!(f, " fwmark {mark:#x}/{mask:#x}")?,
            FirewallMark::IsNot(mark, mask) => write!(f, " not fwmark {mark:#x}/{mask:#x}")?,
        }
        if self.sender == RuleOrigin::Host {
            write!(f, " iif {LOOPBACK}")?;
        }
        self.source.map_or(Ok(()), |source| write!(f, " from {source}"))?;
        self.destination.map_or(Ok(()), |destination| write!(f, " to {destination}"))?;
        match self.action {
            RuleAction::Lookup(table) => write!(f, " lookup {table}"),
            RuleAction::Goto(priority) => write!(f, " goto {priority}"),
        }
    }
}

impl Rtnetlink {
    /// Adds a rule.
    ///
    /// # Errors
    /// [`Error::Exists`] when there is one like it.
    pub fn add_rule(&mut self, rule: &RoutingRule) -> Result<(), Error> {
        let message = RouteNetlinkMessage::NewRule(describe(rule));
        self.change(&format!("rule {rule}"), NLM_F_CREATE | NLM_F_EXCL, message)
    }

    /// Deletes a rule.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is none like it.
    pub fn delete_rule(&mut self, rule: &RoutingRule) -> Result<(), Error> {
        let message = RouteNetlinkMessage::DelRule(describe(rule));
        self.change(&format!("delete rule {rule}"), 0, message)
    }

    /// All rules of a version that look up a table or go to another rule, in order.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rules(&mut self, version: Version) -> Result<Vec<RoutingRule>, Error> {
        let mut message = RuleMessage::default();
        message.header.family = family(version);
        let found = self.dump("rules", RouteNetlinkMessage::GetRule(message))?;
        Ok(found.into_iter().filter_map(|answer| read(version, answer)).collect())
    }
}

fn family(version: Version) -> AddressFamily {
    match version {
        Version::V4 => AddressFamily::Inet,
        Version::V6 => AddressFamily::Inet6,
    }
}

fn describe(rule: &RoutingRule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = family(rule.version);
    match rule.action {
        RuleAction::Lookup(table) => {
            message.header.action = Action::ToTable;
            message.header.table = u8::try_from(table).unwrap_or(0);
            message.attributes.push(RuleAttribute::Table(table));
        }
        RuleAction::Goto(priority) => {
            message.header.action = Action::Goto;
            message.attributes.push(RuleAttribute::Goto(priority));
        }
    }
    if rule.sender == RuleOrigin::Host {
        message.attributes.push(RuleAttribute::Iifname(LOOPBACK.to_owned()));
    }
    if let Some(source) = rule.source {
        message.header.src_len = source.length();
        message.attributes.push(RuleAttribute::Source(source.address()));
    }
    if let Some(destination) = rule.destination {
        message.header.dst_len = destination.length();
        message.attributes.push(RuleAttribute::Destination(destination.address()));
    }
    message.attributes.push(RuleAttribute::Priority(rule.priority));
    message.attributes.extend(rule.suppress_prefix_length.map(RuleAttribute::SuppressPrefixLen));
    match rule.mark {
        FirewallMark::Any => {}
        FirewallMark::Is(mark, mask) => {
            message.attributes.extend([RuleAttribute::FwMark(mark), RuleAttribute::FwMask(mask)]);
        }
        FirewallMark::IsNot(mark, mask) => {
            message.header.flags = RuleFlags::Invert;
            message.attributes.extend([RuleAttribute::FwMark(mark), RuleAttribute::FwMask(mask)]);
        }
    }
    message
}

pub(super) fn read(version: Version, answer: RouteNetlinkMessage) -> Option<RoutingRule> {
    let RouteNetlinkMessage::NewRule(message) = answer else { return None };
    let (mut mark, mut mask, mut suppress) = (None, u32::MAX, None);
    let (mut source, mut destination, mut target) = (None, None, None);
    let mut sender = RuleOrigin::Any;
    let (mut table, mut priority) = (u32::from(message.header.table), 0);
    for attribute in message.attributes {
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the library's enum is open; the rest is not of use"
        )]
        match attribute {
            RuleAttribute::Iifname(name) if name == LOOPBACK => sender = RuleOrigin::Host,
            RuleAttribute::FwMark(value) => mark = Some(value),
            RuleAttribute::FwMask(value) => mask = value,
            RuleAttribute::Table(value) => table = value,
            RuleAttribute::Priority(value) => priority = value,
            RuleAttribute::Goto(value) => target = Some(value),
            RuleAttribute::Source(address) => {
                source = RoutePrefix::new(address, message.header.src_len);
            }
            RuleAttribute::Destination(address) => {
                destination = RoutePrefix::new(address, message.header.dst_len);
            }
            // The kernel's -1 stands for none.
            RuleAttribute::SuppressPrefixLen(value) => {
                suppress = (value != u32::MAX).then_some(value)
            }
            _ => {}
        }
    }
    let mark = match (mark, message.header.flags.contains(RuleFlags::Invert)) {
        (Some(mark), false) => FirewallMark::Is(mark, mask),
        (Some(mark), true) => FirewallMark::IsNot(mark, mask),
        (None, _) => FirewallMark::Any,
    };
    let action = if message.header.action == Action::ToTable {
        RuleAction::Lookup(table)
    } else if message.header.action == Action::Goto {
        RuleAction::Goto(target?)
    } else {
        return None;
    };
    let suppress_prefix_length = suppress;
    Some(RoutingRule {
        version,
        mark,
        sender,
        source,
        destination,
        action,
        priority,
        suppress_prefix_length,
    })
}
