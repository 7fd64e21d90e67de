//! What a table has: counters, chains, rules; and how each is told to the kernel.

use std::fmt;

use super::condition::{Condition, expression};
use super::message::{Batch, Kind};
use crate::message::{Attributes, flag};

/// `NF_IP_PRI_RAW`: before connection tracking, destination NAT and ordinary filters.
const RAW: i32 = -300;

/// `NFT_OBJECT_COUNTER`
const COUNTER: u32 = 1;

/// A table of family `inet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name, shorter than 256 bytes.
    pub name: String,
    /// Named counters.
    pub counters: Vec<&'static str>,
    /// Chains, in any order.
    pub chains: Vec<Chain>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// Where packets enter it; `None` for one that other chains lead to. What passes a hook's chain to its end is accepted.
    pub hook: Option<Hook>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// Where packets enter a chain: at raw priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// From any device, before routing.
    Prerouting = 0,
    /// To this host, after routing. IPv4 is reassembled here, IPv6 is not.
    Input = 1,
    /// Through this host, after routing.
    Forward = 2,
    /// To a device, from this host or through it: before what is too long is cut.
    Postrouting = 4,
}

/// A rule: a packet that meets all conditions is counted and gets the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it must meet.
    pub conditions: Vec<Condition>,
    /// The table's counter that counts it.
    pub counter: Option<&'static str>,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// A rule in the kernel, by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(pub(super) u64);

/// A change of one rule in a table that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleChange<'a> {
    /// A rule is added to a chain: before another one, or as the last.
    Add {
        /// The chain's name.
        chain: &'static str,
        /// The rule behind it.
        before: Option<RuleId>,
        /// What it is.
        rule: &'a Rule,
    },
    /// A rule goes.
    Delete {
        /// The name of the chain that it is in.
        chain: &'static str,
        /// Which one.
        rule: RuleId,
    },
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes; other tables may still drop it.
    Accept,
    /// It is dropped.
    Drop,
    /// It walks through another chain and comes back from its end.
    Jump(&'static str),
    /// It walks through another chain and does not come back.
    Goto(&'static str),
}

/// What a message of a transaction is about: for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Table,
    Counter(&'static str),
    Chain(&'static str),
    /// Its place in its chain, from 1.
    Rule(&'static str, usize),
}

impl fmt::Display for Part {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(out, "the table itself"),
            Self::Counter(name) => write!(out, "counter {name}"),
            Self::Chain(name) => write!(out, "chain {name}"),
            Self::Rule(chain, place) => write!(out, "rule {place} of chain {chain}"),
        }
    }
}

/// Who may change a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// Everybody.
    Shared = 0,
    /// Only the socket that made it; without that it stays (`NFT_TABLE_F_OWNER | NFT_TABLE_F_PERSIST`, Linux 6.9).
    Own = 2 | 4,
}

impl Table {
    /// Adds the table, its counters and chains; it must not be there.
    pub(super) fn describe(&self, ownership: Ownership, batch: &mut Batch) {
        batch.push(Part::Table, Kind::NewTable, flag::CREATE, |table| {
            table.text(1, &self.name);
            table.number(2, ownership as u32);
        });
        for counter in &self.counters {
            batch.push(Part::Counter(counter), Kind::NewObject, flag::CREATE, |object| {
                object.text(1, &self.name);
                object.text(2, counter);
                object.number(3, COUNTER);
                object.nest(4, |_| {});
            });
        }
        self.chains.iter().for_each(|chain| self.describe_chain(chain, batch));
        self.describe_rules(batch);
    }

    /// Replaces all rules of the table, which must be there with the same chains; counters go on.
    pub(super) fn describe_change(&self, batch: &mut Batch) {
        batch.push(Part::Table, Kind::DeleteRule, 0, |table| table.text(1, &self.name));
        self.describe_rules(batch);
    }

    fn describe_chain(&self, chain: &Chain, batch: &mut Batch) {
        batch.push(Part::Chain(chain.name), Kind::NewChain, flag::CREATE, |attributes| {
            attributes.text(1, &self.name);
            attributes.text(3, chain.name);
            if let Some(hook) = chain.hook {
                attributes.nest(4, |at| {
                    at.number(1, hook as u32);
                    at.bytes(2, &RAW.to_be_bytes());
                });
                attributes.text(7, "filter");
            }
        });
    }

    fn describe_rules(&self, batch: &mut Batch) {
        for chain in &self.chains {
            for (place, rule) in chain.rules.iter().enumerate() {
                let part = Part::Rule(chain.name, place + 1);
                batch.push(part, Kind::NewRule, flag::CREATE | flag::APPEND, |attributes| {
                    attributes.text(1, &self.name);
                    attributes.text(2, chain.name);
                    attributes.nest(4, |list| rule.describe(list));
                });
            }
        }
    }
}

impl RuleChange<'_> {
    /// Tells it to the kernel; `place` is its place among the changes, from 1.
    pub(super) fn describe(&self, table: &str, place: usize, batch: &mut Batch) {
        match *self {
            Self::Add { chain, before, rule } => {
                let place_flag = if before.is_none() { flag::APPEND } else { 0 };
                let flags = flag::CREATE | flag::ECHO | place_flag;
                batch.push(Part::Rule(chain, place), Kind::NewRule, flags, |attributes| {
                    attributes.text(1, table);
                    attributes.text(2, chain);
                    attributes.nest(4, |list| rule.describe(list));
                    if let Some(RuleId(handle)) = before {
                        attributes.long(6, handle);
                    }
                });
            }
            Self::Delete { chain, rule: RuleId(handle) } => {
                batch.push(Part::Rule(chain, place), Kind::DeleteRule, 0, |attributes| {
                    attributes.text(1, table);
                    attributes.text(2, chain);
                    attributes.long(3, handle);
                });
            }
        }
    }
}

impl Rule {
    fn describe(&self, list: &mut Attributes<'_>) {
        self.conditions.iter().for_each(|condition| condition.describe(list));
        if let Some(counter) = self.counter {
            expression(list, "objref", |object| {
                object.number(1, COUNTER);
                object.text(2, counter);
            });
        }
        expression(list, "immediate", |immediate| {
            immediate.number(1, 0); // NFT_REG_VERDICT
            immediate.nest(2, |data| data.nest(2, |verdict| self.verdict.describe(verdict)));
        });
    }
}

impl Verdict {
    fn describe(self, verdict: &mut Attributes<'_>) {
        let (code, chain): (i32, _) = match self {
            Self::Drop => (0, None),
            Self::Accept => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
        };
        verdict.bytes(1, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.text(2, chain);
        }
    }
}
