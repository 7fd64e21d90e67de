//! One policy, as configured (`struct xfrm_userpolicy_info` and its attributes).

use bitflags::bitflags;

use crate::{Direction, IfId, Limits, Mark, Offload, PolicyIndex, Priority, Selector, Template};

/// What happens to packets that match. Allowed packets go through the templates; without templates they pass as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// `action allow`
    #[default]
    Allow,
    /// `action block`
    Block,
}

/// `ptype`: sub policies come before main ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// `ptype main`
    #[default]
    Main,
    /// `ptype sub`
    Sub,
}

bitflags! {
    /// `flag …` of a policy, with the kernel's values (`XFRM_POLICY_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PolicyFlags: u8 {
        /// `localok`: kept for listing.
        const LOCALOK = 1;
        /// `icmp`: ICMP errors about a matching flow match too.
        const ICMP = 2;
        /// `cpu-acquire`: kept for listing.
        const CPU_ACQUIRE = 4;
        /// uxfrm's own, in a bit that the kernel does not use: says what a policy of the last run
        /// did, until one of the same name comes. No client may ask for it.
        const HELD = 128;
    }
}

/// How many templates a policy has at the most (`XFRM_MAX_DEPTH`).
pub const MAX_TEMPLATES: usize = 6;

/// A policy as configured. Its age, which decides among equal priorities, is the order of adding.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// In, out or forward.
    pub direction: Direction,
    /// Main or sub.
    pub kind: PolicyKind,
    /// Index asked for; 0 lets the database choose.
    pub index: PolicyIndex,
    /// The traffic it is for.
    pub selector: Selector,
    /// Lower goes first.
    pub priority: Priority,
    /// Allow or block.
    pub action: Action,
    /// What is to be done, innermost first, at most [`MAX_TEMPLATES`].
    pub templates: Vec<Template>,
    /// Packets whose mark fits match.
    pub mark: Mark,
    /// XFRM interface id.
    pub if_id: IfId,
    /// Flags.
    pub flags: PolicyFlags,
    /// Limits.
    pub limits: Limits,
    /// Packet offload asked for.
    pub offload: Option<Offload>,
}

/// Which policy is meant.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyKey {
    /// Its direction.
    pub direction: Direction,
    /// Main or sub.
    pub kind: PolicyKind,
    /// Its mark, value and mask.
    pub mark: Mark,
    /// Its XFRM interface id.
    pub if_id: IfId,
    /// By what it is named.
    pub name: PolicyName,
}

/// A policy has two names.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyName {
    /// Its index.
    Index(PolicyIndex),
    /// Its selector, as it was given.
    Selector(Selector),
}
