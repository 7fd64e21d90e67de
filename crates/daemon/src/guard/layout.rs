//! All policies as the guard's table has them.
//!
//! Consecutive policies that do the same with packets are a *run*: which of them decides does not matter. In a run those of one *shape*, which ask the same of
//! packets but want other answers, are a *group*: a few rules, or one rule and a set of the answers. So policies are told the kernel by as many rules as
//! there are shapes, mostly one or two, and one comes or goes by a key of a set. One that parts a run has all sorted anew.
//!
//! The kernel makes each transaction true at once, but a packet may be on its way: it meets the rules of before, and further on sets of afterwards. So a
//! change is made in steps, of which none mixes policies that drop and that let pass: drops come, passes come, passes go, drops go. Whichever part of a
//! step a packet sees, it passes only if it would have before or will afterwards.

use uxfrm_engine::{Direction, PolicyChange, PolicyEntry, PolicyKind, Spd};
use uxfrm_io::nftables::{Change, Error, Filter, Rule, RuleId, Set};

use super::{
    chain::{Chain, Parting, Sorted, Unsorted, What},
    parting::Before,
    rules,
};

/// Everything that follows policies in the guard's table.
#[derive(Debug)]
pub(super) struct Layout {
    chains: [Chain; 6],
    out: Out,
    next: u32,
}

/// Why changes can't be sorted in. What there is, is as it was, unless something was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// The policy of this change, by its number, parts a run.
    Parted(usize),
    /// A policy is not where it was thought to be: all has to be sorted anew.
    Lost,
}

/// What of the policies `out` is told the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Out {
    /// All of them.
    Guarded,
    /// None: too many rules. It is looked at again after some changes, or when there are that few.
    Left { alternatives: usize, changes: usize },
}

/// What sorting a change in has done.
#[derive(Debug)]
pub(super) enum Done {
    Nothing,
    /// Left out; how that was before.
    Counted(Out),
    Sorted(Sorted),
}

/// A step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Policies come.
    Come(What),
    /// Policies go.
    Go(What),
}

/// The steps of a change, in their order.
pub(super) const STEPS: [Step; 4] = [
    Step::Come(What::Drops),
    Step::Come(What::Passes),
    Step::Go(What::Passes),
    Step::Go(What::Drops),
];

/// With more rules `out` each plain packet would go along too many.
pub(super) const MANY: usize = 10_000;

/// Those that are left out come back when they are so few. Not sooner: each time all is told anew.
pub(super) const FEWER: usize = MANY - MANY / 10;

/// How many runs may be left that do what their neighbour does.
const NEEDLESS: usize = 16;

impl Layout {
    /// That of the policies in `spd`, and the sets that are to be made. Their names begin with `next`. More rules `out` than `most` are left out.
    pub(super) fn of(spd: &Spd, next: u32, most: usize) -> (Self, Vec<Set>) {
        let chains = rules::CHAINS.map(|(direction, kind)| Chain::new(direction, kind));
        let mut layout = Self { chains, out: Out::Guarded, next };
        let mut entries: Vec<_> = spd.iter().collect();
        entries.sort_unstable_by_key(|entry| entry.place());
        for entry in entries {
            let (outcome, alternatives) = rules::of_policy(&entry.policy());
            if !alternatives.is_empty() {
                layout.chain(entry).append(entry.place(), outcome, &alternatives);
            }
        }
        let mut sets = layout.settle(|direction| direction != Direction::Out);
        let of_out = layout.settle(|direction| direction == Direction::Out);
        if layout.rules_out() > most {
            layout.leave_out(spd);
        } else {
            sets.extend(of_out);
        }
        (layout, sets)
    }

    /// The name of the next set.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    /// Whether the policies `out` are left out.
    pub(super) const fn leaves_out(&self) -> bool {
        matches!(self.out, Out::Left { .. })
    }

    /// The rules of one chain's policies.
    pub(super) fn rules(&self, direction: Direction, kind: PolicyKind) -> Vec<Rule> {
        let is_meant = |chain: &&Chain| (chain.direction, chain.kind) == (direction, kind);
        self.chains.iter().find(is_meant).map(Chain::rules).unwrap_or_default()
    }

    /// Asks the kernel which rules are whose, in a table that was made of it; `None` when they are not those.
    pub(super) fn learn(
        mut self,
        filter: &mut impl Filter,
        table: &str,
        spd: &Spd,
    ) -> Result<Option<Self>, Error> {
        for chain in &mut self.chains {
            let known = filter.rules(table, chain.name)?;
            // Sub policies stand between what is exempt and the jump to the main ones, which the default may follow.
            let behind = match chain.kind {
                PolicyKind::Main => 0,
                PolicyKind::Sub => rules::tail(spd, chain.direction),
            };
            let own = || {
                let end = known.len().checked_sub(behind)?;
                let start = end.checked_sub(chain.length())?;
                Some((&known[start..end], known.get(end).copied()))
            };
            let Some((own, behind)) = own() else { return Ok(None) };
            chain.learn(own, behind);
        }
        Ok(Some(self))
    }

    /// Sorts in policies that came and went. What that asks of the kernel is told step by step. What was done is to be kept for [`Layout::take_back`].
    pub(super) fn change(&mut self, changes: &[PolicyChange]) -> Result<Vec<Done>, Obstacle> {
        let mut done = Vec::with_capacity(changes.len());
        for change in changes {
            match self.sort_in(change) {
                Ok(sorted) => done.push(sorted),
                Err(why) => {
                    let at = done.len();
                    return Err(match (self.take_back(changes, done), why) {
                        (Ok(()), Unsorted::Parted) => Obstacle::Parted(at),
                        (Ok(()), Unsorted::Lost) | (Err(_), _) => Obstacle::Lost,
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
        done: Vec<Done>,
    ) -> Result<(), Unsorted> {
        let done = changes.iter().zip(done).rev();
        { done }.try_for_each(|(change, sorted)| self.undo(change, sorted))
    }

    /// Makes a place for a policy that parts a run: what is less, of those before it and those behind it, becomes a run of its own. The changes that it is
    /// among have led to `spd`, and are not sorted in; where they part what they have made themselves, nothing is done.
    pub(super) fn part(
        &mut self,
        changes: &[PolicyChange],
        at: usize,
        spd: &Spd,
    ) -> Result<Option<Parting>, Unsorted> {
        let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = &changes[at];
        let before = Before::of(changes, (entry.direction(), entry.kind()));
        let place = entry.place();
        self.chain(entry).part(place, &before, spd)
    }

    /// Takes back what [`Layout::part`] has done, if the kernel has done nothing of it.
    pub(super) fn undo_part(
        &mut self,
        parting: Option<Parting>,
        changes: &[PolicyChange],
        at: usize,
        spd: &Spd,
    ) {
        let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = &changes[at];
        let before = Before::of(changes, (entry.direction(), entry.kind()));
        if let Some(parting) = parting {
            self.chain(entry).undo_part(&parting, &before, spd);
        }
    }

    fn sort_in(&mut self, change: &PolicyChange) -> Result<Done, Unsorted> {
        let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = change;
        let (outcome, alternatives) = rules::of_policy(&entry.policy());
        if alternatives.is_empty() {
            return Ok(Done::Nothing);
        }
        if entry.direction() == Direction::Out && self.leaves_out() {
            return Ok(Done::Counted(self.count(change, alternatives.len())));
        }
        let chain = self.chain(entry);
        let sorted = match change {
            PolicyChange::Added(_) => chain.add(entry.place(), outcome, &alternatives),
            PolicyChange::Removed(_) => chain.remove(entry.place(), &alternatives),
        };
        sorted.map(Done::Sorted)
    }

    /// Takes a change back, when all that came behind it was. Sorting in the reverse would not do: ends of runs that have moved meanwhile may be in its way.
    fn undo(&mut self, change: &PolicyChange, done: Done) -> Result<(), Unsorted> {
        let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = change;
        let sorted = match done {
            Done::Nothing => return Ok(()),
            Done::Counted(before) => {
                self.out = before;
                return Ok(());
            }
            Done::Sorted(sorted) => sorted,
        };
        let (_outcome, alternatives) = rules::of_policy(&entry.policy());
        let chain = self.chain(entry);
        match change {
            PolicyChange::Added(_) => chain.undo_add(sorted, &alternatives),
            PolicyChange::Removed(_) => chain.undo_remove(&sorted, &alternatives),
        }
    }

    /// What a step asks of the kernel.
    pub(super) fn ask(&mut self, step: Step) -> Vec<Change> {
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
    pub(super) fn tidy(&mut self) -> bool {
        self.chains.iter_mut().for_each(Chain::tidy);
        let runs = self.chains.iter().map(Chain::runs);
        let (all, needless) = runs.fold((0, 0), |sum, runs| (sum.0 + runs.0, sum.1 + runs.1));
        let is_joined = needless < NEEDLESS || needless * 2 < all;
        is_joined && self.rules_out() <= MANY && !self.may_come_back()
    }

    fn chain(&mut self, entry: &PolicyEntry) -> &mut Chain {
        let of = (entry.direction(), entry.kind());
        let at = rules::CHAINS.iter().position(|chain| *chain == of).unwrap_or_default();
        &mut self.chains[at]
    }

    fn settle(&mut self, of: impl Fn(Direction) -> bool) -> Vec<Set> {
        let chains = self.chains.iter_mut().filter(|chain| of(chain.direction));
        chains.flat_map(|chain| chain.settle(&mut self.next)).collect()
    }

    /// Rules that a packet may walk along on its way out.
    fn rules_out(&self) -> usize {
        let out = self.chains.iter().filter(|chain| chain.direction == Direction::Out);
        out.map(Chain::length).sum()
    }

    fn leave_out(&mut self, spd: &Spd) {
        let out = self.chains.iter_mut().filter(|chain| chain.direction == Direction::Out);
        out.for_each(|chain| *chain = Chain::new(chain.direction, chain.kind));
        let out = spd.iter().filter(|entry| entry.direction() == Direction::Out);
        let alternatives = out.map(|entry| rules::of_policy(&entry.policy()).1.len()).sum();
        self.out = Out::Left { alternatives, changes: alternatives / 8 };
    }

    /// Counts a change of what is left out; how that was before.
    fn count(&mut self, change: &PolicyChange, of_policy: usize) -> Out {
        let before = self.out;
        if let Out::Left { alternatives, changes } = &mut self.out {
            match change {
                PolicyChange::Added(_) => *alternatives += of_policy,
                PolicyChange::Removed(_) => *alternatives = alternatives.saturating_sub(of_policy),
            }
            *changes = changes.saturating_sub(1);
        }
        before
    }

    /// Whether what is left out is to be looked at again.
    const fn may_come_back(&self) -> bool {
        match self.out {
            Out::Guarded => false,
            Out::Left { alternatives, changes } => alternatives <= FEWER || changes == 0,
        }
    }
}
