//! All policies as the guard's table has them.
//!
//! Consecutive policies that do the same with packets are a *run*: which of them decides does not
//! matter. In a run those of one *shape*, which ask the same of packets but want other answers, are
//! a *group*: a few rules, or one rule and a set of the answers. So policies are told the kernel by
//! as many rules as there are shapes, mostly one or two, and one comes or goes by a key of a set.
//! One that parts a run has all sorted anew.
//!
//! The kernel makes each transaction true at once, but a packet may be on its way: it meets the
//! rules of before, and further on sets of afterwards. So a change is made in steps, of which none
//! mixes policies that drop and that let pass: drops come, passes come, passes go, drops go.
//! Whichever part of a step a packet sees, it passes only if it would have before or will
//! afterwards.

use std::sync::Arc;

use uxfrm_engine::{PolicyChange, PolicyEntry, PolicyKind, Spd};
use uxfrm_io::nftables::{Error, PacketFilter, Rule, RuleId, Set, TableChange};

use super::{
    chain::{Chain, PlacementError, PolicyEffect, RunSplit, Sorted},
    chain_kind::ChainKind,
    conditions, default_rules,
    split_run::PoliciesBefore,
};

/// The table's contents that follow the policies.
#[derive(Debug)]
pub(super) struct RulesetState {
    parts: &'static [ChainKind],
    chains: Vec<Chain>,
    out: OutgoingRules,
    next: u32,
}

/// A change as one part has to follow it.
#[derive(Clone, Copy, Debug)]
struct PartChange<'a> {
    change: &'a PolicyChange,
    part: ChainKind,
}

impl PartChange<'_> {
    const fn entry(&self) -> &Arc<PolicyEntry> {
        let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = self.change;
        entry
    }

    fn of(&self) -> (ChainKind, PolicyKind) {
        (self.part, self.entry().kind())
    }
}

/// Why changes can't be sorted in. Nothing has changed unless something was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementFailure {
    /// A policy parts a run: the number of its change, where one that several parts follow counts
    /// for each.
    Parted(usize),
    /// A policy is not where it was thought to be: all has to be sorted anew.
    Lost,
}

/// Whether outbound policies are in the table.
#[derive(Clone, Copy, Debug)]
pub(super) enum OutgoingRules {
    /// All of them.
    Guarded,
    /// None: too many rules. It is looked at again after some changes, or when there are that few.
    Left { alternatives: Alternatives, changes: usize },
}

/// How many rules policies `out` need at the most if each has its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Alternatives {
    out: usize,
    way: usize,
}

impl Alternatives {
    /// Those of one part.
    const fn of(&mut self, part: ChainKind) -> Option<&mut usize> {
        match part {
            ChainKind::Out => Some(&mut self.out),
            ChainKind::Way => Some(&mut self.way),
            ChainKind::In
            | ChainKind::Forward
            | ChainKind::WholeIn
            | ChainKind::WholeForward
            | ChainKind::QuotedIn
            | ChainKind::QuotedForward
            | ChainKind::RedirectedForward => None,
        }
    }

    /// Those that a packet may meet in one place.
    fn most(self) -> usize {
        self.out.max(self.way)
    }
}

/// What sorting a change in has done.
#[derive(Debug)]
pub(super) enum ChangeResult {
    Nothing,
    /// The policies `out` are left out; the count before.
    Counted(OutgoingRules),
    Sorted(Sorted),
}

/// A step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Policies come.
    Come(PolicyEffect),
    /// Policies go.
    Go(PolicyEffect),
}

/// The steps of a change, in their order.
pub(super) const STEPS: [Step; 4] = [
    Step::Come(PolicyEffect::Drops),
    Step::Come(PolicyEffect::Passes),
    Step::Go(PolicyEffect::Passes),
    Step::Go(PolicyEffect::Drops),
];

const KINDS: [PolicyKind; 2] = [PolicyKind::Sub, PolicyKind::Main];

/// With more rules `out` each plain packet would go along too many.
pub(super) const MANY: usize = 10_000;

/// Those that are left out come back when they are so few. Not sooner: each time all is told anew.
pub(super) const FEWER: usize = MANY - MANY / 10;

/// How many runs may be left that do what their neighbour does.
const NEEDLESS: usize = 16;

impl RulesetState {
    /// That of the policies in `spd`, and the sets that are to be made. Their names begin with
    /// `next`. More rules `out` than `most` are left out.
    pub(super) fn of(
        spd: &Spd,
        parts: &'static [ChainKind],
        next: u32,
        most: usize,
    ) -> (Self, Vec<Set>) {
        let of_part = |part: &ChainKind| KINDS.map(|kind| Chain::new(*part, kind));
        let chains = parts.iter().flat_map(of_part).collect();
        let mut layout = Self { parts, chains, out: OutgoingRules::Guarded, next };
        let mut entries: Vec<_> = spd.iter().collect();
        entries.sort_unstable_by_key(|entry| entry.precedence());
        for entry in entries {
            let policy = entry.policy();
            for chain in layout.chains.iter_mut().filter(|chain| chain.is_about(entry)) {
                let (outcome, alternatives) = conditions::of_policy(chain.part, &policy);
                if !alternatives.is_empty() {
                    chain.append(entry.precedence(), outcome, &alternatives);
                }
            }
        }
        let mut sets = layout.settle(|part| !part.is_of_out());
        let of_out = layout.settle(ChainKind::is_of_out);
        if layout.rules_out() > most {
            layout.leave_out(spd);
        } else {
            sets.extend(of_out);
        }
        (layout, sets)
    }

    /// That of no policies.
    pub(super) fn empty(parts: &'static [ChainKind]) -> Self {
        Self { parts, chains: Vec::new(), out: OutgoingRules::Guarded, next: 0 }
    }

    /// The name of the next set.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Whether the policies `out` are left out.
    pub(super) const fn leaves_out(&self) -> bool {
        matches!(self.out, OutgoingRules::Left { .. })
    }

    /// The rules of one chain's policies.
    pub(super) fn rules(&self, part: ChainKind, kind: PolicyKind) -> Vec<Rule> {
        let is_meant = |chain: &&Chain| (chain.part, chain.kind) == (part, kind);
        self.chains.iter().find(is_meant).map(Chain::rules).unwrap_or_default()
    }

    /// Asks the kernel which rules are whose, in a table that was made of it; `None` when they are
    /// not those.
    pub(super) fn record_policies(
        mut self,
        filter: &mut impl PacketFilter,
        table: &str,
        spd: &Spd,
    ) -> Result<Option<Self>, Error> {
        for chain in &mut self.chains {
            let known = filter.rules(table, chain.name)?;
            // Behind sub policies stands the jump to the main ones, which the default may follow.
            let behind = match chain.kind {
                PolicyKind::Main => 0,
                PolicyKind::Sub => default_rules::count(spd, chain.part),
            };
            let own = || {
                let end = known.len().checked_sub(behind)?;
                let start = end.checked_sub(chain.length())?;
                Some((&known[start..end], known.get(end).copied()))
            };
            let Some((own, behind)) = own() else { return Ok(None) };
            chain.record_policies(own, behind);
        }
        Ok(Some(self))
    }

    /// Sorts in policies that came and went. [`RulesetState::ask`] says step by step what the
    /// kernel has to do. The result is for [`RulesetState::take_back`].
    pub(super) fn change(
        &mut self,
        changes: &[PolicyChange],
    ) -> Result<Vec<ChangeResult>, PlacementFailure> {
        let items = self.items(changes);
        let mut done = Vec::with_capacity(items.len());
        for item in items {
            match self.place_change(item) {
                Ok(sorted) => done.push(sorted),
                Err(why) => {
                    let at = done.len();
                    return Err(match (self.take_back(changes, done), why) {
                        (Ok(()), PlacementError::Parted) => PlacementFailure::Parted(at),
                        (Ok(()), PlacementError::Lost) | (Err(_), _) => PlacementFailure::Lost,
                    });
                }
            }
        }
        Ok(done)
    }

    /// Takes back what was sorted in, of which the kernel has done nothing.
    pub(super) fn take_back(
        &mut self,
        changes: &[PolicyChange],
        done: Vec<ChangeResult>,
    ) -> Result<(), PlacementError> {
        let done: Vec<_> = self.items(changes).into_iter().zip(done).collect();
        done.into_iter().rev().try_for_each(|(item, sorted)| self.undo(item, sorted))
    }

    /// Makes a place for a policy that parts a run: what is less, of those before it and those
    /// behind it, becomes a run of its own. The changes that it is among have led to `spd`, and are
    /// not sorted in; where they part what they have made themselves, nothing is done.
    pub(super) fn part(
        &mut self,
        changes: &[PolicyChange],
        at: usize,
        spd: &Spd,
    ) -> Result<Option<RunSplit>, PlacementError> {
        let item = self.items(changes)[at];
        let before = PoliciesBefore::of(changes, item.of());
        let place = item.entry().precedence();
        self.chain(item).part(place, &before, spd)
    }

    /// Takes back what [`RulesetState::part`] has done, if the kernel has done nothing of it.
    pub(super) fn undo_part(
        &mut self,
        split: Option<RunSplit>,
        changes: &[PolicyChange],
        at: usize,
        spd: &Spd,
    ) {
        let item = self.items(changes)[at];
        let before = PoliciesBefore::of(changes, item.of());
        if let Some(split) = split {
            self.chain(item).undo_part(&split, &before, spd);
        }
    }

    /// The changes as the parts have to follow them.
    fn items<'a>(&self, changes: &'a [PolicyChange]) -> Vec<PartChange<'a>> {
        let parts = self.parts;
        let of_change = |change: &'a PolicyChange| {
            let all = parts.iter().map(move |part| PartChange { change, part: *part });
            all.filter(|item| item.part.direction() == item.entry().direction())
        };
        changes.iter().flat_map(of_change).collect()
    }

    fn place_change(&mut self, item: PartChange<'_>) -> Result<ChangeResult, PlacementError> {
        let entry = item.entry();
        let (outcome, alternatives) = conditions::of_policy(item.part, &entry.policy());
        if alternatives.is_empty() {
            return Ok(ChangeResult::Nothing);
        }
        if item.part.is_of_out() && self.leaves_out() {
            return Ok(ChangeResult::Counted(self.count(item, alternatives.len())));
        }
        let chain = self.chain(item);
        let sorted = match item.change {
            PolicyChange::Added(_) => chain.add(entry.precedence(), outcome, &alternatives),
            PolicyChange::Removed(_) => chain.remove(entry.precedence(), &alternatives),
        };
        sorted.map(ChangeResult::Sorted)
    }

    /// Takes a change back, when all that came behind it was. Removing what was added would not
    /// do: ends of runs that have moved meanwhile may be in its way.
    fn undo(&mut self, item: PartChange<'_>, done: ChangeResult) -> Result<(), PlacementError> {
        let sorted = match done {
            ChangeResult::Nothing => return Ok(()),
            ChangeResult::Counted(before) => {
                self.out = before;
                return Ok(());
            }
            ChangeResult::Sorted(sorted) => sorted,
        };
        let (_outcome, alternatives) = conditions::of_policy(item.part, &item.entry().policy());
        let chain = self.chain(item);
        match item.change {
            PolicyChange::Added(_) => chain.undo_add(sorted, &alternatives),
            PolicyChange::Removed(_) => chain.undo_remove(&sorted, &alternatives),
        }
    }

    /// What the kernel has to do in a step.
    pub(super) fn ask(&mut self, step: Step) -> Vec<TableChange> {
        let mut asked = Vec::new();
        for chain in &mut self.chains {
            match step {
                Step::Come(what) => chain.come(what, &mut self.next, &mut asked),
                Step::Go(what) => chain.go(what, &mut asked),
            }
        }
        asked
    }

    /// Notes the rules that a step made.
    pub(super) fn note(&mut self, step: Step, made: Vec<RuleId>) {
        let mut made = made.into_iter();
        if let Step::Come(what) = step {
            self.chains.iter_mut().for_each(|chain| chain.note(what, &mut made));
        }
    }

    /// Forgets what is empty; whether it is as good as one that is made anew.
    pub(super) fn drop_empty(&mut self) -> bool {
        self.chains.iter_mut().for_each(Chain::drop_empty);
        let runs = self.chains.iter().map(Chain::runs);
        let (all, needless) = runs.fold((0, 0), |sum, runs| (sum.0 + runs.0, sum.1 + runs.1));
        let is_joined = needless < NEEDLESS || needless * 2 < all;
        is_joined && self.rules_out() <= MANY && !self.may_come_back()
    }

    fn chain(&mut self, item: PartChange<'_>) -> &mut Chain {
        let of = item.of();
        let is_meant = |chain: &Chain| (chain.part, chain.kind) == of;
        let at = self.chains.iter().position(is_meant).unwrap_or_default();
        &mut self.chains[at]
    }

    fn settle(&mut self, of: impl Fn(ChainKind) -> bool) -> Vec<Set> {
        let chains = self.chains.iter_mut().filter(|chain| of(chain.part));
        chains.flat_map(|chain| chain.settle(&mut self.next)).collect()
    }

    /// Rules that a packet may walk along on its way out, in one place.
    pub(super) fn rules_out(&self) -> usize {
        let of_part = |part| {
            let chains = self.chains.iter().filter(move |chain| chain.part == part);
            chains.map(Chain::length).sum::<usize>()
        };
        of_part(ChainKind::Out).max(of_part(ChainKind::Way))
    }

    fn leave_out(&mut self, spd: &Spd) {
        let mut alternatives = Alternatives::default();
        for part in self.parts.iter().copied().filter(|part| part.is_of_out()) {
            let entries = spd.iter().filter(|entry| entry.direction() == part.direction());
            let each = entries.map(|entry| conditions::of_policy(part, &entry.policy()).1.len());
            let sum = each.sum();
            alternatives.of(part).into_iter().for_each(|known| *known = sum);
        }
        let out = self.chains.iter_mut().filter(|chain| chain.part.is_of_out());
        out.for_each(|chain| *chain = Chain::new(chain.part, chain.kind));
        self.out = OutgoingRules::Left { alternatives, changes: alternatives.most() / 8 };
    }

    /// Counts a change of what is left out; how that was before.
    fn count(&mut self, item: PartChange<'_>, of_policy: usize) -> OutgoingRules {
        let before = self.out;
        if let OutgoingRules::Left { alternatives, changes } = &mut self.out {
            let known = alternatives.of(item.part);
            known.into_iter().for_each(|known| match item.change {
                PolicyChange::Added(_) => *known += of_policy,
                PolicyChange::Removed(_) => *known = known.saturating_sub(of_policy),
            });
            *changes = changes.saturating_sub(1);
        }
        before
    }

    /// Whether what is left out is to be looked at again.
    fn may_come_back(&self) -> bool {
        match self.out {
            OutgoingRules::Guarded => false,
            OutgoingRules::Left { alternatives, changes } => {
                alternatives.most() <= FEWER || changes == 0
            }
        }
    }
}
