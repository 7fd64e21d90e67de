//! When sets of rules are replanned.

use crate::plan::FEW;

/// When a node that has outgrown its plan is replanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplanTiming {
    /// On insertion.
    Now,
    /// By [`Index::prepare`](crate::Index::prepare), to keep insertion fast; far too large
    /// nodes are replanned at once.
    Later,
}

/// How inserted rules were planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanScope {
    /// The whole set was planned.
    Whole,
    /// Each was added to an existing plan.
    Incremental,
}

impl ReplanTiming {
    /// Up to this many rules stay in a linear leaf.
    pub(super) const fn few(self) -> usize {
        match self {
            Self::Now => FEW,
            Self::Later => 2 * FEW,
        }
    }

    /// Growth factor that triggers replanning.
    pub(super) const fn growth(self) -> usize {
        match self {
            Self::Now => 2,
            Self::Later => 4,
        }
    }
}
