//! One tunnel and one state, as the gateway has them at an instant.
//!
//! A *tunnel* here is all that goes between two outer ends by one kind of template: policies with
//! equal template source, destination, mode, reqid and interface id in both directions, and all
//! states that fit them. Transport mode is a tunnel in this sense, too.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

#[cfg(feature = "openapi")]
use crate::openapi::AddressText;
use crate::{
    counters::CounterList,
    health::{Health, HealthReason},
    icmp_error::IcmpErrorStatus,
    limit::LimitStatus,
};

/// A tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TunnelStatus {
    /// This end; unspecified (`0.0.0.0`, `::`) where the template names none.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub local: IpAddr,
    /// The other end; unspecified where the template names none.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub remote: IpAddr,
    /// `tunnel` or `transport`.
    pub mode: String,
    /// `esp`.
    pub protocol: String,
    /// Request id that ties policies and states.
    pub reqid: u32,
    /// XFRM interface id; 0 for none.
    pub if_id: u32,
    /// Whether it carries what it is to carry.
    pub health: Health,
    /// Why it is not up.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<HealthReason>,
    /// The reason in a sentence, and which way has no policy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub explanation: Option<String>,
    /// What its policies protect: the first 16.
    pub nets: Vec<ProtectedNets>,
    /// How many there are.
    pub nets_total: u64,
    /// Policies by direction.
    pub policies: PolicyTally,
    /// The kernel's name of its algorithms, by the newest state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cipher: Option<String>,
    /// ESP in UDP, by the newest state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encapsulation: Option<UdpStatus>,
    /// The offload device that has its states or policies.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
    /// What its present states have sent.
    pub sent: TrafficStatus,
    /// What its present states have received.
    pub received: TrafficStatus,
    /// Packets that its states refused.
    pub failures: FailureStatus,
    /// Packets that were dropped for its states and policies, by reason, up to about a second ago,
    /// since the gateway's process began. ESP by an unknown SPI, and what the guard drops, are no
    /// tunnel's: they are in the gateway's totals.
    pub drops: CounterList,
    /// ICMP errors about its ESP since the peer was heard last, the latest first: of the last five
    /// minutes, and as long as packets still leave.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub icmp_errors: Vec<IcmpErrorStatus>,
    /// The soft limit that is likely to come first: a key manager then makes a new state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rekey: Option<LimitStatus>,
    /// The hard limit that is likely to come first: the state then ends.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expiry: Option<LimitStatus>,
    /// How much of the sequence numbers the newest outbound state has used, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sequence_ratio: Option<f64>,
    /// Its states, the newest first: at most 8.
    pub states: Vec<StateStatus>,
    /// How many there are.
    pub states_total: u64,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateStatus {
    /// SPI in hexadecimal, as `0x00001001`.
    pub spi: String,
    /// Source of the outer header.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub source: IpAddr,
    /// Destination of the outer header.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub destination: IpAddr,
    /// Which way it carries packets of this gateway: `out` or `in`; without where no policy tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub direction: Option<String>,
    /// `tunnel` or `transport`.
    pub mode: String,
    /// Request id that ties it to policies.
    pub reqid: u32,
    /// XFRM interface id; 0 for none.
    pub if_id: u32,
    /// `valid`, `dying` (past its soft limit) or `expired`.
    pub lifecycle: String,
    /// The kernel's name of its algorithms.
    pub cipher: String,
    /// ESP in UDP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encapsulation: Option<UdpStatus>,
    /// The offload device that has it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
    /// Seconds since it was added.
    pub added_seconds_ago: u64,
    /// What it has carried.
    pub traffic: TrafficStatus,
    /// Packets that it refused.
    pub failures: FailureStatus,
    /// Packets in its replay window; 0 for no check.
    pub replay_window: u32,
    /// The last sequence number sent.
    pub sequence_sent: u64,
    /// The highest sequence number received.
    pub sequence_received: u64,
    /// How much of its sequence numbers it has sent, from 0 to 1.
    pub sequence_ratio: f64,
    /// The soft limit that is likely to come first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rekey: Option<LimitStatus>,
    /// The hard limit that is likely to come first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expiry: Option<LimitStatus>,
}

/// What a policy protects, from this gateway's point of view.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProtectedNets {
    /// Addresses on this side, as `10.1.0.0/16`.
    pub local: String,
    /// Addresses on the other side.
    pub remote: String,
    /// IP protocol number and ports, as `6 port 443`; without for all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub traffic: Option<String>,
}

/// Policies by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PolicyTally {
    /// `dir out`
    pub outbound: u64,
    /// `dir in`
    pub inbound: u64,
    /// `dir fwd`
    pub forward: u64,
}

/// Packets and bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrafficStatus {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets before encapsulation, after decapsulation, as the kernel counts.
    pub bytes: u64,
    /// Seconds since the latest packet; without if there never was one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub last_seconds_ago: Option<u64>,
}

/// Packets that states refused (`struct xfrm_stats`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailureStatus {
    /// Older than the replay window.
    pub replay_window: u64,
    /// Received before.
    pub replay: u64,
    /// Not authentic: changed on the way, or another key.
    pub integrity_failed: u64,
}

/// ESP in UDP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UdpStatus {
    /// The word of `ip xfrm`, as `espinudp`.
    pub kind: String,
    /// Source port; 0 for one per flow.
    pub source_port: u16,
    /// Destination port.
    pub destination_port: u16,
}

impl TrafficStatus {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let last = [self.last_seconds_ago, other.last_seconds_ago];
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            last_seconds_ago: last.into_iter().flatten().min(),
        }
    }
}

impl FailureStatus {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            replay_window: self.replay_window + other.replay_window,
            replay: self.replay + other.replay,
            integrity_failed: self.integrity_failed + other.integrity_failed,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn are_none(self) -> bool {
        self.replay_window | self.replay | self.integrity_failed == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_of_several_states_adds_up() {
        let one = TrafficStatus { packets: 1, bytes: 10, last_seconds_ago: None };
        let other = TrafficStatus { packets: 2, bytes: 5, last_seconds_ago: Some(7) };
        let both = TrafficStatus { packets: 3, bytes: 15, last_seconds_ago: Some(7) };
        assert_eq!(one.plus(other), both);
        assert_eq!(other.plus(both).last_seconds_ago, Some(7));
        let failures = FailureStatus { replay: 1, ..FailureStatus::default() };
        assert_eq!(failures.plus(failures).replay, 2);
        assert!(!failures.are_none() && FailureStatus::default().are_none());
    }
}
