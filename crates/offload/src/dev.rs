//! `uxfrm dev …`: commands for devices, their answers, and the text form of both.
//!
//! ```text
//! words ─ grammar ─▶ Command ── control socket ──▶ device thread ──▶ Answer … ─ text or JSON ─▶
//! ```
//!
//! A [`DevCommand`] is one datagram of JSON, each [`DevAnswer`] another; the last one is
//! [`DevAnswer::Done`] or [`DevAnswer::Refused`]. The JSON is documented at these types: `uxfrm -j
//! dev show` prints
//! [`DeviceReport`]s, `events` prints [`EventReport`]s.

mod grammar;
pub mod help;
mod report;
mod text;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use grammar::{WordError, command};

/// A command to the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DevCommand {
    /// `add`
    Add(Addition),
    /// `del NAME`
    Delete(String),
    /// `show [NAME [PART]]`; all devices without a name.
    Show {
        /// Which one.
        device: Option<String>,
        /// Detail.
        part: ShowDetail,
    },
    /// `set NAME …`
    Set {
        /// Which one.
        device: String,
        /// Settings in order.
        settings: Vec<Setting>,
    },
    /// `flow NAME -U …`: the words behind `ethtool -U NAME`.
    Flow {
        /// Which one.
        device: String,
        /// `flow-type …` or `delete N`.
        rule: String,
    },
    /// `events [NAME]`: from now on, until the connection ends.
    Events(Option<String>),
}

/// A device to add.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Addition {
    /// Its name for SAs and policies: an existing interface, or one to create.
    pub name: String,
    /// The interface whose link it follows; default: that of its own name.
    pub port: Option<String>,
    /// Its capabilities.
    pub profile: ProfileChoice,
    /// Number of virtual functions: interfaces `NAMEv0`, `NAMEv1` and so on.
    pub functions: u16,
    /// Whether they are trusted from the start.
    pub trusted: bool,
    /// Whether received packets carry a mark of their SA; default: the profile's.
    pub marks: Option<bool>,
    /// Table sizes that differ from the profile's.
    pub tables: BTreeMap<TableName, usize>,
}

/// Origin of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileChoice {
    /// A shipped profile by name; or a file's path, until somebody who can read it has.
    Named(String),
    /// The text of a file.
    Text(String),
}

/// A table of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableName {
    /// Receiving states.
    Receive,
    /// Sending states.
    Transmit,
    /// States of both directions together.
    Both,
    /// Different destinations of receiving states.
    Addresses,
}

/// Detail of `show`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShowDetail {
    /// All but its SAs.
    #[default]
    Device,
    /// Its SAs as well.
    States,
    /// netdevsim's debugfs text, including keys.
    Debugfs,
}

/// A setting of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// `up`, `down`: `down` persists whatever the interface does.
    Link(LinkWord),
    /// `vf N trust on|off`
    Trust {
        /// Number of the virtual function, from 0.
        vf: u16,
        /// Whether it is trusted.
        trusted: bool,
    },
    /// `fault …`: words of a [`Fault`](crate::Fault).
    Fault(String),
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkWord {
    /// It carries packets.
    Up,
    /// It carries none.
    Down,
}

/// One datagram of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DevAnswer {
    /// A device.
    Device(Box<DeviceReport>),
    /// SAs of the preceding device, as many as fit.
    States(Vec<StateReport>),
    /// A piece of text.
    Text(String),
    /// Location of an added or deleted rule.
    Rule(u32),
    /// An event.
    Event(EventReport),
    /// End of the answer.
    Done,
    /// Refused, with nothing changed. End of the answer.
    Refused {
        /// errno, positive.
        errno: i32,
        /// Why.
        text: String,
    },
}

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// The index of its interface.
    pub ifindex: u32,
    /// The interface whose link it follows.
    pub port: Option<String>,
    /// Its profile.
    pub profile: String,
    /// State of its link.
    pub link: Option<LinkWord>,
    /// Features, by ethtool's names: `esp-hw-offload`, `tx-esp-segmentation`,
    /// `esp-tx-csum-hw-offload`; and `esn`, `policies`, `marks`.
    pub features: Vec<String>,
    /// Use of its tables.
    pub tables: BTreeMap<TableName, Fill>,
    /// How many policies it holds.
    pub policies: usize,
    /// Its virtual functions.
    pub functions: Vec<FunctionReport>,
    /// Packets per receive queue.
    pub queues: Vec<u64>,
    /// Use of flow director rules; `None` without a flow director.
    pub rules: Option<Fill>,
    /// The rules.
    pub flows: Vec<RuleReport>,
    /// To the wire.
    pub tx: DirectionReport,
    /// From the wire.
    pub rx: DirectionReport,
    /// Drops by [`NicDrop`](crate::NicDrop).
    pub drops: BTreeMap<String, u64>,
    /// SAs in table order, if requested.
    pub states: Vec<StateReport>,
}

/// Use of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// Used entries.
    pub used: usize,
    /// Size; `None` without a limit.
    pub size: Option<usize>,
}

/// A virtual function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Its number, from 0.
    pub vf: u16,
    /// Its interface.
    pub name: String,
    /// The interface's index.
    pub ifindex: u32,
    /// Whether its interface and the device are up.
    #[serde(default)]
    pub link: Option<LinkWord>,
    /// Whether it is trusted.
    pub trusted: bool,
    /// Receiving SAs.
    pub receive: Fill,
    /// Sending SAs.
    pub transmit: Fill,
}

/// A rule of the flow director.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Its location.
    pub loc: u32,
    /// In ethtool's words.
    pub rule: String,
}

/// Traffic in one direction: `received = passed + dropped + held`, in packets; a super-packet
/// counts as its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Packets received.
    pub received: u64,
    /// Packets passed on.
    pub passed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets dropped.
    pub dropped: u64,
    /// Packets that are delayed.
    pub held: u64,
}

/// An SA on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StateReport {
    /// Index in the device's table.
    pub slot: usize,
    /// Handle on the device.
    pub handle: u32,
    /// `packet` or `crypto`
    pub kind: String,
    /// `in` or `out`
    pub dir: String,
    /// Its destination.
    pub dst: IpAddr,
    /// Its SPI.
    pub spi: u32,
    /// Its virtual function; `None` for the device itself.
    pub vf: Option<u16>,
    /// Packets that went through it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Highest sequence number sent.
    pub oseq: u64,
    /// Highest sequence number received.
    pub seq: u64,
    /// Replayed packets.
    pub replay: u32,
    /// Packets older than the window.
    pub replay_window: u32,
    /// Packets with a wrong ICV.
    pub integrity_failed: u32,
}

/// An event of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EventReport {
    /// The interface.
    pub device: String,
    /// `soft-limit`, `hard-limit`, `sequence-wrap`, `sequence-end`, `link-down`, `link-up`,
    /// `added`, `deleted`.
    pub event: String,
    /// Handle of the SA.
    pub handle: Option<u32>,
    /// The state's SPI.
    pub spi: Option<u32>,
    /// Its destination.
    pub dst: Option<IpAddr>,
}

impl Default for ProfileChoice {
    fn default() -> Self {
        Self::Named("unlimited".to_owned())
    }
}

impl DevAnswer {
    /// Whether more answers follow.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        matches!(self, Self::Done | Self::Refused { .. })
    }
}

impl TableName {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Receive, Self::Transmit, Self::Both, Self::Addresses];

    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Receive => "receive",
            Self::Transmit => "transmit",
            Self::Both => "both",
            Self::Addresses => "addresses",
        }
    }
}
