//! What the engine tells those who listen (IKE daemons, `ip xfrm monitor`).

pub(crate) mod acquire;

use std::sync::Arc;

use crate::{FlowKey, PolicyEntry, PolicyIndex, SaId, Wanted};

/// Something that happened to a state or policy. Drained by the runtime after each batch and each timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A state reached a soft limit, once (`XFRM_MSG_EXPIRE`, hard 0).
    SaSoftLimit(SaId),
    /// A state reached a hard limit and is dead (`XFRM_MSG_EXPIRE`, hard 1).
    SaHardLimit(SaId),
    /// A policy is past a soft limit; again every 30 seconds (`XFRM_MSG_POLEXPIRE`, hard 0).
    PolicySoftLimit(Arc<PolicyEntry>),
    /// A policy reached a hard limit and is gone (`XFRM_MSG_POLEXPIRE`, hard 1).
    PolicyHardLimit(Arc<PolicyEntry>),
    /// A packet met a template for which there is no state (`XFRM_MSG_ACQUIRE`). Each worker says it once as long as
    /// [`Acquires::pending`](crate::Acquires::pending) has it.
    Acquire {
        /// The policy that wants a state.
        policy: PolicyIndex,
        /// Which of the policy's templates has none.
        template: u8,
        /// The state.
        wanted: Wanted,
        /// The packet that asked first.
        flow: FlowKey,
    },
    /// ESP-in-UDP of a state came from another address or port than configured (`XFRM_MSG_MAPPING`).
    Mapping {
        /// The inbound state.
        state: SaId,
        /// Where it came from now.
        from: std::net::SocketAddr,
    },
    /// The network takes less towards there than the worker thought: [`Host::narrow`](crate::Host::narrow) should say so.
    NarrowPath(std::net::IpAddr),
}
