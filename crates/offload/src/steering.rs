//! Receive queue of a decrypted packet: flow director rules first, else receive side scaling.
//!
//! Rules are matched by location, as in ethtool (`RX_CLS_LOC_*`): the lowest match decides.

use std::collections::BTreeMap;

use grammar::{RuleCommand, RuleError};
use rule::SteeringRuleId;
use target::Target;
use toeplitz::INDIRECTIONS;
use tuple::Tuple;

use crate::SteeringLimits;
pub use rule::FlowRule;
pub use toeplitz::RssKey;

pub(crate) mod grammar;
pub(crate) mod rule;
pub(crate) mod target;
mod text;
mod toeplitz;
pub(crate) mod tuple;

/// A receive queue, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RxQueueId(pub u16);

/// The rules and the hash of one device.
#[derive(Clone, Debug)]
pub struct Steering {
    limits: SteeringLimits,
    rules: BTreeMap<SteeringRuleId, FlowRule>,
    key: RssKey,
    indirections: [RxQueueId; INDIRECTIONS],
}

impl Steering {
    /// No rules; flows are distributed evenly over all queues.
    #[must_use]
    pub fn new(limits: SteeringLimits, key: RssKey) -> Self {
        let queues = (0..limits.queues.max(1)).cycle();
        let mut indirections = [RxQueueId(0); INDIRECTIONS];
        for (place, queue) in indirections.iter_mut().zip(queues) {
            *place = RxQueueId(queue);
        }
        Self { limits, rules: BTreeMap::new(), key, indirections }
    }

    /// Runs an `ethtool -U` command: adds a rule and returns its location, or deletes one.
    ///
    /// # Errors
    /// A [`RuleError`], with nothing changed.
    pub fn change(&mut self, command: RuleCommand) -> Result<SteeringRuleId, RuleError> {
        match command {
            RuleCommand::Delete(place) => {
                self.rules.remove(&place).map(|_| place).ok_or(RuleError::NoRule(place))
            }
            RuleCommand::Add(rule, wanted) => {
                self.check(&rule)?;
                let place = self.place(wanted)?;
                self.rules.insert(place, rule);
                Ok(place)
            }
        }
    }

    /// Rules by location (`ethtool -u`).
    pub fn rules(&self) -> impl Iterator<Item = (SteeringRuleId, &FlowRule)> {
        self.rules.iter().map(|(place, rule)| (*place, rule))
    }

    /// Offset of the flex field from the start of the frame; `None` while no rule matches it.
    #[must_use]
    pub fn flex_offset(&self) -> Option<u16> {
        self.rules.values().find_map(|rule| rule.flex().map(|flex| flex.offset))
    }

    /// Target of a packet.
    #[must_use]
    pub fn steer(&self, tuple: &Tuple) -> Target {
        self.steer_among(tuple, tuple)
    }

    /// As [`Steering::steer`], but without a matching rule by the hash of `group`.
    pub(crate) fn steer_among(&self, tuple: &Tuple, group: &Tuple) -> Target {
        let rule = self.rules.values().find(|rule| rule.fits(tuple));
        rule.map_or_else(|| Target::Queue(self.scale(group)), FlowRule::target)
    }

    fn scale(&self, tuple: &Tuple) -> RxQueueId {
        let hash = self.key.hash(tuple);
        // The table has 128 places, so the low seven bits are one of them.
        self.indirections[hash as usize % INDIRECTIONS]
    }

    fn check(&self, rule: &FlowRule) -> Result<(), RuleError> {
        if let Target::Queue(queue) = rule.target()
            && queue.0 >= self.limits.queues
        {
            return Err(RuleError::NoQueue(queue.0, self.limits.queues - 1));
        }
        let Some(flex) = rule.flex() else { return Ok(()) };
        if !self.limits.flex_field {
            return Err(RuleError::NoFlexField);
        }
        match self.flex_offset() {
            Some(offset) if offset != flex.offset => Err(RuleError::OtherFlexOffset(offset)),
            Some(_) | None => Ok(()),
        }
    }

    /// Without a requested location the highest free one, as in ethtool, so that rules with one
    /// come first.
    fn place(&self, wanted: Option<SteeringRuleId>) -> Result<SteeringRuleId, RuleError> {
        let end = u32::try_from(self.limits.rules).unwrap_or(u32::MAX);
        match wanted {
            Some(place) if place.0 >= end => Err(RuleError::NoPlace(place, end.saturating_sub(1))),
            Some(place) => Ok(place),
            None => (0..end)
                .rev()
                .map(SteeringRuleId)
                .find(|place| !self.rules.contains_key(place))
                .ok_or(RuleError::Full(end)),
        }
    }
}

#[cfg(test)]
mod tests;
