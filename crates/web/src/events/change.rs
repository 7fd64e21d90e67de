//! Documents of events.

use std::net::IpAddr;

use serde::Serialize;
use utoipa::ToSchema;
use uxfrm_status::gateway::StatusTotals;
use uxfrm_status::health::Health;
use uxfrm_status::openapi::AddressText;

/// A tunnel whose health changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChangedTunnel {
    /// This end.
    #[schema(value_type = AddressText)]
    pub local: IpAddr,
    /// The other end.
    #[schema(value_type = AddressText)]
    pub remote: IpAddr,
    /// `tunnel` or `transport`.
    pub mode: String,
    /// Request id.
    pub reqid: u32,
    /// XFRM interface id; 0 for none.
    pub if_id: u32,
    /// Its health before; without where it was not among the 1,000 worst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Health>,
    /// Its health now; without where it is gone or not among the 1,000 worst any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Why it is not up, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<String>,
}

/// That the stream lives, and what there is to count.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Heartbeat {
    /// When, in Unix seconds.
    pub at: u64,
    /// The gateway's latest counts; without where none answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub totals: Option<StatusTotals>,
}

/// That a gateway went or came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct GatewayTurn {
    /// What happened.
    pub kind: TurnKind,
    /// The process that answers now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Why none does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// What happened to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TurnKind {
    /// None answers any more.
    Went,
    /// One answers.
    Came,
    /// Another process answers than before.
    Replaced,
}

/// That a listener was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct MissedEvents {
    /// Events that it has not been told.
    pub events: u64,
}

/// One event as it stands in the stream, field by field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServerSentEvent {
    /// Its kind.
    #[schema(pattern = "^(drop|tunnel|gateway|heartbeat|missed)$")]
    pub event: String,
    /// JSON, of the kind's schema.
    pub data: String,
    /// Of `drop`: the record's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}
