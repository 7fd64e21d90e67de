//! What the engine tells those who listen (IKE daemons, `ip xfrm monitor`).

use std::net::IpAddr;

use crate::{Direction, PolicyIndex, SaId};

/// Something that happened to a state or policy. Drained by the runtime after each batch and each timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A state reached a soft limit, once (`XFRM_MSG_EXPIRE`, hard 0).
    SaSoftLimit(SaId),
    /// A state reached a hard limit and is dead (`XFRM_MSG_EXPIRE`, hard 1).
    SaHardLimit(SaId),
    /// A policy is past a soft limit; again every 30 seconds (`XFRM_MSG_POLEXPIRE`, hard 0).
    PolicySoftLimit(PolicyIndex, Direction),
    /// A policy reached a hard limit and is gone (`XFRM_MSG_POLEXPIRE`, hard 1).
    PolicyHardLimit(PolicyIndex, Direction),
    /// A packet matched a policy for which no state is there (`XFRM_MSG_ACQUIRE`).
    Acquire {
        /// The policy that wants a state.
        policy: PolicyIndex,
        /// Source address of the packet.
        source: IpAddr,
        /// Destination address of the packet.
        destination: IpAddr,
    },
    /// ESP-in-UDP of a state came from another address or port than configured (`XFRM_MSG_MAPPING`).
    Mapping {
        /// The inbound state.
        state: SaId,
        /// Where it came from now.
        from: std::net::SocketAddr,
    },
}
