//! `uxfrm dev …`: devices as users speak of them: the commands, what is answered, and how both look in text.
//!
//! ```text
//! words ─ grammar ─▶ Command ── the control socket ──▶ whoever has the devices ──▶ Answer … Answer ─ text, or JSON as it is ─▶
//! ```
//!
//! A [`Command`] is one datagram of JSON, an [`Answer`] is another; the last one says that it is the last ([`Answer::Done`],
//! [`Answer::Refused`]). What JSON has is documented at the types here: `uxfrm -j dev show` prints [`DeviceReport`]s, `events` prints [`EventReport`]s.

mod grammar;
pub mod help;
mod report;
mod text;

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use grammar::{WordError, command};

/// What is asked of the gateway.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// `add`
    Add(Addition),
    /// `del NAME`
    Delete(String),
    /// `show [NAME [PART]]`; all devices without a name.
    Show {
        /// Which one.
        device: Option<String>,
        /// How much of it.
        part: Part,
    },
    /// `set NAME …`
    Set {
        /// Which one.
        device: String,
        /// What is to be different, in order.
        settings: Vec<Setting>,
    },
    /// `flow NAME -U …`: what stands behind `ethtool -U NAME`.
    Flow {
        /// Which one.
        device: String,
        /// `flow-type …` or `delete N`.
        rule: String,
    },
    /// `events [NAME]`: from now on, for as long as the connection lasts.
    Events(Option<String>),
}

/// A device that is to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Addition {
    /// Its name, by which states and policies call it: an interface that is there, or one that is made.
    pub name: String,
    /// The interface whose link it follows; without one, that of its own name.
    pub port: Option<String>,
    /// What it can do.
    pub profile: ProfileChoice,
    /// How many virtual functions it has: interfaces `NAMEv0`, `NAMEv1` and so on.
    pub functions: u16,
    /// Whether they may ask for anything from the start.
    pub trusted: bool,
    /// Whether received packets tell which state decrypted them; as the profile says without.
    pub marks: Option<bool>,
    /// Other sizes of its tables than the profile's.
    pub tables: BTreeMap<TableName, usize>,
}

/// Where a profile comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileChoice {
    /// One that comes with uxfrm, by its name; or a file's path, until whoever can read it has.
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

/// What is shown of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// All but its states.
    #[default]
    Device,
    /// Its states as well.
    States,
    /// The text that netdevsim has in debugfs, keys with it.
    Debugfs,
}

/// What can be changed about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// `up`, `down`: down stays so whatever the interface does.
    Link(LinkWord),
    /// `vf N trust on|off`
    Trust {
        /// Which virtual function, from 0.
        vf: u16,
        /// Whether it may ask for anything.
        trusted: bool,
    },
    /// `fault …`: what a [`Fault`](crate::Fault) is read from.
    Fault(String),
}

/// Whether a link carries anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkWord {
    /// It does.
    Up,
    /// It does not.
    Down,
}

/// One datagram of what the gateway says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// A device.
    Device(Box<DeviceReport>),
    /// States of the device before, as many as fit.
    States(Vec<StateReport>),
    /// A piece of text.
    Text(String),
    /// Where a rule was put, or was.
    Rule(u32),
    /// Something happened.
    Event(EventReport),
    /// That was all.
    Done,
    /// It is refused, and nothing has changed. That was all.
    Refused {
        /// Linux's number, positive.
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
    /// What it is.
    pub profile: String,
    /// Whether it carries anything.
    pub link: Option<LinkWord>,
    /// What it can do, by ethtool's names: `esp-hw-offload`, `tx-esp-segmentation`, `esp-tx-csum-hw-offload`; and `esn`, `policies`, `marks`.
    pub features: Vec<String>,
    /// How full its tables are.
    pub tables: BTreeMap<TableName, Fill>,
    /// How many policies it holds.
    pub policies: usize,
    /// Its virtual functions.
    pub functions: Vec<FunctionReport>,
    /// Its receive queues, packets that went into each.
    pub queues: Vec<u64>,
    /// Places of flow director's rules; `None` where there is none.
    pub rules: Option<Fill>,
    /// The rules.
    pub flows: Vec<RuleReport>,
    /// To the wire.
    pub tx: WayReport,
    /// From the wire.
    pub rx: WayReport,
    /// What it dropped, by [`NicDrop`](crate::NicDrop).
    pub drops: BTreeMap<String, u64>,
    /// Its states, in the order of its table, if they are asked for.
    pub states: Vec<StateReport>,
}

/// How full a table is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// Places that are taken.
    pub used: usize,
    /// All places; without a limit `None`.
    pub size: Option<usize>,
}

/// A virtual function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Its number, from 0.
    pub vf: u16,
    /// The interface that it is.
    pub name: String,
    /// That one's index.
    pub ifindex: u32,
    /// Whether it carries anything: its interface and the device are up.
    #[serde(default)]
    pub link: Option<LinkWord>,
    /// Whether it may ask for anything.
    pub trusted: bool,
    /// Receiving states, of how many.
    pub receive: Fill,
    /// Sending states, of how many.
    pub transmit: Fill,
}

/// A rule of the flow director.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Its place.
    pub loc: u32,
    /// In ethtool's words.
    pub rule: String,
}

/// Traffic in one direction: `received = passed + dropped + held`, in packets; a super-packet counts as its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayReport {
    /// Packets that came to the device.
    pub received: u64,
    /// Packets that went on.
    pub passed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that it dropped.
    pub dropped: u64,
    /// Packets that are delayed.
    pub held: u64,
}

/// A state on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StateReport {
    /// Its place in the device's table.
    pub slot: usize,
    /// What the device calls it.
    pub handle: u32,
    /// `packet` or `crypto`
    pub kind: String,
    /// `in` or `out`
    pub dir: String,
    /// Its destination.
    pub dst: IpAddr,
    /// Its SPI.
    pub spi: u32,
    /// Which virtual function has it; `None`: the device itself.
    pub vf: Option<u16>,
    /// Packets that went through it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The last number sent.
    pub oseq: u64,
    /// The highest number received.
    pub seq: u64,
    /// Packets that were received before.
    pub replay: u32,
    /// Packets older than the window.
    pub replay_window: u32,
    /// Packets that were forged.
    pub integrity_failed: u32,
}

/// Something that a device said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EventReport {
    /// The name of the interface that said it.
    pub device: String,
    /// `soft-limit`, `hard-limit`, `sequence-wrap`, `sequence-end`, `link-down`, `link-up`, `added`, `deleted`.
    pub event: String,
    /// What the device calls the state that it is about.
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

impl Answer {
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
