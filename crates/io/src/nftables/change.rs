//! A change of a table that is there.

use super::message::{Batch, Kind};
use super::model::{MessageSubject, Rule};
use super::set::{Keys, SetId};
use crate::message::flag;

/// A rule in the kernel, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(pub u64);

/// A change of one rule or set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A rule is added to a chain: before another one, or as the last.
    AddRule {
        /// The chain's name.
        chain: &'static str,
        /// The rule behind it.
        before: Option<RuleId>,
        /// What it is.
        rule: Rule,
    },
    /// A rule goes.
    DeleteRule {
        /// The name of the chain that it is in.
        chain: &'static str,
        /// Which one.
        rule: RuleId,
    },
    /// A set is added, with nothing in it.
    AddSet {
        /// Its name.
        set: SetId,
        /// Bytes of its keys.
        length: usize,
    },
    /// A set goes, and what is in it. No rule asks it any more.
    DeleteSet {
        /// Its name.
        set: SetId,
    },
    /// Keys are put into a set.
    AddKeys {
        /// Its name.
        set: SetId,
        /// Those to put in, which are not there.
        keys: Keys,
    },
    /// Keys are taken out of a set.
    DeleteKeys {
        /// Its name.
        set: SetId,
        /// Those to take out, which are there.
        keys: Keys,
    },
}

impl Change {
    /// Tells it to the kernel; `place` is its place among the changes, from 1.
    pub(super) fn describe(&self, table: &str, place: usize, batch: &mut Batch) {
        match self {
            Self::AddRule { chain, before, rule } => add(table, chain, *before, rule, place, batch),
            Self::DeleteRule { chain, rule: RuleId(handle) } => {
                batch.push(MessageSubject::Rule(chain, place), Kind::DeleteRule, 0, |attributes| {
                    attributes.text(1, table);
                    attributes.text(2, chain);
                    attributes.long(3, *handle);
                });
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
    let place_flag = if before.is_none() { flag::APPEND } else { 0 };
    let flags = flag::CREATE | flag::ECHO | place_flag;
    batch.push(MessageSubject::Rule(chain, place), Kind::NewRule, flags, |attributes| {
        attributes.text(1, table);
        attributes.text(2, chain);
        attributes.nest(4, |list| rule.describe(list));
        if let Some(RuleId(handle)) = before {
            attributes.long(6, handle);
        }
    });
}

/// How many rules are added.
pub(super) fn new_rules(changes: &[Change]) -> usize {
    changes.iter().filter(|change| matches!(change, Change::AddRule { .. })).count()
}

/// Changes in two parts, of about the same length, to be made one after the other; `None` when there is nothing to part.
pub(super) fn halves(changes: &[Change]) -> Option<[Vec<Change>; 2]> {
    match changes {
        [] => None,
        [Change::AddKeys { set, keys }] => {
            let part = |keys| vec![Change::AddKeys { set: *set, keys }];
            keys.halves().map(|halves| halves.map(part))
        }
        [Change::DeleteKeys { set, keys }] => {
            let part = |keys| vec![Change::DeleteKeys { set: *set, keys }];
            keys.halves().map(|halves| halves.map(part))
        }
        [_one] => None,
        several => {
            let (first, second) = several.split_at(several.len() / 2);
            Some([first.to_vec(), second.to_vec()])
        }
    }
}
