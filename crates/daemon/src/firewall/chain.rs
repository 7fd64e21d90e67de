//! The policies of one direction and kind as runs, in the order in which they decide.

use uxfrm_engine::{PolicyEntry, PolicyKind, PolicyPrecedence, Spd};
use uxfrm_io::nftables::{Rule, RuleId, RuleVerdict, Set, TableChange};

use super::{
    chain_kind::{ChainKind, DIVERT},
    group::{Group, GroupVerdict},
    run::{Alternative, Outcome, Run, RunBounds},
    split_run::{PoliciesBefore, RunSide, SplitPoint},
};

/// The policies of one direction and kind.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) part: ChainKind,
    pub(super) kind: PolicyKind,
    pub(super) name: &'static str,
    runs: Vec<Run>,
    /// The rule behind those of all policies, if there is one.
    behind: Option<RuleId>,
}

/// Why a policy can't be sorted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlacementError {
    /// One splits a run. Nothing has changed.
    Parted,
    /// One is not where it was thought to be.
    Lost,
}

/// Where a policy was sorted in, or sorted out, and what has to be known to take that back.
#[derive(Debug)]
pub(super) struct Sorted {
    run: usize,
    /// Runs, as they were, whose ends have moved; the latest last. A run that was made for the
    /// policy is not among them.
    moved: Vec<(usize, RunBounds)>,
    is_made: bool,
}

/// A run that was parted, and what has to be known to take that back.
#[derive(Debug)]
pub(super) struct RunSplit {
    context: SplitPoint,
    side: RunSide,
    /// Where the run is, and the part of it that has moved out.
    run: usize,
    moved: usize,
}

impl Chain {
    pub(super) const fn new(part: ChainKind, kind: PolicyKind) -> Self {
        let name = part.chain(kind);
        Self { part, kind, name, runs: Vec::new(), behind: None }
    }

    /// Whether a policy belongs here.
    pub(super) fn is_about(&self, entry: &PolicyEntry) -> bool {
        (self.part.direction(), self.kind) == (entry.direction(), entry.kind())
    }

    /// A policy behind all others, from the start.
    pub(super) fn append(
        &mut self,
        place: PolicyPrecedence,
        outcome: Outcome,
        alternatives: &[Alternative],
    ) {
        if self.runs.last().is_none_or(|run| run.outcome != outcome) {
            self.runs.push(Run::new(outcome, place));
        }
        let Some(run) = self.runs.last_mut() else { return };
        run.extend_to(place);
        for alternative in alternatives {
            let (group, key) = run.group(alternative);
            group.put(&key);
        }
    }

    /// A policy that comes.
    pub(super) fn add(
        &mut self,
        place: PolicyPrecedence,
        outcome: Outcome,
        alternatives: &[Alternative],
    ) -> Result<Sorted, PlacementError> {
        let mut sorted = self.run_for(place, outcome)?;
        let run = &mut self.runs[sorted.run];
        if !sorted.is_made {
            sorted.moved.push((sorted.run, run.ends()));
        }
        run.extend_to(place);
        put(run, alternatives);
        Ok(sorted)
    }

    /// A policy that goes.
    pub(super) fn remove(
        &mut self,
        place: PolicyPrecedence,
        alternatives: &[Alternative],
    ) -> Result<Sorted, PlacementError> {
        let at = self.at(place);
        let run =
            self.runs.get_mut(at).filter(|run| run.first <= place).ok_or(PlacementError::Lost)?;
        take(run, alternatives)?;
        Ok(Sorted { run: at, moved: Vec::new(), is_made: false })
    }

    /// Takes back that a policy came; what was sorted in since was taken back before.
    pub(super) fn undo_add(
        &mut self,
        sorted: Sorted,
        alternatives: &[Alternative],
    ) -> Result<(), PlacementError> {
        undo(self.runs.get_mut(sorted.run).ok_or(PlacementError::Lost)?, alternatives, take)?;
        // An empty run may have rules in the kernel; one that was made has none yet.
        if sorted.is_made {
            self.runs.remove(sorted.run);
        }
        for (at, ends) in sorted.moved.into_iter().rev() {
            self.runs.get_mut(at).ok_or(PlacementError::Lost)?.restore(ends);
        }
        Ok(())
    }

    /// The same, of one that went.
    pub(super) fn undo_remove(
        &mut self,
        sorted: &Sorted,
        alternatives: &[Alternative],
    ) -> Result<(), PlacementError> {
        let put = |run: &mut Run, alternatives: &[Alternative]| {
            put(run, alternatives);
            Ok(())
        };
        undo(self.runs.get_mut(sorted.run).ok_or(PlacementError::Lost)?, alternatives, put)
    }

    /// Has the run around a place end there, and another one begin behind it: what is less moves
    /// out, if there is anything. No packet meets anything else for that.
    pub(super) fn part(
        &mut self,
        place: PolicyPrecedence,
        before: &PoliciesBefore<'_>,
        spd: &Spd,
    ) -> Result<Option<RunSplit>, PlacementError> {
        let at = self.at(place);
        // Otherwise it is parted by what comes together with its policies.
        let ends = |run: &Run| run.ends();
        let other = at.checked_sub(1).and_then(|other| self.runs.get(other)).map(ends);
        let run =
            self.runs.get_mut(at).filter(|run| run.first < place).ok_or(PlacementError::Parted)?;
        let context = SplitPoint { run: run.ends(), other, place };
        let parts = before.parts(spd, context);
        let (last, first) = match (parts.last, parts.first) {
            (Some(last), Some(first)) => (last, first),
            // Nobody stands on one side any more.
            (Some(last), None) => {
                run.end_at(last);
                return Ok(None);
            }
            (None, Some(first)) => {
                run.begin_at(first);
                return Ok(None);
            }
            (None, None) => return Err(PlacementError::Parted),
        };
        let (side, start) = parts.smaller(last, first);
        let mut moved = Run::new(run.outcome, start);
        for (place, alternatives) in before.side(spd, context, side) {
            take(run, &alternatives)?;
            put(&mut moved, &alternatives);
            moved.extend_to(place);
        }
        let (run, moved_to) = match side {
            RunSide::Before => {
                run.begin_at(first);
                (at + 1, at)
            }
            RunSide::Behind => {
                run.end_at(last);
                (at, at + 1)
            }
        };
        self.runs.insert(moved_to, moved);
        Ok(Some(RunSplit { context, side, run, moved: moved_to }))
    }

    /// Takes a parting back, of which the kernel has done nothing.
    pub(super) fn undo_part(&mut self, split: &RunSplit, before: &PoliciesBefore<'_>, spd: &Spd) {
        let Some(run) = self.runs.get_mut(split.run) else { return };
        let moved: Vec<_> = before.side(spd, split.context, split.side).collect();
        let moved = || moved.iter().flat_map(|(_place, alternatives)| alternatives);
        moved().for_each(|alternative| run.group(alternative).0.revert());
        put(run, moved());
        moved().for_each(|alternative| run.group(alternative).0.forget());
        run.restore(split.context.run);
        self.runs.remove(split.moved);
    }

    /// Where the run of a new policy is, which is made if there is none.
    fn run_for(
        &mut self,
        place: PolicyPrecedence,
        outcome: Outcome,
    ) -> Result<Sorted, PlacementError> {
        let mut moved = Vec::new();
        let at = self.at(place);
        let is_of = |run: Option<&Run>| run.is_some_and(|run| run.outcome == outcome);
        if is_of(self.runs.get(at)) {
            return Ok(Sorted { run: at, moved, is_made: false });
        }
        let at = match self.runs.get_mut(at) {
            Some(run) if run.first < place => {
                if !run.is_empty() && !run.ends_at(place) {
                    return Err(PlacementError::Parted);
                }
                moved.push((at, run.ends()));
                run.end_before(place);
                at + 1
            }
            _ => at,
        };
        if is_of(at.checked_sub(1).and_then(|before| self.runs.get(before))) {
            return Ok(Sorted { run: at - 1, moved, is_made: false });
        }
        let is_made = !is_of(self.runs.get(at));
        if is_made {
            self.runs.insert(at, Run::new(outcome, place));
        }
        Ok(Sorted { run: at, moved, is_made })
    }

    /// The first run that does not end before a place.
    fn at(&self, place: PolicyPrecedence) -> usize {
        self.runs.partition_point(|run| run.ends_before(place))
    }
}

/// The way into the kernel.
impl Chain {
    /// The rules of all policies.
    pub(super) fn rules(&self) -> Vec<Rule> {
        let of_run = |run: &Run| {
            let fate = self.fate(run.outcome);
            let rules = run.groups.iter().flat_map(|group| group.rules(fate));
            rules.collect::<Vec<_>>()
        };
        self.runs.iter().flat_map(of_run).collect()
    }

    /// How many these are.
    pub(super) fn length(&self) -> usize {
        self.runs.iter().map(Run::rules).sum()
    }

    /// The sets that the rules need, and that are not there yet.
    pub(super) fn settle(&mut self, next: &mut u32) -> Vec<Set> {
        let groups = self.runs.iter_mut().flat_map(|run| &mut run.groups);
        groups.filter_map(|group| group.settle(next)).collect()
    }

    /// Notes which rules of the kernel are those of the policies, and which one is behind them,
    /// which are as many.
    pub(super) fn record_policies(&mut self, own: &[RuleId], behind: Option<RuleId>) {
        self.behind = behind;
        debug_assert_eq!(own.len(), self.length());
        let groups = self.runs.iter_mut().flat_map(|run| &mut run.groups);
        let places = groups.flat_map(Group::placed_mut);
        places.zip(own).for_each(|(placed, id)| *placed = Some(*id));
    }

    /// Asks for what is new and does `what`: sets, what is in them, rules, in this order.
    pub(super) fn come(
        &mut self,
        what: PolicyEffect,
        next: &mut u32,
        asked: &mut Vec<TableChange>,
    ) {
        for group in self.touched(what) {
            group.come(next, asked);
        }
        if self.touched(what).next().is_none() {
            return;
        }
        let mut before = self.behind;
        let mut new = Vec::new();
        for run in self.runs.iter().rev() {
            let fate = self.fate(run.outcome);
            for group in run.groups.iter().rev() {
                let is_new =
                    what.is_of(run.outcome) && group.placed().any(|placed| placed.is_none());
                if !is_new {
                    before = group.placed().flatten().next().or(before);
                    continue;
                }
                for (placed, rule) in group.placed().rev().zip(group.rules(fate).rev()) {
                    match placed {
                        Some(_) => before = placed,
                        None => new.push(TableChange::AddRule { chain: self.name, before, rule }),
                    }
                }
            }
        }
        asked.extend(new.into_iter().rev());
    }

    /// Notes rules that were added, in the order in which they were asked for.
    pub(super) fn note(&mut self, what: PolicyEffect, made: &mut impl Iterator<Item = RuleId>) {
        for group in self.touched(what) {
            let new = group.placed_mut().filter(|placed| placed.is_none());
            new.zip(&mut *made).for_each(|(placed, id)| *placed = Some(id));
        }
    }

    /// Asks that what is old and does `what` goes.
    pub(super) fn go(&mut self, what: PolicyEffect, asked: &mut Vec<TableChange>) {
        let name = self.name;
        for group in self.touched(what) {
            group.go(name, asked);
        }
    }

    /// Forgets what is empty.
    pub(super) fn drop_empty(&mut self) {
        self.runs.iter_mut().for_each(Run::drop_empty);
        self.runs.retain(|run| !run.is_empty());
    }

    /// How many runs there are, and how many of them do what the run before does, as what stood
    /// between has gone.
    pub(super) fn runs(&self) -> (usize, usize) {
        let alike = |pair: &&[Run]| pair[0].outcome == pair[1].outcome;
        (self.runs.len(), self.runs.windows(2).filter(alike).count())
    }

    fn touched(&mut self, what: PolicyEffect) -> impl Iterator<Item = &mut Group> {
        let runs = self.runs.iter_mut().filter(move |run| what.is_of(run.outcome));
        runs.flat_map(|run| &mut run.groups).filter(|group| group.is_touched())
    }

    fn fate(&self, outcome: Outcome) -> GroupVerdict {
        match (outcome, self.kind) {
            (Outcome::Drop(reason), _) => {
                GroupVerdict { counter: Some(reason.as_str()), verdict: RuleVerdict::Drop }
            }
            (Outcome::Divert, _) => {
                GroupVerdict { counter: None, verdict: RuleVerdict::Goto(DIVERT) }
            }
            (Outcome::Pass, PolicyKind::Sub) if self.part.is_of_whole() => {
                GroupVerdict { counter: None, verdict: RuleVerdict::Accept }
            }
            // The policies of the other direction and those `out` are asked as well.
            (Outcome::Pass, PolicyKind::Main) if self.part.is_of_quotes() => {
                GroupVerdict { counter: None, verdict: RuleVerdict::Return }
            }
            (Outcome::Pass, PolicyKind::Main) => {
                GroupVerdict { counter: None, verdict: RuleVerdict::Accept }
            }
            (Outcome::Pass, PolicyKind::Sub) => {
                let main = self.part.chain(PolicyKind::Main);
                GroupVerdict { counter: None, verdict: RuleVerdict::Goto(main) }
            }
        }
    }
}

/// The keys of a policy that comes.
fn put<'a>(run: &mut Run, alternatives: impl IntoIterator<Item = &'a Alternative>) {
    for alternative in alternatives {
        let (group, key) = run.group(alternative);
        group.add(key);
    }
}

/// Those of one that goes.
fn take(run: &mut Run, alternatives: &[Alternative]) -> Result<(), PlacementError> {
    let mut is_there = true;
    for alternative in alternatives {
        let (group, key) = run.group(alternative);
        is_there &= group.remove(key);
    }
    if is_there { Ok(()) } else { Err(PlacementError::Lost) }
}

/// Has the groups of a policy as they were, also where the kernel was asked for it in vain.
fn undo(
    run: &mut Run,
    alternatives: &[Alternative],
    reverse: impl FnOnce(&mut Run, &[Alternative]) -> Result<(), PlacementError>,
) -> Result<(), PlacementError> {
    alternatives.iter().for_each(|alternative| run.group(alternative).0.revert());
    reverse(run, alternatives)?;
    alternatives.iter().for_each(|alternative| run.group(alternative).0.forget());
    Ok(())
}

/// Which policies a step of a change is about: a step never mixes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyEffect {
    Passes,
    /// Those that drop, and those that divert: nothing leaves plain by these either.
    Drops,
}

impl PolicyEffect {
    const fn is_of(self, outcome: Outcome) -> bool {
        match (self, outcome) {
            (Self::Passes, Outcome::Pass) | (Self::Drops, Outcome::Drop(_) | Outcome::Divert) => {
                true
            }
            (Self::Passes, Outcome::Drop(_) | Outcome::Divert) | (Self::Drops, Outcome::Pass) => {
                false
            }
        }
    }
}
