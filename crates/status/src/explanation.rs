//! What a flow would meet, step by step: the answer behind `uxfrm why`.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::drops::DropAdvice;
#[cfg(feature = "openapi")]
use crate::openapi::AddressText;

/// IP protocols that a query names, as in `/etc/protocols`.
pub const PROTOCOLS: [(&str, u8); 8] = [
    ("icmp", 1),
    ("ipip", 4),
    ("tcp", 6),
    ("udp", 17),
    ("gre", 47),
    ("esp", 50),
    ("ipv6-icmp", 58),
    ("sctp", 132),
];

/// A packet whose way is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowQuery {
    /// Source address.
    pub source: IpAddr,
    /// Destination address; of the same family.
    pub destination: IpAddr,
    /// IP protocol number; 0 or nothing for one that no policy names.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub protocol: Option<u8>,
    /// Source port, or ICMP type.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source_port: Option<u16>,
    /// Destination port, or ICMP code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub destination_port: Option<u16>,
    /// Packet mark.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mark: Option<u32>,
    /// Which way it goes; without, in if the gateway has the destination address or there is ESP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub way: Option<FlowWay>,
    /// The ESP packet that it comes in.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub esp: Option<EspQuery>,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FlowWay {
    /// From this host, or through it, towards the network.
    Out,
    /// From the network to this host, or through it.
    In,
}

/// The ESP packet that a packet comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EspQuery {
    /// SPI.
    pub spi: u32,
    /// Outer source; without, any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<IpAddr>,
    /// Outer destination; without, that of the state with this SPI.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub destination: Option<IpAddr>,
}

/// What a packet would meet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowExplanation {
    /// The packet, as `10.1.0.1:7 -> 10.2.0.1:53 proto 17`.
    pub flow: String,
    /// Whose policies decide: `out`, `in` or `fwd`.
    pub direction: String,
    /// The gateway's TUN; empty in inline mode.
    pub tun: String,
    /// What becomes of it.
    pub outcome: FlowOutcome,
    /// The same in a sentence.
    pub verdict: String,
    /// What it meets, in order.
    pub steps: Vec<FlowStep>,
    /// How it leaves in ESP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encapsulation: Option<EncapsulationStatus>,
    /// Why it is dropped, and what to do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub drop: Option<DropAdvice>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum FlowOutcome {
    /// It leaves unencrypted.
    LeavesPlain,
    /// It leaves in ESP.
    LeavesProtected,
    /// It waits for a state that a key manager is asked for.
    Waits,
    /// It comes in.
    ComesIn,
    /// It is dropped.
    Dropped,
}

/// One thing that a packet meets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FlowStep {
    /// What: `route`, `policy`, `template`, `state`, `size`, `way out`, `path`.
    pub stage: String,
    /// How it ends.
    pub result: StepResult,
    /// What was found.
    pub text: String,
    /// What else there is to say: what nearly fitted, and why it did not.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StepResult {
    /// The packet goes on.
    Passes,
    /// It goes on, but something is not as it should be.
    Doubtful,
    /// It ends here.
    Fails,
}

impl StepResult {
    /// The word before a step, as `uxfrm doctor` has it before a check.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Passes => "ok",
            Self::Doubtful => "warn",
            Self::Fails => "fail",
        }
    }
}

/// How a packet leaves in ESP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EncapsulationStatus {
    /// Source of the outer header.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub source: IpAddr,
    /// Destination of the outer header.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub destination: IpAddr,
    /// SPIs of the states, the innermost first.
    pub spis: Vec<String>,
    /// Destination port of ESP in UDP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub udp_port: Option<u16>,
    /// The largest packet towards the peer, in bytes.
    pub path_mtu: u16,
    /// Where `path_mtu` comes from, as far as the kernel tells.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path_mtu_origin: Option<PathMtuOrigin>,
    /// Seconds after which the kernel forgets a learned one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path_mtu_expires: Option<u64>,
    /// The largest plain packet of its family that passes, in bytes: the largest that fits, and of
    /// IPv6 at least 1280, whose ESP leaves in fragments where less fits.
    pub inner_mtu: u64,
    /// Bytes that ESP adds to the largest packet that fits.
    #[serde(default)]
    pub overhead: u64,
    /// MTU of the TUN, which the kernel tells senders, in bytes; nothing in inline mode.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tun_mtu: Option<u32>,
    /// What fixes it: `[host] mtu`, in bytes. Without, it follows the tunnels.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fixed_tun_mtu: Option<u16>,
    /// The most that TCP's SYNs announce, in bytes, if `[host] clamp_mss` has them changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub clamped_mss: Option<u16>,
    /// Who hears of packets that are too large; nothing in inline mode, which tells all.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub too_big: Option<TooBigStatus>,
    /// Whether an offload device encrypts.
    pub offloaded: bool,
}

/// What becomes of ICMP errors about packets that are too large for their tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TooBigStatus {
    /// How those of uxfrm leave.
    pub uxfrm: SizeErrorWay,
    /// Whether the packets come out of a tunnel: the kernel's errors would quote them in plaintext.
    pub comes_by_tunnel: bool,
    /// Own addresses from which the kernel's errors do not reach the sender, and why.
    pub lost: Vec<LostErrors>,
}

/// How an ICMP error of uxfrm leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SizeErrorWay {
    /// Plain, from an address of the host.
    FromHost,
    /// By the TUN, from the packet's destination.
    FromDestination,
    /// Not at all: it would leave plain, and quotes what policies protect.
    Withheld,
}

/// ICMP errors of the kernel that do not reach the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LostErrors {
    /// Own address that they come from.
    #[cfg_attr(feature = "openapi", schema(value_type = AddressText))]
    pub from: IpAddr,
    /// Which policy takes or drops them.
    pub cause: String,
    /// The policy that lets them pass.
    pub mend: String,
}

/// Where the MTU towards a peer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum PathMtuOrigin {
    /// It is the device's.
    Device,
    /// The route has one of its own.
    Route,
    /// A router has told it by ICMP.
    Learned,
}

impl FlowStep {
    /// A step that the packet passes.
    #[must_use]
    pub fn new(stage: &str, text: impl Into<String>) -> Self {
        Self {
            stage: stage.to_owned(),
            result: StepResult::Passes,
            text: text.into(),
            notes: Vec::new(),
        }
    }

    /// The same with another result.
    #[must_use]
    pub fn with_result(self, result: StepResult) -> Self {
        Self { result, ..self }
    }

    /// The same with more to say.
    #[must_use]
    pub fn with_notes(self, notes: Vec<String>) -> Self {
        Self { notes, ..self }
    }
}
