//! Other user-space VPNs, as far as they are installed, measured between the same namespaces.

mod libipsec;
mod process;
mod wireguard;

use std::env;
use std::path::Path;

use super::results::unmeasured;
use crate::CaseFilter;
use crate::pair::{Interrupt, Topology};
use crate::report::{Case, Row};
use process::PeerProcess;

/// A VPN that runs in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// WireGuard in Go.
    WireguardGo,
    /// WireGuard in Rust, by Cloudflare.
    Boringtun,
    /// WireGuard in Rust, Mullvad's fork of boringtun.
    Gotatun,
    /// strongSwan's charon with its own data plane.
    Libipsec,
}

/// A peer at both ends; its processes end when this is dropped.
#[derive(Debug)]
pub(crate) struct RunningPeer {
    processes: [PeerProcess; 2],
}

impl Peer {
    pub(crate) const ALL: [Self; 4] =
        [Self::WireguardGo, Self::Boringtun, Self::Gotatun, Self::Libipsec];

    /// Its `path` in rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::WireguardGo => "wireguard-go",
            Self::Boringtun => "boringtun",
            Self::Gotatun => "gotatun",
            Self::Libipsec => "libipsec",
        }
    }

    /// The file that shows that it is installed: a program's name, or a path.
    const fn file(self) -> &'static str {
        match self {
            Self::WireguardGo => wireguard::GO,
            Self::Boringtun => wireguard::BORINGTUN,
            Self::Gotatun => wireguard::GOTATUN,
            Self::Libipsec => libipsec::PLUGIN,
        }
    }

    /// Whether it is installed.
    pub(crate) fn is_installed(self) -> bool {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = env::split_paths(&path);
        let mut directories = directories.chain([Path::new("/").to_owned()]);
        directories.any(|directory| directory.join(self.file()).exists())
    }

    /// Starts it at both ends, each with a route to the other's network.
    ///
    /// # Errors
    /// When it does not start, with the end of its log.
    pub(crate) fn start(
        self,
        topology: &Topology,
        interrupt: &Interrupt,
    ) -> anyhow::Result<RunningPeer> {
        let processes = match self {
            Self::WireguardGo | Self::Boringtun | Self::Gotatun => {
                wireguard::start(self.file(), topology, interrupt)
            }
            Self::Libipsec => libipsec::start(topology, interrupt),
        };
        Ok(RunningPeer { processes: processes? })
    }
}

impl RunningPeer {
    /// The process at each end.
    pub(crate) fn pids(&self) -> [u32; 2] {
        self.processes.each_ref().map(PeerProcess::pid)
    }

    /// Adds the end of the log of each process that ended by itself.
    pub(crate) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.processes.iter_mut().fold(error, |error, process| process.explain(error))
    }
}

/// A row for each peer that is not installed.
pub(crate) fn absent(only: &CaseFilter) -> Vec<Row> {
    let absent = Peer::ALL.into_iter().filter(|peer| !peer.is_installed());
    let cases = absent.map(|peer| Case::new().with("path", peer.name()));
    let listed = cases.filter(|case| only.lists_path(case));
    listed.map(|case| unmeasured(case, "not installed")).collect()
}
