//! Which rules of the kernel are which policy's: so that a policy comes or goes by its own rules alone.

use std::collections::BTreeMap;

use uxfrm_engine::{Direction, Place, PolicyChange, PolicyEntry, PolicyKind, Spd};
use uxfrm_io::nftables::{Error, Nftables, Rule, RuleChange, RuleId};

use super::rules;

/// The rules of all policies in the guard's table.
#[derive(Debug, Default)]
pub(super) struct Placed {
    chains: Vec<Chain>,
}

/// The policies of one chain.
#[derive(Debug)]
struct Chain {
    direction: Direction,
    kind: PolicyKind,
    name: &'static str,
    policies: BTreeMap<Place, Vec<RuleId>>,
    /// The rule behind those of all policies, if there is one.
    behind: Option<RuleId>,
}

impl Placed {
    /// Asks the kernel for the rules of a table that was made for `spd`. `None` when they are not those.
    pub(super) fn learn(
        nftables: &mut Nftables,
        table: &str,
        spd: &Spd,
    ) -> Result<Option<Self>, Error> {
        let mut chains = Vec::new();
        for (direction, kind) in rules::CHAINS {
            let name = rules::chain(direction, kind);
            let known = nftables.rules(table, name)?;
            let Some(chain) = Chain::learn(direction, kind, name, &known, spd) else {
                return Ok(None);
            };
            chains.push(chain);
        }
        Ok(Some(Self { chains }))
    }

    /// Changes the rules in the kernel at once; of `changes` one at the most adds a policy.
    ///
    /// # Errors
    /// The kernel's; then it is not known any more which rules are there.
    pub(super) fn change<'a>(
        &mut self,
        nftables: &mut Nftables,
        table: &str,
        changes: impl Iterator<Item = &'a PolicyChange>,
    ) -> Result<(), Error> {
        let mut asked = Vec::new();
        let mut new = None;
        for change in changes {
            match change {
                PolicyChange::Added(entry) => new = Some(entry),
                PolicyChange::Removed(entry) => {
                    let Some(chain) = self.chain(entry) else { continue };
                    let gone = chain.policies.remove(&entry.place()).unwrap_or_default();
                    let chain = chain.name;
                    asked.extend(gone.into_iter().map(|rule| RuleChange::Delete { chain, rule }));
                }
            }
        }
        let new_rules: Vec<Rule> =
            new.map(|entry| rules::of_policy(&entry.policy())).unwrap_or_default();
        if let Some(chain) = new.and_then(|entry| Some((entry, self.chain(entry)?))) {
            let (entry, chain) = chain;
            let before = chain.behind(entry.place());
            let chain = chain.name;
            asked.extend(new_rules.iter().map(|rule| RuleChange::Add { chain, before, rule }));
        }
        let made = nftables.change_rules(table, &asked)?;
        if let Some(entry) = new
            && let Some(chain) = self.chain(entry)
        {
            chain.policies.insert(entry.place(), made);
        }
        Ok(())
    }

    fn chain(&mut self, entry: &PolicyEntry) -> Option<&mut Chain> {
        let (direction, kind) = (entry.direction(), entry.kind());
        self.chains.iter_mut().find(|chain| (chain.direction, chain.kind) == (direction, kind))
    }
}

impl Chain {
    fn learn(
        direction: Direction,
        kind: PolicyKind,
        name: &'static str,
        known: &[RuleId],
        spd: &Spd,
    ) -> Option<Self> {
        let policies: Vec<_> = rules::of_chain(spd, direction, kind)
            .into_iter()
            .map(|entry| (entry.place(), rules::of_policy(&entry.policy()).len()))
            .collect();
        let count: usize = policies.iter().map(|(_, rules)| rules).sum();
        // Sub policies stand between what is exempt and the jump to the main ones, which the default may follow.
        let behind = match kind {
            PolicyKind::Main => 0,
            PolicyKind::Sub => rules::tail(spd, direction),
        };
        let end = known.len().checked_sub(behind)?;
        let mut rest = &known[end.checked_sub(count)?..];
        let mut placed = BTreeMap::new();
        for (place, rules) in policies {
            let (own, others) = rest.split_at_checked(rules)?;
            placed.insert(place, own.to_vec());
            rest = others;
        }
        let first_behind = rest.first().copied();
        Some(Self { direction, kind, name, policies: placed, behind: first_behind })
    }

    /// The rule that one at `place` has to stand before; `None` for the chain's end.
    fn behind(&self, place: Place) -> Option<RuleId> {
        let later = self.policies.range(place..).find_map(|(_, rules)| rules.first().copied());
        later.or(self.behind)
    }
}
