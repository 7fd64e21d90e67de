//! A table in memory that treats packets as the kernel's does, for tests.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{RuleId, TableChange};
use super::field::{Base, Extension, Field, Meta};
use super::model::{Rule, RuleVerdict, Table};
use super::set::SetId;
use super::{Error, PacketFilter};

/// `RTN_UNICAST`: it has no addresses of its own.
const UNICAST: u32 = 1;

/// The table.
#[derive(Debug, Default)]
pub struct SimulatedTable {
    chains: BTreeMap<&'static str, Vec<(RuleId, Rule)>>,
    sets: BTreeMap<SetId, BTreeSet<Vec<u8>>>,
    last: u64,
    /// Number of times that all rules were replaced.
    pub replaced: usize,
}

/// A packet as the filter sees it: IPv4, or IPv6 whose only extension header is a routing or
/// fragment header.
#[derive(Clone, Copy, Debug)]
pub struct SamplePacket<'a> {
    /// From the IP header on.
    pub bytes: &'a [u8],
    /// Its mark.
    pub mark: u32,
    /// Index of the receiving device; 0 if none.
    pub came_by: u32,
}

impl SamplePacket<'_> {
    /// First bytes of a field; device names are empty.
    pub(super) fn load(&self, field: Field, length: usize) -> Option<Vec<u8>> {
        let is_v4 = *self.bytes.first()? >> 4 == 4;
        let is_routed = !is_v4 && *self.bytes.get(6)? == Extension::Routing as u8;
        let is_cut = !is_v4 && *self.bytes.get(6)? == Extension::Fragment as u8;
        let is_later_fragment = if is_v4 {
            (self.bytes.get(6)? & 0x1f, *self.bytes.get(7)?) != (0, 0)
        } else {
            is_cut && (*self.bytes.get(42)?, self.bytes.get(43)? & 0xf8) != (0, 0)
        };
        let (protocol, upper) = if is_v4 {
            (*self.bytes.get(9)?, usize::from(self.bytes[0] & 15) * 4)
        } else if is_routed {
            (*self.bytes.get(40)?, 48 + usize::from(*self.bytes.get(41)?) * 8)
        } else if is_cut {
            (*self.bytes.get(40)?, 48)
        } else {
            (*self.bytes.get(6)?, 40)
        };
        let at = |start: usize| Some(self.bytes.get(start..start + length)?.to_vec());
        match field {
            Field::Meta(Meta::Mark) => Some(self.mark.to_ne_bytes().to_vec()),
            Field::Meta(Meta::Interface) => Some(self.came_by.to_ne_bytes().to_vec()),
            Field::Meta(Meta::InterfaceName | Meta::LeavingName) => Some(vec![0; length]),
            Field::Meta(Meta::Family) => Some(vec![if is_v4 { 2 } else { 10 }]),
            Field::Meta(Meta::Protocol) => Some(vec![protocol]),
            Field::Header(Base::Network, offset) => at(offset.into()),
            Field::Header(Base::Transport, _) if is_later_fragment => None,
            Field::Header(Base::Transport, offset) => at(upper + usize::from(offset)),
            Field::Extension(Extension::Routing, offset) if is_routed => {
                at(40 + usize::from(offset))
            }
            Field::Has(Extension::Routing) => Some(vec![is_routed.into()]),
            Field::Extension(Extension::Fragment, offset) if is_cut => at(40 + usize::from(offset)),
            Field::Extension(Extension::Routing | Extension::Fragment, _) => None,
            Field::Has(Extension::Fragment) => Some(vec![is_cut.into()]),
            Field::DestinationKind => Some(UNICAST.to_ne_bytes().to_vec()),
        }
    }
}

impl SimulatedTable {
    /// Verdict on a packet that enters a chain, and the counter of the deciding rule.
    #[must_use]
    pub fn judge(
        &self,
        chain: &str,
        packet: &SamplePacket<'_>,
    ) -> (RuleVerdict, Option<&'static str>) {
        self.walk(chain, packet).unwrap_or((RuleVerdict::Accept, None))
    }

    /// Number of rules in a chain.
    #[must_use]
    pub fn rules_of(&self, chain: &str) -> usize {
        self.chains.get(chain).map_or(0, Vec::len)
    }

    /// Number of sets, and of keys in all of them.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (self.sets.len(), self.sets.values().map(BTreeSet::len).sum())
    }

    fn walk(
        &self,
        chain: &str,
        packet: &SamplePacket<'_>,
    ) -> Option<(RuleVerdict, Option<&'static str>)> {
        for (_id, rule) in self.chains.get(chain)? {
            if !self.is_met(rule, packet) {
                continue;
            }
            match rule.verdict {
                RuleVerdict::Accept | RuleVerdict::Drop | RuleVerdict::Mark(_) => {
                    return Some((rule.verdict, rule.counter));
                }
                RuleVerdict::Return => return None,
                RuleVerdict::Goto(other) => return self.walk(other, packet),
                RuleVerdict::Jump(other) => {
                    if let Some(judged) = self.walk(other, packet) {
                        return Some(judged);
                    }
                }
            }
        }
        None
    }

    fn is_met(&self, rule: &Rule, packet: &SamplePacket<'_>) -> bool {
        rule.conditions.iter().all(|condition| condition.is_met(packet))
            && rule.set_lookup.as_ref().is_none_or(|among| {
                let answers = among.questions.iter().map(|question| question.answer(packet));
                let key = answers.collect::<Option<Vec<_>>>().map(|answers| answers.concat());
                key.is_some_and(|key| self.set(among.set).contains(&key))
            })
    }

    /// Panics for a missing set, which the kernel would have refused.
    fn set(&self, set: SetId) -> &BTreeSet<Vec<u8>> {
        &self.sets[&set]
    }

    fn id(&mut self) -> RuleId {
        self.last += 1;
        RuleId(self.last)
    }

    fn make(&mut self, change: &TableChange) -> Option<RuleId> {
        match change {
            TableChange::AddRule { chain, before, rule } => {
                let id = self.id();
                let rules = self.chains.get_mut(chain).expect("the chain is there");
                let at = before.map_or(rules.len(), |before| place(rules, before));
                rules.insert(at, (id, rule.clone()));
                return Some(id);
            }
            TableChange::DeleteRule { chain, rule } => {
                let rules = self.chains.get_mut(chain).expect("the chain is there");
                rules.remove(place(rules, *rule));
            }
            TableChange::AddSet { set, .. } => {
                assert!(self.sets.insert(*set, BTreeSet::new()).is_none(), "{set} is there");
            }
            TableChange::DeleteSet { set } => {
                let mut rules = self.chains.values().flatten();
                let asks =
                    |rule: &Rule| rule.set_lookup.as_ref().is_some_and(|among| among.set == *set);
                assert!(!rules.any(|(_id, rule)| asks(rule)), "{set} is asked");
                assert!(self.sets.remove(set).is_some(), "{set} is not there");
            }
            TableChange::AddKeys { set, keys } => {
                let into = self.sets.get_mut(set).expect("the set is there");
                for key in keys.iter() {
                    assert!(into.insert(key.to_vec()), "{key:?} is in {set}");
                }
            }
            TableChange::DeleteKeys { set, keys } => {
                let from = self.sets.get_mut(set).expect("the set is there");
                for key in keys.iter() {
                    assert!(from.remove(key), "{key:?} is not in {set}");
                }
            }
        }
        None
    }
}

fn place(rules: &[(RuleId, Rule)], wanted: RuleId) -> usize {
    rules.iter().position(|(id, _rule)| *id == wanted).expect("the rule is there")
}

/// # Panics
/// Where the kernel would refuse.
impl PacketFilter for SimulatedTable {
    fn install(&mut self, table: &Table) -> Result<(), Error> {
        self.replace_rules(table)
    }

    fn replace_rules(&mut self, table: &Table) -> Result<(), Error> {
        self.replaced += 1;
        let keys = |set: &super::Set| (set.id, set.keys.iter().map(<[u8]>::to_vec).collect());
        self.sets = table.sets.iter().map(keys).collect();
        self.chains.clear();
        for chain in &table.chains {
            let rules = chain.rules.iter().map(|rule| (self.id(), rule.clone())).collect();
            self.chains.insert(chain.name, rules);
        }
        Ok(())
    }

    fn change(&mut self, _table: &str, changes: &[TableChange]) -> Result<Vec<RuleId>, Error> {
        Ok(changes.iter().filter_map(|change| self.make(change)).collect())
    }

    fn remove(&mut self, _table: &str) -> Result<(), Error> {
        self.sets.clear();
        self.chains.clear();
        Ok(())
    }

    fn has(&mut self, _table: &str) -> Result<bool, Error> {
        Ok(!self.chains.is_empty())
    }

    fn rules(&mut self, _table: &str, chain: &str) -> Result<Vec<RuleId>, Error> {
        let rules = self.chains.get(chain).into_iter().flatten();
        Ok(rules.map(|(id, _rule)| *id).collect())
    }
}
