//! The verdict of the policies on a flow, as a number.

use crate::{Action, Template};

/// The policies that decide over a flow, by their slots in the cache; valid until the next
/// [`PolicyCache::begin_batch`](crate::PolicyCache::begin_batch).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerdictId(pub(crate) u32);

impl VerdictId {
    /// No policy.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// Verdict of one policy, by its slot.
    pub(crate) fn of(slot: u32, action: Action, templates: &[Template]) -> Self {
        Self(match action {
            Action::Block => slot | BLOCK,
            Action::Allow if templates.is_empty() => slot | PASS,
            Action::Allow => slot,
        })
    }

    /// Action of a single policy.
    #[inline]
    pub(crate) const fn action(self) -> Action {
        if self.0 & BLOCK == 0 { Action::Allow } else { Action::Block }
    }

    /// Verdict of a single policy in [`COMPACT_BITS`] bits; all ones if it does not fit.
    pub(crate) const fn compact(self) -> u32 {
        let (slot, ruling) = (self.slot(), (self.0 & (BLOCK | PASS)) >> PASS.trailing_zeros());
        if slot < COMPACT_SLOTS {
            ruling << COMPACT_SLOTS.trailing_zeros() | slot
        } else {
            NOT_COMPACT
        }
    }

    /// Verdict of a compact one, unless it did not fit.
    #[inline]
    pub(crate) const fn from_compact(bits: u32) -> Option<Self> {
        let (slot, ruling) = (bits % COMPACT_SLOTS, bits >> COMPACT_SLOTS.trailing_zeros());
        match bits {
            NOT_COMPACT => None,
            _ => Some(Self(ruling << PASS.trailing_zeros() | slot)),
        }
    }

    /// Slot of a single policy.
    #[inline]
    pub(crate) const fn slot(self) -> u32 {
        self.0 & PLACE
    }

    /// Outcome bits of a sub and a main policy; the latter is asked if the former allows.
    pub(crate) const fn combined_with(self, second: Self) -> u32 {
        (self.0 | second.0) & BLOCK | self.0 & second.0 & PASS
    }

    /// The outcome, without reading the policies.
    #[must_use]
    #[inline]
    pub const fn outcome(self) -> PolicyOutcome {
        match self {
            Self::NONE => PolicyOutcome::Default,
            Self(bits) if bits & BLOCK != 0 => PolicyOutcome::Block,
            Self(bits) if bits & PASS != 0 => PolicyOutcome::Bypass,
            Self(_) => PolicyOutcome::Protect,
        }
    }
}

/// Outcome of a verdict, before SAs are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyOutcome {
    /// No policy: the direction's default action.
    Default,
    /// Discarded.
    Block,
    /// Allowed in the clear.
    Bypass,
    /// Protected by SAs.
    Protect,
}

/// Marks verdicts of a sub and a main policy; others hold the slot of a policy.
pub(crate) const PAIR: u32 = 1 << 31;

/// A policy blocks.
pub(crate) const BLOCK: u32 = 1 << 30;

/// No policy blocks or has a template.
pub(crate) const PASS: u32 = 1 << 29;

pub(crate) const PLACE: u32 = PASS - 1;

/// Bits of a compact verdict: two for the outcome, of which at most one is set, and the slot.
const COMPACT_BITS: u32 = 23;

pub(crate) const COMPACT_SLOTS: u32 = 1 << (COMPACT_BITS - 2);

const NOT_COMPACT: u32 = (1 << COMPACT_BITS) - 1;
