//! The guard: plain packets that should have come in protected are dropped, by the kernel, on our behalf, and so are those that are about to leave
//! unprotected.
//!
//! In host mode plain packets go from the wire to the host's own stack and never pass the engine. So the policies `in`
//! and `fwd` are told to the kernel's packet filter, as a table of our own: what did not come by the TUN has no states
//! around it, and is judged as `__xfrm_policy_check` judges a packet without any. It follows the policies as routes do, each
//! change at once, by its own rules alone; an orderly end removes it; after a crash it stays, and the next start replaces it.
//!
//! The chains are where XFRM asks: `in` on the way to a socket, `fwd` on the way through the host. Before all of `in`
//! pass, whatever the policies say, what brings protected packets here and what finds the way to the neighbour: loopback, ESP,
//! AH, UDP to IKE's ports and ours, IPv6 neighbour and router discovery. In Linux, too, ESP passes unchecked and IKE daemons'
//! sockets are exempt; neighbour discovery is not, and a policy from host to host that forgets it cuts IPv6 off.
//!
//! On the way out, routes bring packets to the TUN, but not all: a socket may be bound to a device, or name one with each packet, and then Linux takes
//! the destination for a neighbour if no route by that device leads there; broadcasts and IPv6 multicast leave by tables that stand before ours. In
//! Linux the policies `out` are asked about these as well. So what leaves by another device, without the mark of our sockets, is
//! judged by them here: what is to be protected is dropped, and whoever sent it is told (`EPERM`).

mod placed;
mod rules;
mod upper_layer;

use anyhow::Context as _;
use uxfrm_engine::{Direction, DropCounts, DropReason, PolicyChange, Spd};
use uxfrm_io::nftables::{Error, Nftables};

use crate::config::{self, Config};
use placed::Placed;
use rules::Surroundings;

/// The guard of one gateway.
#[derive(Debug)]
pub(crate) struct Guard {
    nftables: Nftables,
    around: Surroundings,
    /// The table's name.
    name: String,
    /// Which rules are whose; `None` when that has to be learnt anew.
    placed: Option<Placed>,
    /// Whether there are too many policies for those `out` to have rules.
    are_many: bool,
    /// What the counters said last.
    counts: [u64; REASONS.len()],
}

/// Why the guard drops; each has a counter of its name in the table.
const REASONS: [DropReason; 6] = [
    DropReason::InTemplateMismatch,
    DropReason::InPolicyBlock,
    DropReason::InNoPolicy,
    DropReason::OutUnprotected,
    DropReason::OutPolicyBlock,
    DropReason::OutDefaultBlock,
];

/// Changes that are made one by one; when there are more, all rules are replaced.
const FEW: usize = 64;

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
        let (tun, mark) = (config.host.tun.to_string(), config.wire.mark.get());
        match Self::install(Surroundings { tun, mark, ports }, spd) {
            Err(error @ Error::Unsupported { .. }) if !is_required => {
                tracing::warn!(
                    %error,
                    "no guard: plain packets that the policies want protected are NOT dropped, and programs \
                     that bind to a device send them past uxfrm; keep them out by other means (`guard` in [host])"
                );
                Ok(None)
            }
            installed => {
                installed.map(Some).context("can't put up the guard against plain packets")
            }
        }
    }

    /// Makes the rules those of the policies in `spd`, at once, whatever they were.
    ///
    /// # Errors
    /// The kernel's; the old rules stay.
    pub(crate) fn follow(&mut self, spd: &Spd) -> Result<(), Error> {
        self.placed = None;
        self.nftables.replace_rules(&rules::table(&self.around, spd))?;
        self.placed = Placed::learn(&mut self.nftables, &self.name, spd)?;
        self.note_many(spd);
        Ok(())
    }

    /// Lets the rules follow policies that came or went; `spd` is what they led to.
    ///
    /// # Errors
    /// The kernel's; the old rules stay.
    pub(crate) fn change(&mut self, changes: &[PolicyChange], spd: &Spd) -> Result<(), Error> {
        if self.are_many != rules::are_many(spd) {
            return self.follow(spd);
        }
        let are_many = self.are_many;
        let minded = || changes.iter().filter(|change| !are_many || minds(change));
        let added = minded().filter(|change| matches!(change, PolicyChange::Added(_))).count();
        match (minded().count(), added, self.placed.take()) {
            (0, _, placed) => self.placed = placed,
            (..=FEW, ..=1, Some(mut placed)) => {
                match placed.change(&mut self.nftables, &self.name, minded()) {
                    Ok(()) => self.placed = Some(placed),
                    // Somebody took the rules away: `nft flush ruleset`, where the table can't be ours alone.
                    Err(Error::Unsupported { .. }) => self.follow(spd)?,
                    Err(error) => return Err(error),
                }
            }
            _ => self.follow(spd)?,
        }
        Ok(())
    }

    /// Adds what the guard dropped since the start.
    pub(crate) fn add_to(&mut self, counts: &mut DropCounts) {
        match self.nftables.counts(&self.name) {
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
        self.nftables.remove(&self.name).context("can't take down the guard")
    }

    fn install(around: Surroundings, spd: &Spd) -> Result<Self, Error> {
        let mut nftables = Nftables::open()?;
        let table = rules::table(&around, spd);
        nftables.install(&table)?;
        let name = table.name;
        let placed = Placed::learn(&mut nftables, &name, spd)?;
        let counts = [0; REASONS.len()];
        let mut guard = Self { nftables, around, name, placed, are_many: false, counts };
        guard.note_many(spd);
        Ok(guard)
    }

    /// Says when the way out is guarded no more.
    fn note_many(&mut self, spd: &Spd) {
        let before = std::mem::replace(&mut self.are_many, rules::are_many(spd));
        if self.are_many && !before {
            tracing::warn!(
                policies = spd.len(),
                "too many policies to guard the way out: programs that bind to a device can send past uxfrm"
            );
        }
    }
}

/// Whether a change of policies changes the rules, when those `out` have none.
fn minds(change: &PolicyChange) -> bool {
    let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = change;
    entry.direction() != Direction::Out
}
