//! Which states and policies `list` and `deleteall` are about. What is not named fits all.

use uxfrm_engine::{
    Action, Direction, Family, Mode, PolicyFlags, PolicyIndex, PolicyKind, Prefix, Priority, Reqid,
    SaFlags, SaProtocol, Spi,
};

pub use super::selector::SelectorFilter;

/// Of states (`ip/xfrm_state.c: xfrm_state_filter_match`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateFilter {
    /// Family of the outer header.
    pub family: Option<Family>,
    /// Source lies in it.
    pub source: Option<Prefix>,
    /// Destination lies in it.
    pub destination: Option<Prefix>,
    /// Exactly this protocol.
    pub protocol: Option<SaProtocol>,
    /// Exactly this SPI.
    pub spi: Option<Spi>,
    /// Exactly this mode.
    pub mode: Option<Mode>,
    /// Exactly this request id.
    pub reqid: Option<Reqid>,
    /// At least one of these flags.
    pub flags: Option<SaFlags>,
}

/// Of policies (`ip/xfrm_policy.c: xfrm_policy_filter_match`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyFilter {
    /// In, out or forward.
    pub direction: Option<Direction>,
    /// Its selector's prefixes lie in these and its other fields are these.
    pub selector: SelectorFilter,
    /// Exactly this index.
    pub index: Option<PolicyIndex>,
    /// Main or sub.
    pub kind: Option<PolicyKind>,
    /// Allow or block.
    pub action: Option<Action>,
    /// Exactly this priority.
    pub priority: Option<Priority>,
    /// At least one of these flags.
    pub flags: Option<PolicyFlags>,
}
