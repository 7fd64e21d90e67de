//! What passes from one process of a gateway to the next, as JSON: fields may come, and what one release does
//! not know another may leave out.

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::Context as _;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uxfrm_control::greeting::Dialect;
use uxfrm_io::link::{Link, Parcel};

use super::carried::Carried;
use crate::control::{Identity, Seat};

/// The words that both ends know. Another number means that a restart is needed.
pub(super) const VERSION: u32 = 2;

/// 1: the successor asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) release: String,
    /// Why it can't begin, as where its configuration has faults.
    pub(super) refused: Option<String>,
}

/// 2: all but keys, which are in the messages of states behind it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) version: u32,
    /// What the descriptors are that come with it, in their order.
    pub(super) descriptors: Vec<String>,
    /// Clients by their places.
    pub(super) clients: Vec<Option<PassedSeat>>,
    /// Who asked for the upgrade.
    pub(super) asked_by: u32,
    /// States in the order of their messages.
    pub(super) states: Vec<Carried>,
    /// States that files made, by their places among them.
    pub(super) states_of_files: Vec<usize>,
    /// The same of policies.
    pub(super) policies_of_files: Vec<usize>,
    /// What files say becomes of packets without a policy: in, forwarded and out, whether it is blocked.
    pub(super) blocks_of_files: [bool; 3],
    /// Packets dropped so far, by reason.
    pub(super) drops: BTreeMap<String, u64>,
    /// Workers: their sockets have a share of the packets each.
    pub(super) workers: usize,
    /// The highest rate at which a state receives, in numbers a second.
    pub(super) fastest: u64,
    /// Destinations that lanes have ways to past the host's stack.
    #[serde(default)]
    pub(super) destinations: Vec<IpAddr>,
    /// The TUN, the routing table and the mark: routes and guard stay as they are.
    pub(super) place: Place,
}

/// What of the configuration the kernel's tables hang on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) tun: String,
    pub(super) table: u32,
    pub(super) mark: u32,
    pub(super) sequences: Option<std::path::PathBuf>,
    pub(super) is_controlled: bool,
    /// Devices whose sockets and rings are read.
    #[serde(default)]
    pub(super) devices: Vec<String>,
}

/// 3: all is built, or why not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Verdict {
    Ready,
    Refused(String),
}

/// 4: how far the states are that have carried packets since.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Finals {
    pub(super) states: Vec<(usize, Carried)>,
    /// When the lanes began to rest.
    pub(super) rested: u64,
}

/// A client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PassedSeat {
    port: u32,
    groups: u32,
    options: u32,
    dialect: u32,
    permitted: bool,
    unknown: bool,
    overrun: bool,
}

impl From<Seat> for PassedSeat {
    fn from(seat: Seat) -> Self {
        let Seat { identity, permitted, unknown, overrun } = seat;
        let Identity { port, groups, options, dialect, process: _ } = identity;
        Self { port, groups, options, dialect: dialect as u32, permitted, unknown, overrun }
    }
}

impl From<PassedSeat> for Seat {
    fn from(passed: PassedSeat) -> Self {
        let PassedSeat { port, groups, options, dialect, permitted, unknown, overrun } = passed;
        let dialect = Dialect::of(dialect).unwrap_or_default();
        // The connection itself tells whose it is.
        let identity = Identity { port, groups, options, dialect, process: 0 };
        Self { identity, permitted, unknown, overrun }
    }
}

/// Sends one of these.
pub(super) fn send(link: &Link, step: &impl Serialize) -> anyhow::Result<()> {
    link.send(&serde_json::to_vec(step)?, &[]).context("the other process went away")
}

/// The next one, which is to be such a one.
pub(super) fn receive<T: DeserializeOwned>(link: &Link) -> anyhow::Result<T> {
    Ok(receive_with_descriptors(link)?.0)
}

pub(super) fn receive_with_descriptors<T: DeserializeOwned>(
    link: &Link,
) -> anyhow::Result<(T, Vec<std::os::fd::OwnedFd>)> {
    let parcel = link.receive().context("the other process does not go on")?;
    let Parcel { bytes, descriptors } = parcel.context("the other process has ended")?;
    let step = serde_json::from_slice(&bytes).context("the other process speaks otherwise")?;
    Ok((step, descriptors))
}
