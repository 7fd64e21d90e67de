//! Traced packets: what really happened to each.
//!
//! The first request on a connection has the workers trace the next packets; each further one, with
//! the same fields, takes the traces that have come since. It ends with the connection.

use serde::{Deserialize, Serialize};

use crate::{
    capture::PacketQuery,
    drops::{EspStatus, FlowStatus, StateName},
    explanation::{FlowStep, FlowWay},
    packet_bytes::PacketBytes,
};

/// Which packets are to be traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceQuery {
    /// How many.
    pub packets: u32,
    /// Which.
    #[serde(default)]
    pub filter: PacketQuery,
}

/// Traces that have come since the answer before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceReport {
    /// The traces; those of one worker are in order.
    pub traces: Vec<TraceStatus>,
    /// Packets that are still to be traced.
    pub left: u32,
    /// Packets that were not traced, as more than 1,000 a second had to be looked at or 256 traces
    /// waited.
    pub passed_over: u64,
}

/// A packet's way through a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceStatus {
    /// When it came, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Number of the worker.
    pub worker: u32,
    /// Which way it went.
    pub way: FlowWay,
    /// The port that it came by: `host`, `protected` or `wire`.
    pub port: String,
    /// Length as it came.
    pub length: u64,
    /// Packets in it: several in a super-packet.
    pub packets: u64,
    /// Its IP header and ports as it came.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub flow: Option<FlowStatus>,
    /// Its ESP header as it came.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub esp: Option<EspStatus>,
    /// Its first bytes as it came, at most 128.
    pub bytes: PacketBytes,
    /// What became of it.
    pub outcome: TraceOutcome,
    /// `fast` or `slow`: the path that carried it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path: Option<String>,
    /// How the flow cache answered: `hit`, `miss`, `stale` or `bypassed`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cache: Option<String>,
    /// Indexes of the policies that decided.
    pub policies: Vec<u32>,
    /// The states that it left or came by, in the order in which they were applied.
    pub states: Vec<StateName>,
    /// Its ESP sequence number: of an outgoing packet the outermost one's lower 32 bits, of one
    /// that came in the outermost one's 64 bits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sequence: Option<u64>,
    /// Why it was dropped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// The same in words, in order.
    pub steps: Vec<FlowStep>,
}

/// What became of a traced packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceOutcome {
    /// It left unencrypted.
    LeftPlain,
    /// It left in ESP.
    LeftProtected,
    /// A device does the rest.
    HandedOver,
    /// It was given to the host, or is to be forwarded.
    Delivered,
    /// It waits for a state, or for the rest of its datagram.
    Waits,
    /// It was dropped.
    Dropped,
    /// It was taken, and nothing came of it: a keepalive, or an IKE message.
    Consumed,
}

impl TraceOutcome {
    /// The same in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::LeftPlain => "left PLAIN",
            Self::LeftProtected => "left in ESP",
            Self::HandedOver => "was handed over to a device",
            Self::Delivered => "was delivered",
            Self::Waits => "waits",
            Self::Dropped => "was dropped",
            Self::Consumed => "was consumed",
        }
    }
}
