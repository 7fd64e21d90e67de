//! Events for listeners (IKE daemons, `ip xfrm monitor`).

pub(crate) mod acquire;

use std::sync::Arc;

use crate::{ChargeOutcome, FlowKey, PolicyEntry, PolicyIndex, Sa, SaId, SaRequest};

/// An event of an SA or policy. The runtime drains them after each batch and each timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An SA reached a soft limit, once (`XFRM_MSG_EXPIRE`, hard 0).
    SaSoftLimit(SaId),
    /// An SA reached a hard limit and is dead (`XFRM_MSG_EXPIRE`, hard 1).
    SaHardLimit(SaId),
    /// A policy is past a soft limit; again every 30 seconds (`XFRM_MSG_POLEXPIRE`, hard 0).
    PolicySoftLimit(Arc<PolicyEntry>),
    /// A policy reached a hard limit and is gone (`XFRM_MSG_POLEXPIRE`, hard 1).
    PolicyHardLimit(Arc<PolicyEntry>),
    /// A template has no SA (`XFRM_MSG_ACQUIRE`). Each worker raises it once while
    /// [`AcquireView::pending`](crate::AcquireView::pending) has it.
    Acquire {
        /// The policy that needs an SA.
        policy: PolicyIndex,
        /// Index of the template without SA.
        template: u8,
        /// The SA.
        wanted: SaRequest,
        /// Flow of the first packet.
        flow: FlowKey,
    },
    /// ESP in UDP of an SA came from another address or port than configured (`XFRM_MSG_MAPPING`).
    Mapping {
        /// The inbound SA.
        state: SaId,
        /// The new source.
        from: std::net::SocketAddr,
    },
    /// The path MTU towards an address is smaller than the worker assumed:
    /// [`HostView::path_mtus`](crate::HostView::path_mtus) should have it.
    NarrowPath(std::net::IpAddr),
}

impl Event {
    /// The event to raise after charging an SA, if any.
    #[inline(always)]
    pub(crate) fn of_charge(outcome: ChargeOutcome, sa: &Sa) -> Option<Self> {
        match outcome {
            ChargeOutcome::SoftLimit => Some(Self::SaSoftLimit(sa.id())),
            ChargeOutcome::HardLimit => Some(Self::SaHardLimit(sa.id())),
            ChargeOutcome::Ok | ChargeOutcome::NeedsPerPacket | ChargeOutcome::Expired => None,
        }
    }
}
