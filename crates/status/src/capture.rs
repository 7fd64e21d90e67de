//! Captured packets.
//!
//! The first request on a connection begins the capture; each further one, with the same fields,
//! takes what has come since. The capture ends with the connection.

use serde::{Deserialize, Serialize};

use crate::{
    drops::{EspStatus, FlowStatus, StateName},
    explanation::{FlowOutcome, FlowWay},
    gateway::PeerFilter,
    packet_bytes::PacketBytes,
};

/// Where packets are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CaptureSide {
    /// Before a packet is protected, or after it was opened and checked.
    Plain,
    /// As it is on the network.
    Wire,
    /// Where it was dropped.
    Drops,
}

/// What is to be captured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CaptureQuery {
    /// Where; everywhere if there is none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<CaptureSide>,
    /// Which packets.
    pub filter: PacketQuery,
    /// Bytes of each packet at the most; 262,144 without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snaplen: Option<u32>,
    /// Packets a second at the most; 10,000 without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
}

/// Which packets: those for which all holds that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PacketQuery {
    /// From or to this address or prefix, by the packet's own IP header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<PeerFilter>,
    /// In ESP from or to this address or prefix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<PeerFilter>,
    /// In ESP with this SPI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spi: Option<u32>,
    /// Of this IP protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u8>,
    /// From or to this port, or of this ICMP type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// Packets that were captured since the answer before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureReport {
    /// What stands behind the sides that are captured.
    pub interfaces: Vec<CaptureInterface>,
    /// The packets; those of one worker are in order.
    pub packets: Vec<CapturedPacketStatus>,
    /// Whether more are there already.
    pub more: bool,
    /// Packets lost since the capture began, as they were not asked for in time.
    pub lost: u64,
    /// Packets left out since then, as there were more a second than asked for.
    pub over_rate: u64,
}

/// What stands behind a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CaptureInterface {
    /// The side.
    pub side: CaptureSide,
    /// Names of devices and sockets.
    pub name: String,
    /// The same in words.
    pub description: String,
}

/// A captured packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedPacketStatus {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Where.
    pub side: CaptureSide,
    /// Which way it went; of drops out where the reason begins with `out`, else in.
    pub way: FlowWay,
    /// Number of the worker.
    pub worker: u32,
    /// Length of the whole packet, from the IP header on.
    pub length: u64,
    /// Its first bytes; none of drops of which only the number is known.
    pub bytes: PacketBytes,
    /// Its IP header and ports.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub flow: Option<FlowStatus>,
    /// Its ESP header.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub esp: Option<EspStatus>,
    /// Length of a segment, of a super-packet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub segment: Option<u16>,
    /// What becomes of it, by the policies and states of when it was read; of dropped packets what
    /// became of it. Not known of ESP that comes in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdict: Option<FlowOutcome>,
    /// Why it is dropped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// How many were dropped with it, if there were several.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub packets: Option<u64>,
    /// The state.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<StateName>,
    /// Index of the policy.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub policy: Option<u32>,
    /// The offload device.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub device: Option<String>,
}

impl CaptureQuery {
    /// Bytes of a packet where the query says nothing.
    pub const DEFAULT_SNAPLEN: u32 = 262_144;
    /// Packets a second where the query says nothing.
    pub const DEFAULT_RATE: u32 = 10_000;

    /// Whether a side is captured.
    #[must_use]
    pub fn wants(&self, side: CaptureSide) -> bool {
        self.sides.is_empty() || self.sides.contains(&side)
    }
}

impl CaptureSide {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Wire, Self::Drops];
}
