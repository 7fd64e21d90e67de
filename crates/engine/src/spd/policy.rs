//! One policy, as configured (`struct xfrm_userpolicy_info` and its attributes).

use bitflags::bitflags;

use crate::{Direction, IfId, Limits, Mark, Offload, PolicyIndex, Priority, Selector, Template};

/// Action on packets that match. Allowed packets go through the templates, or pass unchanged if
/// there are none.
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
        /// uxfrm's own flag, in a bit that the kernel does not use: a placeholder for a policy of
        /// the previous run, until one of the same name is added. Clients cannot set it.
        const HELD = 128;
    }
}

/// Upper limit of templates in a policy (`XFRM_MAX_DEPTH`).
pub const MAX_TEMPLATES: usize = 6;

/// A policy as configured. Among equal priorities the order of insertion decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// In, out or forward.
    pub direction: Direction,
    /// Main or sub.
    pub kind: PolicyKind,
    /// Index asked for; 0 lets the database choose.
    pub index: PolicyIndex,
    /// Traffic that it matches.
    pub selector: Selector,
    /// Lower values are matched first.
    pub priority: Priority,
    /// Allow or block.
    pub action: Action,
    /// Transformations, innermost first, at most [`MAX_TEMPLATES`].
    pub templates: Vec<Template>,
    /// Mark and mask that packets must match.
    pub mark: Mark,
    /// XFRM interface id.
    pub if_id: IfId,
    /// Flags.
    pub flags: PolicyFlags,
    /// Lifetime limits.
    pub limits: Limits,
    /// Requested packet offload.
    pub offload: Option<Offload>,
}

/// Identifies a policy.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyKey {
    /// Direction.
    pub direction: Direction,
    /// Main or sub.
    pub kind: PolicyKind,
    /// Mark, value and mask.
    pub mark: Mark,
    /// XFRM interface id.
    pub if_id: IfId,
    /// Selector or index.
    pub name: PolicyName,
}

/// A policy is identified by index or by selector.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyName {
    /// Its index.
    Index(PolicyIndex),
    /// Its selector as configured.
    Selector(Selector),
}
