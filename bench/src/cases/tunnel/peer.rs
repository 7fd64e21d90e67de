//! Other user-space VPNs, as far as they are installed: measured like uxfrm itself, between the same namespaces.

mod libipsec;
mod process;
mod wireguard;

use std::env;
use std::path::Path;

use serde_json::Map;

use crate::Filter;
use crate::pair::{Interrupt, Topology};
use crate::report::{Case, Row};
use process::Process;

/// A VPN that runs in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// WireGuard in Go.
    WireguardGo,
    /// WireGuard in Rust.
    Boringtun,
    /// strongSwan's charon with its own data plane.
    Libipsec,
}

/// A peer at both ends. Dropped, its processes end.
#[derive(Debug)]
pub(crate) struct Running {
    processes: [Process; 2],
}

impl Peer {
    pub(crate) const ALL: [Self; 3] = [Self::WireguardGo, Self::Boringtun, Self::Libipsec];

    /// Its `path` in rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::WireguardGo => "wireguard-go",
            Self::Boringtun => "boringtun",
            Self::Libipsec => "libipsec",
        }
    }

    /// The file that tells that it is there: a program's name, or a path.
    const fn file(self) -> &'static str {
        match self {
            Self::WireguardGo => wireguard::GO,
            Self::Boringtun => wireguard::BORINGTUN,
            Self::Libipsec => libipsec::PLUGIN,
        }
    }

    /// Whether it is installed.
    pub(crate) fn is_there(self) -> bool {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = env::split_paths(&path);
        let mut directories = directories.chain([Path::new("/").to_owned()]);
        directories.any(|directory| directory.join(self.file()).exists())
    }

    /// Starts it at both ends, each leading to the other's network.
    ///
    /// # Errors
    /// What it said when it did not.
    pub(crate) fn start(
        self,
        topology: &Topology,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Running> {
        let processes = match self {
            Self::WireguardGo | Self::Boringtun => {
                wireguard::start(self.file(), topology, interrupt)
            }
            Self::Libipsec => libipsec::start(topology, interrupt),
        };
        Ok(Running { processes: processes? })
    }
}

impl Running {
    /// Its processes, one an end.
    pub(crate) fn pids(&self) -> [u32; 2] {
        self.processes.each_ref().map(Process::pid)
    }

    /// `error`, with the last words of those that ended by themselves.
    pub(crate) fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.processes.iter_mut().fold(error, |error, process| process.explain(error))
    }
}

/// A row for each peer that is not there to be measured.
pub(crate) fn absent(only: &Filter) -> Vec<Row> {
    let absent = Peer::ALL.into_iter().filter(|peer| !peer.is_there());
    absent
        .map(|peer| Case::new().with("path", peer.name()))
        .filter(|case| only.admits(case))
        .map(|case| {
            let mut row = Row { case, figures: Map::new() };
            row.figures.insert("note".to_owned(), "not installed".into());
            row
        })
        .collect()
}
