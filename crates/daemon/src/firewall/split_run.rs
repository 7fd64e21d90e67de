//! A policy that stands amid others that do otherwise: which of those stand on either side of it.
//!
//! A run knows what its policies want, not which they are: it is the database that knows, as it is
//! after some changes that the run has not seen.

use std::collections::BTreeMap;

use uxfrm_engine::{PolicyChange, PolicyEntry, PolicyKind, PolicyPrecedence, Spd};

use super::{
    chain_kind::ChainKind,
    conditions,
    run::{Alternative, RunBounds},
};

/// The policies of one direction and kind as they were before some changes.
#[derive(Debug)]
pub(super) struct PoliciesBefore<'a> {
    of: (ChainKind, PolicyKind),
    /// Who stood where something has changed.
    stood: BTreeMap<PolicyPrecedence, Option<&'a PolicyEntry>>,
}

/// A place, and the run that it parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitPoint {
    pub(super) run: RunBounds,
    /// The run before, which has the place where it ends, also where the other begins there.
    pub(super) other: Option<RunBounds>,
    pub(super) place: PolicyPrecedence,
}

/// The two parts of a split run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RunParts {
    /// How many of its policies stand up to there.
    before: usize,
    /// How many behind it.
    behind: usize,
    /// The last of the former.
    pub(super) last: Option<PolicyPrecedence>,
    /// The first of the latter.
    pub(super) first: Option<PolicyPrecedence>,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunSide {
    Before,
    Behind,
}

fn is_of(entry: &PolicyEntry, (part, kind): (ChainKind, PolicyKind)) -> bool {
    (entry.direction(), entry.kind()) == (part.direction(), kind)
}

impl SplitPoint {
    /// Whether a policy that stands there is of the run.
    fn hold(&self, place: PolicyPrecedence) -> bool {
        self.run.hold(place) && !self.other.is_some_and(|other| other.hold(place))
    }
}

impl RunParts {
    /// Which part is smaller, and where one of its policies stands: the last of those before, or
    /// the first of those behind.
    pub(super) const fn smaller(
        &self,
        last: PolicyPrecedence,
        first: PolicyPrecedence,
    ) -> (RunSide, PolicyPrecedence) {
        if self.before < self.behind { (RunSide::Before, last) } else { (RunSide::Behind, first) }
    }
}

impl<'a> PoliciesBefore<'a> {
    /// Those before these changes.
    pub(super) fn of(changes: &'a [PolicyChange], of: (ChainKind, PolicyKind)) -> Self {
        let mut stood = BTreeMap::new();
        for change in changes {
            let (entry, was) = match change {
                PolicyChange::Added(entry) => (entry, None),
                PolicyChange::Removed(entry) => (entry, Some(&**entry)),
            };
            if is_of(entry, of) {
                stood.entry(entry.precedence()).or_insert(was);
            }
        }
        Self { of, stood }
    }

    /// How a place parts a run; `spd` is what the changes led to.
    pub(super) fn parts(&self, spd: &Spd, context: SplitPoint) -> RunParts {
        let mut parts = RunParts::default();
        for (place, _entry) in self.policies(spd, context) {
            if place <= context.place {
                parts.before += 1;
                parts.last = parts.last.max(Some(place));
            } else {
                parts.behind += 1;
                parts.first = Some(parts.first.map_or(place, |first| first.min(place)));
            }
        }
        parts
    }

    /// What the policies of a run on one side of a place ask, and where they stand.
    pub(super) fn side<'s>(
        &'s self,
        spd: &'s Spd,
        context: SplitPoint,
        side: RunSide,
    ) -> impl Iterator<Item = (PolicyPrecedence, Vec<Alternative>)> + 's {
        let is_meant = move |place: PolicyPrecedence| match side {
            RunSide::Before => place <= context.place,
            RunSide::Behind => place > context.place,
        };
        let meant = self.policies(spd, context).filter(move |(place, _entry)| is_meant(*place));
        meant.map(|(place, entry)| (place, conditions::of_policy(self.of.0, &entry.policy()).1))
    }

    fn policies<'s>(
        &'s self,
        spd: &'s Spd,
        context: SplitPoint,
    ) -> impl Iterator<Item = (PolicyPrecedence, &'s PolicyEntry)> + 's {
        let is_of = |entry: &&PolicyEntry| is_of(entry, self.of);
        let is_as_it_was = |entry: &&PolicyEntry| !self.stood.contains_key(&entry.precedence());
        let stayed = spd.iter().map(|entry| &**entry).filter(is_of).filter(is_as_it_was);
        let gone = self.stood.values().copied().flatten();
        let all = stayed.chain(gone).map(|entry| (entry.precedence(), entry));
        all.filter(move |(place, _entry)| context.hold(*place))
    }
}
