//! The content of a table, counters, chains and rules, and its encoding.

use std::fmt;

use super::change::TableChange;
use super::condition::Condition;
use super::field;
use super::key_field::{REGISTER, SetKeyField};
use super::message::{Batch, Kind, expression};
use super::set::{Set, SetId};
use uxfrm_netlink_wire::{AttributeWriter, NetlinkFlags};

/// `NF_IP_PRI_RAW`: before connection tracking, destination NAT and ordinary filters.
const RAW: i32 = -300;

/// After `NF_IP_PRI_NAT_DST` and changes of marks (`NF_IP_PRI_MANGLE`): the packet is as it will be
/// routed.
const BEHIND_NAT: i32 = -90;

/// `NF_IP_PRI_RAW_BEFORE_DEFRAG`: before connection tracking reassembles (-400).
const BEFORE_DEFRAGMENTATION: i32 = -450;

/// `NFT_OBJECT_COUNTER`
const COUNTER: u32 = 1;

/// A table of family `inet`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its name, shorter than 256 bytes.
    pub name: String,
    /// Named counters.
    pub counters: Vec<&'static str>,
    /// Sets that rules use.
    pub sets: Vec<Set>,
    /// Chains, in any order.
    pub chains: Vec<Chain>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: &'static str,
    /// Hook by which packets enter; `None` for a chain that others jump to. A hook's chain accepts
    /// at its end.
    pub hook: Option<Hook>,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

/// Hooks, at raw priority unless noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// From any device, before connection tracking reassembles.
    Fragments,
    /// From any device, before routing.
    Prerouting,
    /// From any device, before routing and after destination NAT.
    BeforeRouting,
    /// To this host, after routing. IPv4 is reassembled here, IPv6 is not.
    Input,
    /// Through this host, after routing.
    Forward,
    /// From this host, after destination NAT: a changed mark reroutes the packet.
    Rerouting,
    /// To a device, from this host or through it, before fragmentation.
    Postrouting,
}

impl Hook {
    /// `NF_INET_*`
    const fn number(self) -> u32 {
        match self {
            Self::Fragments | Self::Prerouting | Self::BeforeRouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Rerouting => 3,
            Self::Postrouting => 4,
        }
    }

    const fn priority(self) -> i32 {
        match self {
            Self::Fragments => BEFORE_DEFRAGMENTATION,
            Self::Prerouting | Self::Input | Self::Forward | Self::Postrouting => RAW,
            Self::BeforeRouting | Self::Rerouting => BEHIND_NAT,
        }
    }

    /// The chain's type.
    const fn kind(self) -> &'static str {
        match self {
            Self::Rerouting => "route",
            Self::Fragments
            | Self::Prerouting
            | Self::BeforeRouting
            | Self::Input
            | Self::Forward
            | Self::Postrouting => "filter",
        }
    }
}

/// A rule: a packet that matches all conditions, and is in the set if there is one, is counted and
/// gets the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Conditions, all of which must match.
    pub conditions: Vec<Condition>,
    /// A set that must contain it as well.
    pub set_lookup: Option<SetLookup>,
    /// Name of the counter.
    pub counter: Option<&'static str>,
    /// The verdict.
    pub verdict: RuleVerdict,
}

/// A lookup of a packet's fields in a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetLookup {
    /// The fields; a packet that lacks one is not in the set.
    pub questions: Vec<SetKeyField>,
    /// The set.
    pub set: SetId,
}

/// Verdicts of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// Accepts it; other tables may still drop it.
    Accept,
    /// Drops it.
    Drop,
    /// Continues in another chain and returns at its end.
    Jump(&'static str),
    /// Continues in another chain without return.
    Goto(&'static str),
    /// Goes back to the chain that jumped here.
    Return,
    /// Sets these bits of its mark and accepts it.
    Mark(u32),
}

/// Subject of a transaction's message, for errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageSubject {
    Table,
    Counter(&'static str),
    Chain(&'static str),
    Set(SetId),
    /// Chain, and position in it from 1.
    Rule(&'static str, usize),
}

impl fmt::Display for MessageSubject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(out, "the table itself"),
            Self::Counter(name) => write!(out, "counter {name}"),
            Self::Chain(name) => write!(out, "chain {name}"),
            Self::Set(set) => write!(out, "{set}"),
            Self::Rule(chain, place) => write!(out, "rule {place} of chain {chain}"),
        }
    }
}

/// Owner of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ownership {
    /// Everybody.
    Shared = 0,
    /// Only the socket that created it; without owner it persists (`NFT_TABLE_F_OWNER |
    /// NFT_TABLE_F_PERSIST`, Linux 6.9).
    Own = 2 | 4,
}

impl Table {
    /// Encodes adding the table, which must not exist, its counters and chains.
    pub(super) fn describe(&self, ownership: Ownership, batch: &mut Batch) {
        batch.push(MessageSubject::Table, Kind::NewTable, NetlinkFlags::CREATE, |table| {
            table.text(1, &self.name);
            table.be32(2, ownership as u32);
        });
        for counter in &self.counters {
            batch.push(
                MessageSubject::Counter(counter),
                Kind::NewObject,
                NetlinkFlags::CREATE,
                |object| {
                    object.text(1, &self.name);
                    object.text(2, counter);
                    object.be32(3, COUNTER);
                    object.nest(4, |_| {});
                },
            );
        }
        self.chains.iter().for_each(|chain| self.describe_chain(chain, batch));
        self.describe_sets(batch);
        self.describe_rules(batch);
    }

    /// Encodes replacing all rules of the table, which must exist with the same chains; counters go
    /// on. Its sets replace `others`.
    pub(super) fn describe_change(&self, others: &[String], batch: &mut Batch) {
        self.describe_end(others, batch);
        self.describe_sets(batch);
        self.describe_rules(batch);
    }

    /// Encodes the same with its sets already present.
    pub(super) fn describe_swap(&self, others: &[String], batch: &mut Batch) {
        self.describe_end(others, batch);
        self.describe_rules(batch);
    }

    /// The changes that add its sets to a table without them.
    pub(super) fn filling(&self) -> Vec<TableChange> {
        let filling = |set: &Set| {
            let add = TableChange::AddSet { set: set.id, length: set.keys.length() };
            [add, TableChange::AddKeys { set: set.id, keys: set.keys.clone() }]
        };
        self.sets.iter().flat_map(filling).collect()
    }

    /// Encodes removing all rules and these sets.
    fn describe_end(&self, sets: &[String], batch: &mut Batch) {
        batch.push(MessageSubject::Table, Kind::DeleteRule, NetlinkFlags::empty(), |table| {
            table.text(1, &self.name)
        });
        for name in sets {
            batch.push(MessageSubject::Table, Kind::DeleteSet, NetlinkFlags::empty(), |set| {
                set.text(1, &self.name);
                set.text(2, name);
            });
        }
    }

    fn describe_sets(&self, batch: &mut Batch) {
        for set in &self.sets {
            set.id.add(&self.name, set.keys.length(), batch);
            set.id.elements(Kind::NewElements, &self.name, &set.keys, batch);
        }
    }

    fn describe_chain(&self, chain: &Chain, batch: &mut Batch) {
        batch.push(
            MessageSubject::Chain(chain.name),
            Kind::NewChain,
            NetlinkFlags::CREATE,
            |attributes| {
                attributes.text(1, &self.name);
                attributes.text(3, chain.name);
                if let Some(hook) = chain.hook {
                    attributes.nest(4, |at| {
                        at.be32(1, hook.number());
                        at.bytes(2, &hook.priority().to_be_bytes());
                    });
                    attributes.text(7, hook.kind());
                }
            },
        );
    }

    fn describe_rules(&self, batch: &mut Batch) {
        for chain in &self.chains {
            for (place, rule) in chain.rules.iter().enumerate() {
                let part = MessageSubject::Rule(chain.name, place + 1);
                batch.push(
                    part,
                    Kind::NewRule,
                    NetlinkFlags::CREATE | NetlinkFlags::APPEND,
                    |attributes| {
                        attributes.text(1, &self.name);
                        attributes.text(2, chain.name);
                        attributes.nest(4, |list| rule.describe(list));
                    },
                );
            }
        }
    }
}

impl Rule {
    pub(super) fn describe(&self, list: &mut AttributeWriter<'_>) {
        self.conditions.iter().for_each(|condition| condition.describe(list));
        if let Some(among) = &self.set_lookup {
            among.describe(list);
        }
        if let Some(counter) = self.counter {
            expression(list, "objref", |object| {
                object.be32(1, COUNTER);
                object.text(2, counter);
            });
        }
        if let RuleVerdict::Mark(bits) = self.verdict {
            field::set_mark_bits(bits, list);
        }
        expression(list, "immediate", |immediate| {
            immediate.be32(1, 0); // NFT_REG_VERDICT
            immediate.nest(2, |data| data.nest(2, |verdict| self.verdict.describe(verdict)));
        });
    }
}

impl SetLookup {
    fn describe(&self, list: &mut AttributeWriter<'_>) {
        let mut register = 0;
        for question in &self.questions {
            question.describe(register, list);
            register += question.size() / REGISTER;
        }
        expression(list, "lookup", |lookup| {
            lookup.text(1, &self.set.to_string());
            lookup.be32(2, 8); // NFT_REG32_00
        });
    }
}

impl RuleVerdict {
    fn describe(self, verdict: &mut AttributeWriter<'_>) {
        let (code, chain): (i32, _) = match self {
            Self::Drop => (0, None),
            Self::Accept | Self::Mark(_) => (1, None),
            Self::Jump(chain) => (-3, Some(chain)),
            Self::Goto(chain) => (-4, Some(chain)),
            Self::Return => (-5, None),
        };
        verdict.bytes(1, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.text(2, chain);
        }
    }
}
