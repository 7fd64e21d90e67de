//! States and policies of a dump, as configured: for who adds them again.

use uxfrm_engine::{Policy, SaConfig};
use uxfrm_netlink_wire::NetlinkMessage;

use crate::{
    AttributeType,
    decode::{common::parts, policy, state},
    layout::{RawPolicy, RawSa},
    refusal::NetlinkError,
};

/// A state of a dump.
#[derive(Debug)]
pub enum DumpedState {
    /// An acquire or `allocspi` made it; it has no keys yet.
    Larval,
    /// One with keys. A device is named by its interface's number, `if7`; of the numbers only those
    /// sent are there.
    Whole(Box<SaConfig>),
}

impl DumpedState {
    /// The state of a dump's `XFRM_MSG_NEWSA`.
    ///
    /// # Errors
    /// What a server would say to the same request: a state that is none of ours.
    pub fn of(message: NetlinkMessage<'_>) -> Result<Self, NetlinkError> {
        let (raw, attributes) = parts::<RawSa>(message)?;
        let has_keys = [AttributeType::AlgAead, AttributeType::AlgCrypt];
        if !has_keys.iter().any(|kind| attributes.has(*kind)) {
            return Ok(Self::Larval);
        }
        state::config(&raw, &attributes).map(Box::new).map(Self::Whole)
    }
}

/// The policy of a dump's `XFRM_MSG_NEWPOLICY`, with its index. A device is named by its
/// interface's number.
///
/// # Errors
/// As [`DumpedState::of`].
pub fn dumped_policy(message: NetlinkMessage<'_>) -> Result<Policy, NetlinkError> {
    let (raw, attributes) = parts::<RawPolicy>(message)?;
    policy::shown(&raw, &attributes)
}
