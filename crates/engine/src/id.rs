//! Numbers that must not be mixed up.

use std::fmt;

/// Security parameter index (RFC 4303 §2.1). 0 is never on the wire; 1 to 255 are reserved but usable by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spi(pub u32);

/// Request id: ties a policy's template to the states that may serve it; 0 fits any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reqid(pub u32);

/// XFRM interface id; 0 is "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IfId(pub u32);

/// The number of a processor (RFC 9611); a worker's own is its place among the workers, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cpu(pub u32);

/// A policy's priority: lower goes first, among equals the older.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Priority(pub u32);

/// A policy's index; its lowest three bits say the direction, as in the kernel (`net/xfrm/xfrm_policy.c: xfrm_gen_index`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PolicyIndex(pub u32);

/// A packet mark under a mask, as `mark VALUE mask MASK`. The default (0/0) fits every packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// What the masked mark must be; states and policies have it [sanitized](Self::sanitized).
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
}

impl Mark {
    /// Without those bits of the value that do not count: what Linux keeps of states' and policies' marks (`__xfrm_state_insert`,
    /// `xfrm_policy_insert`).
    #[must_use]
    #[inline]
    pub const fn sanitized(self) -> Self {
        Self { value: self.value & self.mask, mask: self.mask }
    }

    /// Whether a packet with mark `mark` fits. None does where the value has bits that do not count.
    #[must_use]
    #[inline]
    pub const fn fits(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    /// The packet's mark with this one's bits laid over it (`XFRMA_SET_MARK`).
    #[must_use]
    #[inline]
    pub fn applied_to(self, mark: u32) -> u32 {
        (mark & !self.mask) | (self.value & self.mask)
    }
}

impl fmt::Display for Spi {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "0x{:08x}", self.0)
    }
}
