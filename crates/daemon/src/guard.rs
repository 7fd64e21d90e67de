//! The inbound guard: plain packets that should have come in protected are dropped, by the kernel, on our behalf.
//!
//! In host mode plain packets go from the wire to the host's own stack and never pass the engine. So the policies `in`
//! and `fwd` are told to the kernel's packet filter, as a table of our own: what did not come by the TUN has no states
//! around it, and is judged as `__xfrm_policy_check` judges a packet without any. It follows the policies as routes do, each
//! change at once; an orderly end removes it; after a crash it stays, and the next start replaces it.
//!
//! The chains are where XFRM asks: `in` on the way to a socket, `fwd` on the way through the host. Before all of `in`
//! pass, whatever the policies say, what brings protected packets here and what finds the way to the neighbour: loopback, ESP,
//! AH, UDP to IKE's ports and ours, IPv6 neighbour and router discovery. In Linux, too, ESP passes unchecked and IKE daemons'
//! sockets are exempt; neighbour discovery is not, and a policy from host to host that forgets it cuts IPv6 off.

mod rules;
mod upper_layer;

use anyhow::Context as _;
use uxfrm_engine::{DropCounts, DropReason, Spd};
use uxfrm_io::nftables::{Error, Nftables, Table};

use crate::config::{self, Config};
use rules::Surroundings;

/// The guard of one gateway.
#[derive(Debug)]
pub(crate) struct Guard {
    nftables: Nftables,
    around: Surroundings,
    table: Table,
    /// What the counters said last.
    counts: [u64; REASONS.len()],
}

/// Why the guard drops; each has a counter of its name in the table.
const REASONS: [DropReason; 3] =
    [DropReason::InTemplateMismatch, DropReason::InPolicyBlock, DropReason::InNoPolicy];

/// IKE (RFC 7296 §2.23).
const IKE: [u16; 2] = [500, 4500];

impl Guard {
    /// Puts up the guard for the policies in `spd`, in the place of one that an earlier run left; `None` if the configuration wants
    /// none, or leaves it open and the kernel has no `nf_tables`.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(config: &Config, spd: &Spd) -> anyhow::Result<Option<Self>> {
        let is_required = match config.host.guard {
            config::Guard::Off => return Ok(None),
            config::Guard::Auto => false,
            config::Guard::Require => true,
        };
        let ports = config.wire.udp_ports.iter().map(|port| port.get());
        let ports = IKE.into_iter().chain(ports).collect();
        match Self::install(Surroundings { tun: config.host.tun.to_string(), ports }, spd) {
            Err(error @ Error::Unsupported { .. }) if !is_required => {
                tracing::warn!(
                    %error,
                    "no guard: plain packets that the policies want protected are NOT dropped; \
                     keep them out by other means (`guard` in [host])"
                );
                Ok(None)
            }
            installed => {
                installed.map(Some).context("can't put up the guard against plain packets")
            }
        }
    }

    /// Makes the rules those of the policies in `spd`, at once.
    ///
    /// # Errors
    /// The kernel's; the old rules stay.
    pub(crate) fn follow(&mut self, spd: &Spd) -> anyhow::Result<()> {
        let table = rules::table(&self.around, spd);
        if table != self.table {
            self.nftables.replace_rules(&table).context("can't change the guard")?;
            self.table = table;
        }
        Ok(())
    }

    /// Adds what the guard dropped since the start.
    pub(crate) fn add_to(&mut self, counts: &mut DropCounts) {
        match self.nftables.counts(&self.table.name) {
            Ok(found) => {
                for (reason, count) in REASONS.iter().zip(&mut self.counts) {
                    let now = found.iter().find(|counter| counter.name == reason.as_str());
                    *count = now.map_or(*count, |counter| counter.packets.max(*count));
                }
            }
            Err(error) => tracing::warn!(%error, "the guard's counters are older than asked for"),
        }
        for (reason, count) in REASONS.iter().zip(self.counts) {
            counts.add(*reason, count);
        }
    }

    /// Takes the guard down.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        self.nftables.remove(&self.table.name).context("can't take down the guard")
    }

    fn install(around: Surroundings, spd: &Spd) -> Result<Self, Error> {
        let mut nftables = Nftables::open()?;
        let table = rules::table(&around, spd);
        nftables.install(&table)?;
        Ok(Self { nftables, around, table, counts: [0; REASONS.len()] })
    }
}
