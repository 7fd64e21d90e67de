//! When sets of policies are planned anew.

use super::plan::FEW;

/// When what has outgrown its plan is planned anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplanTiming {
    /// When a policy comes.
    Now,
    /// By [`Node::prepare`](super::node::Node::prepare), so that a policy takes less time to come; what is far too large does not wait.
    Later,
}

/// How policies that came were planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanScope {
    /// With all that there are.
    Whole,
    /// Each where it came to stand.
    Incremental,
}

impl ReplanTiming {
    /// So many are compared one by one without another plan.
    pub(super) const fn few(self) -> usize {
        match self {
            Self::Now => FEW,
            Self::Later => 2 * FEW,
        }
    }

    /// What has so many times more policies than it was planned for is planned anew.
    pub(super) const fn growth(self) -> usize {
        match self {
            Self::Now => 2,
            Self::Later => 4,
        }
    }
}
