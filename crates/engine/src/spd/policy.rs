//! One policy, as configured (`struct xfrm_userpolicy_info` and its attributes).

use bitflags::bitflags;

use crate::{
    Direction, IfId, LifetimeLimits, Mark, Offload, PolicyIndex, Prefix, Priority, Selector,
    Template,
};

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
    pub limits: LifetimeLimits,
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

impl Policy {
    /// Packets from one prefix to another go through `template`'s ESP, or are dropped (RFC 4301:
    /// PROTECT). Inbound and forwarded packets must have come out of it.
    ///
    /// Priority 0 and no mark, interface id, flag or limit. More templates go to
    /// [`Policy::templates`], narrower traffic to [`Policy::selector`].
    ///
    /// ```
    /// use uxfrm_engine::{Direction, Policy, Prefix, Priority, Template};
    ///
    /// let from = Prefix::new([10, 1, 0, 0].into(), 16)?;
    /// let to = Prefix::new([10, 2, 0, 0].into(), 16)?;
    /// let template = Template::esp_tunnel([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    /// let policy = Policy::protect(Direction::Out, from, to, template);
    /// assert_eq!(policy.templates, [template]);
    /// assert_eq!(policy.with_priority(Priority(100)).priority, Priority(100));
    /// # Ok::<(), uxfrm_engine::PrefixError>(())
    /// ```
    #[must_use]
    pub fn protect(direction: Direction, from: Prefix, to: Prefix, template: Template) -> Self {
        Self { templates: vec![template], ..Self::bypass(direction, from, to) }
    }

    /// Packets from one prefix to another pass as they are (RFC 4301: BYPASS).
    ///
    /// ```
    /// use uxfrm_engine::{Action, Direction, Family, Policy, Prefix};
    ///
    /// let any = Prefix::any(Family::V6);
    /// let policy = Policy::bypass(Direction::In, any, any);
    /// assert!(policy.action == Action::Allow && policy.templates.is_empty());
    /// ```
    #[must_use]
    pub fn bypass(direction: Direction, from: Prefix, to: Prefix) -> Self {
        Self {
            direction,
            kind: PolicyKind::Main,
            index: PolicyIndex(0),
            selector: Selector::between(from, to),
            priority: Priority(0),
            action: Action::Allow,
            templates: Vec::new(),
            mark: Mark::default(),
            if_id: IfId(0),
            flags: PolicyFlags::empty(),
            limits: LifetimeLimits::default(),
            offload: None,
        }
    }

    /// Packets from one prefix to another are dropped (RFC 4301: DISCARD).
    ///
    /// ```
    /// use uxfrm_engine::{Action, Direction, Family, Policy, Prefix};
    ///
    /// let any = Prefix::any(Family::V4);
    /// assert_eq!(Policy::block(Direction::Out, any, any).action, Action::Block);
    /// ```
    #[must_use]
    pub fn block(direction: Direction, from: Prefix, to: Prefix) -> Self {
        Self { action: Action::Block, ..Self::bypass(direction, from, to) }
    }

    /// This policy with another priority; lower goes first.
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }
}
