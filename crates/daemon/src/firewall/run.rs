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
    /// The first of its policies, or one before it and behind the run before.
    pub(super) first: PolicyPrecedence,
    /// The last of its policies, or one behind it and before the next run.
    last: PolicyPrecedence,
    /// Whether the last has gone, and its place is another run's.
    is_open: bool,
    pub(super) groups: Vec<Group>,
    by_shape: HashMap<MatchShape, usize, RandomState>,
}

/// The first and last policy of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunBounds {
    first: PolicyPrecedence,
    last: PolicyPrecedence,
    is_open: bool,
}

/// One alternative of a policy's selector: conditions that a packet must meet.
pub(super) type Alternative = Vec<Condition>;

impl RunBounds {
    /// Whether a policy that stands there is of the run.
    pub(super) fn hold(&self, place: PolicyPrecedence) -> bool {
        let is_before_end = if self.is_open { place < self.last } else { place <= self.last };
        self.first <= place && is_before_end
    }
}

impl Run {
    /// Nothing yet, around a place.
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

    /// Begins and ends where it did.
    pub(super) fn restore(&mut self, ends: RunBounds) {
        (self.first, self.last, self.is_open) = (ends.first, ends.last, ends.is_open);
    }

    /// Has a place belong to it.
    pub(super) fn extend_to(&mut self, place: PolicyPrecedence) {
        self.first = self.first.min(place);
        self.is_open &= place < self.last;
        self.last = self.last.max(place);
    }

    /// Whether all of it stands before a place.
    pub(super) fn ends_before(&self, place: PolicyPrecedence) -> bool {
        self.last < place || (self.is_open && self.last == place)
    }

    /// Whether a place is the last that belongs to it.
    pub(super) fn ends_at(&self, place: PolicyPrecedence) -> bool {
        self.last == place && !self.is_open
    }

    /// Leaves all up to a place to others; the first of its policies stands there.
    pub(super) fn begin_at(&mut self, first: PolicyPrecedence) {
        self.first = first;
    }

    /// The same at its end.
    pub(super) fn end_at(&mut self, last: PolicyPrecedence) {
        (self.last, self.is_open) = (last, false);
    }

    /// Leaves a place, where no policy of it stands any more, and all behind to others.
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
