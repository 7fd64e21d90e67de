//! What the policies say of a flow, by a short number.

use crate::{Action, Template};

/// The policies that decide over a flow, by their place in the cache; it holds until the next [`PolicyCache::begin`](super::PolicyCache::begin).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerId(pub(crate) u32);

impl AnswerId {
    /// No policy.
    pub(crate) const NONE: Self = Self(u32::MAX);

    /// That of one policy, by its slot.
    pub(crate) fn of(slot: u32, action: Action, templates: &[Template]) -> Self {
        Self(match action {
            Action::Block => slot | BLOCK,
            Action::Allow if templates.is_empty() => slot | PASS,
            Action::Allow => slot,
        })
    }

    /// What the policy does, where there is but one.
    #[inline]
    pub(crate) const fn action(self) -> Action {
        if self.0 & BLOCK == 0 { Action::Allow } else { Action::Block }
    }

    /// That of one policy in [`COMPACT_BITS`] bits; all ones when it needs more.
    pub(crate) const fn compact(self) -> u32 {
        let (slot, ruling) = (self.slot(), (self.0 & (BLOCK | PASS)) >> PASS.trailing_zeros());
        if slot < COMPACT_SLOTS {
            ruling << COMPACT_SLOTS.trailing_zeros() | slot
        } else {
            NOT_COMPACT
        }
    }

    /// That of so many bits.
    #[inline]
    pub(crate) const fn from_compact(bits: u32) -> Option<Self> {
        let (slot, ruling) = (bits % COMPACT_SLOTS, bits >> COMPACT_SLOTS.trailing_zeros());
        match bits {
            NOT_COMPACT => None,
            _ => Some(Self(ruling << PASS.trailing_zeros() | slot)),
        }
    }

    /// The slot of its policy, where there is but one.
    #[inline]
    pub(crate) const fn slot(self) -> u32 {
        self.0 & PLACE
    }

    /// What two policies come to, of which the second is asked when the first allows.
    pub(crate) const fn combined_with(self, second: Self) -> u32 {
        (self.0 | second.0) & BLOCK | self.0 & second.0 & PASS
    }

    /// What it comes to, without reading the policies.
    #[must_use]
    #[inline]
    pub const fn ruling(self) -> Ruling {
        match self {
            Self::NONE => Ruling::Default,
            Self(bits) if bits & BLOCK != 0 => Ruling::Block,
            Self(bits) if bits & PASS != 0 => Ruling::Pass,
            Self(_) => Ruling::Protect,
        }
    }
}

/// What an answer comes to, states apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// No policy: the direction's default.
    Default,
    /// Blocked.
    Block,
    /// Allowed without templates.
    Pass,
    /// Allowed through states.
    Protect,
}

/// Marks answers that are pairs; the others are slots of policies.
pub(crate) const PAIR: u32 = 1 << 31;

/// One of the policies blocks.
pub(crate) const BLOCK: u32 = 1 << 30;

/// None blocks, and none has a template.
pub(crate) const PASS: u32 = 1 << 29;

pub(crate) const PLACE: u32 = PASS - 1;

/// Bits that a brief answer has: two, which are not both set, for what it comes to, the others for the slot.
const COMPACT_BITS: u32 = 23;

pub(crate) const COMPACT_SLOTS: u32 = 1 << (COMPACT_BITS - 2);

const NOT_COMPACT: u32 = (1 << COMPACT_BITS) - 1;
