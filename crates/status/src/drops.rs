//! Dropped packets: records of single ones, sampled, and counts by whose they were.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::gateway::PeerFilter;
#[cfg(feature = "openapi")]
use crate::openapi::AddressText;

/// Which records are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(default, deny_unknown_fields)]
pub struct DropQuery {
    /// Only those from this number on: [`DropReport::next`] of the answer before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// Only those of this reason, as `in_no_state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only those from or to this address or prefix, outside or inside of ESP.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(value_type = Option<crate::openapi::PrefixText>))]
    pub peer: Option<PeerFilter>,
}

/// Records of dropped packets, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropReport {
    /// When this was read, in Unix seconds.
    pub at: u64,
    /// The records, of the last 1,024.
    pub records: Vec<DropStatus>,
    /// What each reason among them means.
    pub advice: Vec<DropAdvice>,
    /// The number that the next record will have.
    pub next: u64,
    /// Records that came too fast to be kept, since the gateway started.
    pub lost: u64,
}

/// One dropped packet, which may stand for several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropStatus {
    /// Its number; each record has the next one.
    pub number: u64,
    /// When it was dropped, in Unix milliseconds.
    pub at_ms: u64,
    /// Why, as `uxfrm stat --reasons` names it.
    pub reason: String,
    /// Packets that it stands for: of the same reason, since the record before of that reason.
    pub packets: u64,
    /// The ESP packet, if it was one or was to become one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub esp: Option<EspStatus>,
    /// The plain packet's flow, the inner one if it came by ESP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub flow: Option<FlowStatus>,
    /// What the kernel said when it refused to send it, as `EPERM: …`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub send_error: Option<String>,
    /// The state that it came by or was to leave by.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<StateName>,
    /// Index of the policy that decided: `uxfrm xfrm policy get dir … index …`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<u32>,
    /// The offload device, by name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
    /// Length of the packet in bytes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub length: Option<u64>,
    /// How it began, at most 128 bytes in hexadecimal; plain where it was opened or not sealed yet.
    /// Only root and the gateway's user are told.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub head: Option<String>,
}

/// The outside of an ESP packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EspStatus {
    /// SPI in hexadecimal.
    pub spi: String,
    /// Source of the outer header.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub source: IpAddr,
    /// Destination of the outer header.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub destination: IpAddr,
    /// UDP ports, of ESP in UDP: source, destination.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ports: Option<(u16, u16)>,
    /// Sequence number, its lower 32 bits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sequence: Option<u32>,
}

/// A flow of plain packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowStatus {
    /// Source address.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub source: IpAddr,
    /// Destination address.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source port; of ICMP the type.
    pub source_port: u16,
    /// Destination port; of ICMP the code.
    pub destination_port: u16,
}

/// A state, by name: it may be gone by now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateName {
    /// SPI in hexadecimal.
    pub spi: String,
    /// Source of the outer header; unspecified for any.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub source: IpAddr,
    /// Destination of the outer header.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub destination: IpAddr,
    /// Request id.
    pub reqid: u32,
}

/// What a drop reason means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropAdvice {
    /// The reason.
    pub reason: String,
    /// What usually causes it.
    pub cause: String,
    /// What to try next, mostly a command.
    pub next: String,
}

/// What counts are by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum DropScope {
    /// The state.
    Sa,
    /// The policy.
    Policy,
    /// The offload device.
    Device,
}

/// Which counts are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
#[serde(deny_unknown_fields)]
pub struct DropTallyQuery {
    /// What they are by.
    pub by: DropScope,
}

/// Counts of dropped packets by whose they were, up to about a second ago. They began with the
/// gateway's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropTallyReport {
    /// When this was read, in Unix seconds.
    pub at: u64,
    /// The counts, the highest first: at most 10,000.
    pub tallies: Vec<DropTallyStatus>,
    /// How many there are.
    pub tallies_total: u64,
}

/// Packets dropped for one reason of one state, policy or device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DropTallyStatus {
    /// The state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<StateName>,
    /// Index of the policy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<u32>,
    /// The device.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
    /// Why.
    pub reason: String,
    /// How many.
    pub packets: u64,
}

impl DropQuery {
    /// Whether a record is asked for.
    #[must_use]
    pub fn wants(&self, record: &DropStatus) -> bool {
        self.from.is_none_or(|from| record.number >= from)
            && self.reason.as_ref().is_none_or(|reason| *reason == record.reason)
            && self.peer.is_none_or(|peer| record.ends().any(|end| peer.contains(end)))
    }
}

impl DropStatus {
    /// All addresses that it names.
    fn ends(&self) -> impl Iterator<Item = IpAddr> {
        let esp = self.esp.iter().flat_map(|esp| [esp.source, esp.destination]);
        let flow = self.flow.iter().flat_map(|flow| [flow.source, flow.destination]);
        let state = self.state.iter().flat_map(|state| [state.source, state.destination]);
        esp.chain(flow).chain(state)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(number: u64, reason: &str) -> DropStatus {
        DropStatus {
            number,
            at_ms: 1_000,
            reason: reason.to_owned(),
            packets: 1,
            esp: Some(EspStatus {
                spi: "0x00bad5b1".to_owned(),
                source: [192, 0, 2, 2].into(),
                destination: [192, 0, 2, 1].into(),
                ports: None,
                sequence: Some(7),
            }),
            flow: None,
            send_error: None,
            state: None,
            policy: None,
            device: None,
            length: Some(120),
            head: None,
        }
    }

    #[test]
    fn query_selects_by_number_reason_and_address() {
        let record = record(5, "in_no_state");
        let peer = |text: &str| Some(text.parse().unwrap());
        let any = DropQuery::default();
        for (query, wanted) in [
            (any.clone(), true),
            (DropQuery { from: Some(5), ..any.clone() }, true),
            (DropQuery { from: Some(6), ..any.clone() }, false),
            (DropQuery { reason: Some("in_no_state".to_owned()), ..any.clone() }, true),
            (DropQuery { reason: Some("in_replay".to_owned()), ..any.clone() }, false),
            (DropQuery { peer: peer("192.0.2.2"), ..any.clone() }, true),
            (DropQuery { peer: peer("192.0.2.0/24"), ..any.clone() }, true),
            (DropQuery { peer: peer("10.0.0.0/8"), ..any.clone() }, false),
        ] {
            assert_eq!(query.wants(&record), wanted, "{query:?}");
        }
    }
}
