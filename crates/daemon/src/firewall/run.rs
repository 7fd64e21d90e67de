//! A run: consecutive policies with the same verdict. Which of them decides does not matter.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use uxfrm_engine::{DropReason, PolicyPrecedence};
use uxfrm_io::nftables::Condition;

use super::{group::Group, match_shape::MatchShape};

/// What a policy does with plain packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It lets them pass.
    Pass,
    /// It drops them.
    Drop(DropReason),
    /// It has them go to uxfrm.
    Divert,
}

/// A run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) outcome: Outcome,
    /// Start of its range: its first policy, or a place between that and the run before.
    pub(super) first: PolicyPrecedence,
    /// End of its range: its last policy, or a place between that and the next run.
    last: PolicyPrecedence,
    /// Whether the range ends before `last`, which then is another run's place.
    is_open: bool,
    pub(super) groups: Vec<Group>,
    by_shape: HashMap<MatchShape, usize, RandomState>,
}

/// The range of precedences that belongs to a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunBounds {
    first: PolicyPrecedence,
    last: PolicyPrecedence,
    is_open: bool,
}

/// One alternative of a policy's selector: conditions that a packet must meet.
pub(super) type Alternative = Vec<Condition>;

impl RunBounds {
    /// Whether the range includes a place.
    pub(super) fn hold(&self, place: PolicyPrecedence) -> bool {
        let is_before_end = if self.is_open { place < self.last } else { place <= self.last };
        self.first <= place && is_before_end
    }
}

impl Run {
    /// A run without policies, whose range is one place.
    pub(super) fn new(outcome: Outcome, place: PolicyPrecedence) -> Self {
        let (groups, by_shape) = (Vec::new(), HashMap::default());
        Self { outcome, first: place, last: place, is_open: false, groups, by_shape }
    }

    /// The group for packets as the alternative has them, and its key there.
    pub(super) fn group(&mut self, alternative: &Alternative) -> (&mut Group, Vec<u8>) {
        let (shape, key) = MatchShape::of(alternative);
        let at = match self.by_shape.get(&shape) {
            Some(at) => *at,
            None => {
                self.by_shape.insert(shape.clone(), self.groups.len());
                self.groups.push(Group::new(shape));
                self.groups.len() - 1
            }
        };
        (&mut self.groups[at], key)
    }

    pub(super) const fn ends(&self) -> RunBounds {
        RunBounds { first: self.first, last: self.last, is_open: self.is_open }
    }

    /// Restores an earlier range.
    pub(super) fn restore(&mut self, ends: RunBounds) {
        (self.first, self.last, self.is_open) = (ends.first, ends.last, ends.is_open);
    }

    /// Extends the range to include a place.
    pub(super) fn extend_to(&mut self, place: PolicyPrecedence) {
        self.first = self.first.min(place);
        self.is_open &= place < self.last;
        self.last = self.last.max(place);
    }

    /// Whether the whole range is before a place.
    pub(super) fn ends_before(&self, place: PolicyPrecedence) -> bool {
        self.last < place || (self.is_open && self.last == place)
    }

    /// Whether a place is the last in the range.
    pub(super) fn ends_at(&self, place: PolicyPrecedence) -> bool {
        self.last == place && !self.is_open
    }

    /// Has the range start at its policy `first`: places before go to other runs.
    pub(super) fn begin_at(&mut self, first: PolicyPrecedence) {
        self.first = first;
    }

    /// Has the range end with its policy `last`: places behind go to other runs.
    pub(super) fn end_at(&mut self, last: PolicyPrecedence) {
        (self.last, self.is_open) = (last, false);
    }

    /// Has the range end before a place, where the run has no policy any more: that place and
    /// those behind go to other runs.
    pub(super) fn end_before(&mut self, place: PolicyPrecedence) {
        (self.last, self.is_open) = (place, true);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.iter().all(Group::is_empty)
    }

    /// Forgets groups without policies.
    pub(super) fn drop_empty(&mut self) {
        if !self.groups.iter().any(Group::is_empty) {
            return;
        }
        self.groups.retain(|group| !group.is_empty());
        let shapes = self.groups.iter().map(|group| group.shape.clone());
        self.by_shape = shapes.zip(0..).collect();
    }

    /// How many rules it has.
    pub(super) fn rules(&self) -> usize {
        self.groups.iter().map(|group| group.placed().count()).sum()
    }
}
