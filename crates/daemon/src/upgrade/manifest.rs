//! What passes from one process of a gateway to the next, as JSON: fields may come, and what one
//! release does not know another may leave out.

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use uxfrm_control::greeting::Dialect;
use uxfrm_io::fd_channel::{FdChannel, FdMessage};
use uxfrm_status::drops::DropStatus;

use super::{queued_packets::QueuedPackets, sa_progress::SaProgress};
use crate::{control::SavedSession, devices, protocol::Identity, tunnels};

/// The words that both ends know. Another number means that a restart is needed.
pub(super) const VERSION: u32 = 2;

/// 1: the successor asks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) release: String,
    /// Why it can't begin, as where its configuration has faults.
    pub(super) refused: Option<String>,
    /// What it goes on with beside states, policies and clients. The first releases did not say.
    #[serde(default)]
    pub(super) takes: Vec<String>,
}

impl Hello {
    /// Whether who asks takes something over.
    pub(super) fn takes(&self, what: &str) -> bool {
        self.takes.iter().any(|one| one == what)
    }

    /// Whether who asks can take over from this release, with what there is.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn suits<'a>(&self, mut there: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
        let release = &self.release;
        if let Some(why) = &self.refused {
            bail!("the other process can't take over: {why}");
        }
        ensure!(
            self.version == VERSION,
            "release {release} does not take over from this one: restart it instead"
        );
        if let Some(what) = there.find(|what| !self.takes(what)) {
            bail!("release {release} does not take over {what}: restart it instead");
        }
        Ok(())
    }
}

/// What the control socket is called among the descriptors that pass.
pub(super) const CONTROL: &str = "control";

/// And the one beside its name, which older releases have not.
pub(super) const CONTROL_RESERVED: &str = "control-reserved";

/// What not every release takes over.
pub(super) const TUNNELS: &str = "tunnels";
/// Packets that wait for states.
pub(super) const WAITING: &str = "waiting";

/// Offload devices.
pub(super) const DEVICES: &str = "devices";

/// What this one does.
pub(super) const TAKES: [&str; 3] = [TUNNELS, WAITING, DEVICES];

/// 2: all but keys, which are in the messages of states behind it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub(super) version: u32,
    /// What the descriptors are that come with it, in their order.
    pub(super) descriptors: Vec<String>,
    /// Clients by their places.
    pub(super) clients: Vec<Option<SessionHandover>>,
    /// Who asked for the upgrade.
    pub(super) asked_by: u32,
    /// States in the order of their messages.
    pub(super) states: Vec<SaProgress>,
    /// States that files made, by their places among them.
    pub(super) states_of_files: Vec<usize>,
    /// The same of policies.
    pub(super) policies_of_files: Vec<usize>,
    /// What files say becomes of packets without a policy: in, forwarded and out, whether it is
    /// blocked.
    pub(super) blocks_of_files: [bool; 3],
    /// Packets dropped so far, by reason.
    pub(super) drops: BTreeMap<String, u64>,
    /// The last records of dropped packets, the oldest first: some hundreds at the most.
    #[serde(default)]
    pub(super) drop_records: Vec<DropStatus>,
    /// Workers: their sockets have a share of the packets each.
    pub(super) workers: usize,
    /// The highest rate at which a state receives, in numbers a second.
    pub(super) fastest: u64,
    /// Destinations that workers have ways to past the host's stack.
    #[serde(default)]
    pub(super) destinations: Vec<IpAddr>,
    /// The TUN, the routing table and the mark: routes and guard stay as they are.
    pub(super) place: TablesConfig,
    /// Tunnels and receive ports, where there ever were any.
    #[serde(default)]
    pub(super) tunnels: Option<tunnels::TunnelsHandover>,
    /// Those that files say.
    #[serde(default)]
    pub(super) tunnels_of_files: Option<tunnels::SpecHandover>,
    /// Offload devices, where there ever were any.
    #[serde(default)]
    pub(super) devices: Option<devices::DevicesHandover>,
}

/// The configuration that the kernel's tables depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TablesConfig {
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
pub(super) enum Readiness {
    Ready,
    Refused(String),
}

/// 4: how far the states are that have carried packets since.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Finals {
    pub(super) states: Vec<(usize, SaProgress)>,
    /// When the workers began to rest.
    pub(super) rested: u64,
    #[serde(default)]
    pub(super) tunnels: tunnels::TunnelFinals,
    #[serde(default)]
    pub(super) devices: devices::DeviceFinals,
    /// Packets that wait for states. Their bytes are a message behind this one, where there are
    /// any.
    #[serde(default)]
    pub(super) waiting: QueuedPackets,
}

/// A client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SessionHandover {
    port: u32,
    groups: u32,
    options: u32,
    dialect: u32,
    permitted: bool,
    unknown: bool,
    overrun: bool,
}

impl From<SavedSession> for SessionHandover {
    fn from(session: SavedSession) -> Self {
        let SavedSession { identity, permitted, unknown, overrun } = session;
        let Identity { port, groups, options, dialect, process: _ } = identity;
        Self { port, groups, options, dialect: dialect as u32, permitted, unknown, overrun }
    }
}

impl From<SessionHandover> for SavedSession {
    fn from(passed: SessionHandover) -> Self {
        let SessionHandover { port, groups, options, dialect, permitted, unknown, overrun } =
            passed;
        let dialect = Dialect::of(dialect).unwrap_or_default();
        // The connection itself tells whose it is.
        let identity = Identity { port, groups, options, dialect, process: 0 };
        Self { identity, permitted, unknown, overrun }
    }
}

/// Sends one of these.
pub(super) fn send(link: &FdChannel, step: &impl Serialize) -> anyhow::Result<()> {
    link.send(&serde_json::to_vec(step)?, &[]).context("the other process went away")
}

/// The next one, which is to be such a one.
pub(super) fn receive<T: DeserializeOwned>(link: &FdChannel) -> anyhow::Result<T> {
    Ok(receive_with_descriptors(link)?.0)
}

pub(super) fn receive_with_descriptors<T: DeserializeOwned>(
    link: &FdChannel,
) -> anyhow::Result<(T, Vec<std::os::fd::OwnedFd>)> {
    let parcel = link.receive().context("the other process does not go on")?;
    let FdMessage { bytes, descriptors } = parcel.context("the other process has ended")?;
    let step = serde_json::from_slice(&bytes).context("the other process speaks otherwise")?;
    Ok((step, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(text: &str) -> Hello {
        serde_json::from_str(text).unwrap()
    }

    fn refusal(text: &str, there: &[&str]) -> Option<String> {
        hello(text).suits(there.iter().copied()).err().map(|why| why.to_string())
    }

    #[test]
    fn hello_without_needed_feature_is_refused() {
        let first = r#"{"version":2,"release":"0.1.0","refused":null}"#;
        assert_eq!(refusal(first, &[]), None, "the first releases take states, policies, clients");
        for what in [TUNNELS, DEVICES] {
            let text = format!("release 0.1.0 does not take over {what}: restart it instead");
            assert_eq!(refusal(first, &[what]), Some(text));
        }
        let later =
            r#"{"version":2,"release":"9","refused":null,"takes":["tunnels","devices","x"],"y":1}"#;
        assert_eq!(refusal(later, &[TUNNELS, DEVICES]), None);
        assert!(!hello(first).takes(WAITING) && !hello(later).takes(WAITING));
    }

    #[test]
    fn hello_of_other_version_is_refused() {
        let text = r#"{"version":1,"release":"9.0.0","refused":null,"takes":["tunnels"]}"#;
        let why = "release 9.0.0 does not take over from this one: restart it instead";
        assert_eq!(refusal(text, &[]), Some(why.to_owned()));
        let text = r#"{"version":2,"release":"9.0.0","refused":"no configuration"}"#;
        let why = "the other process can't take over: no configuration";
        assert_eq!(refusal(text, &[]), Some(why.to_owned()));
    }
}
