//! Whose traffic a dropped packet was.

use crate::sa::subject::SaSubject;
use crate::{DeviceId, PolicyIndex};

/// The state, policy and device that had to do with a drop, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DropSubject {
    /// The state that the packet came by, the innermost one, or was to leave by.
    pub sa: Option<SaSubject>,
    /// The policy that decided.
    pub policy: Option<PolicyIndex>,
    /// The device that the state or policy is on, or that the packet came from.
    pub device: Option<DeviceId>,
}

impl DropSubject {
    /// Nothing is known.
    pub const NOBODY: Self = Self { sa: None, policy: None, device: None };
}
