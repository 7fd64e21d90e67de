//! Changes of an existing table.

use super::message::{Batch, Kind};
use super::model::{MessageSubject, Rule};
use super::set::{SetId, SetKeys};
use uxfrm_netlink_wire::NetlinkFlags;

/// A rule in the kernel, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(pub u64);

/// A change of one rule or set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// Adds a rule to a chain, before another one or at the end.
    AddRule {
        /// The chain's name.
        chain: &'static str,
        /// The rule to insert before.
        before: Option<RuleId>,
        /// The rule.
        rule: Rule,
    },
    /// Deletes a rule.
    DeleteRule {
        /// The name of its chain.
        chain: &'static str,
        /// The rule.
        rule: RuleId,
    },
    /// Adds an empty set.
    AddSet {
        /// Its name.
        set: SetId,
        /// Bytes of its keys.
        length: usize,
    },
    /// Deletes a set with its keys. No rule may use it.
    DeleteSet {
        /// Its name.
        set: SetId,
    },
    /// Adds keys to a set.
    AddKeys {
        /// Its name.
        set: SetId,
        /// Keys that are not in it.
        keys: SetKeys,
    },
    /// Removes keys from a set.
    DeleteKeys {
        /// Its name.
        set: SetId,
        /// Keys that are in it.
        keys: SetKeys,
    },
}

impl TableChange {
    /// Encodes the change; `place` is its position among the changes, from 1.
    pub(super) fn describe(&self, table: &str, place: usize, batch: &mut Batch) {
        match self {
            Self::AddRule { chain, before, rule } => add(table, chain, *before, rule, place, batch),
            Self::DeleteRule { chain, rule: RuleId(handle) } => {
                batch.push(
                    MessageSubject::Rule(chain, place),
                    Kind::DeleteRule,
                    NetlinkFlags::empty(),
                    |attributes| {
                        attributes.text(1, table);
                        attributes.text(2, chain);
                        attributes.be64(3, *handle);
                    },
                );
            }
            Self::AddSet { set, length } => set.add(table, *length, batch),
            Self::DeleteSet { set } => set.delete(table, batch),
            Self::AddKeys { set, keys } => set.elements(Kind::NewElements, table, keys, batch),
            Self::DeleteKeys { set, keys } => {
                set.elements(Kind::DeleteElements, table, keys, batch);
            }
        }
    }
}

fn add(
    table: &str,
    chain: &'static str,
    before: Option<RuleId>,
    rule: &Rule,
    place: usize,
    batch: &mut Batch,
) {
    let place_flag = if before.is_none() { NetlinkFlags::APPEND } else { NetlinkFlags::empty() };
    let flags = NetlinkFlags::CREATE | NetlinkFlags::ECHO | place_flag;
    batch.push(MessageSubject::Rule(chain, place), Kind::NewRule, flags, |attributes| {
        attributes.text(1, table);
        attributes.text(2, chain);
        attributes.nest(4, |list| rule.describe(list));
        if let Some(RuleId(handle)) = before {
            attributes.be64(6, handle);
        }
    });
}

/// Number of added rules.
pub(super) fn new_rules(changes: &[TableChange]) -> usize {
    changes.iter().filter(|change| matches!(change, TableChange::AddRule { .. })).count()
}

/// Splits changes in two parts of similar length, to be applied in order; `None` if impossible.
pub(super) fn halves(changes: &[TableChange]) -> Option<[Vec<TableChange>; 2]> {
    match changes {
        [] => None,
        [TableChange::AddKeys { set, keys }] => {
            let part = |keys| vec![TableChange::AddKeys { set: *set, keys }];
            keys.halves().map(|halves| halves.map(part))
        }
        [TableChange::DeleteKeys { set, keys }] => {
            let part = |keys| vec![TableChange::DeleteKeys { set: *set, keys }];
            keys.halves().map(|halves| halves.map(part))
        }
        [_one] => None,
        several => {
            let (first, second) = several.split_at(several.len() / 2);
            Some([first.to_vec(), second.to_vec()])
        }
    }
}
