//! The guard: plain packets that should have come in protected are dropped, by the kernel, on our
//! behalf, and so are those that are about to leave unprotected.
//!
//! In host mode plain packets go from the wire to the host's own stack and never pass the engine.
//! So the policies `in` and `fwd` are told to the kernel's packet filter, as a table of our own:
//! what did not come by the TUN has no states around it, and is judged as `__xfrm_policy_check`
//! judges a packet without any. It follows the policies as routes do, each change at once, by its
//! own rules alone; an end that opens (`at_exit`) removes it; after any other and a crash it stays,
//! and the next start replaces it.
//!
//! The chains are where XFRM asks: `in` on the way to a socket, `fwd` on the way through the host.
//! Before all of `in` pass, whatever the policies say, what brings protected packets here
//! and what finds the way to the neighbour: loopback, ESP, AH, UDP to IKE's ports and ours, IPv6
//! neighbour and router discovery. In Linux, too, ESP passes unchecked and IKE daemons' sockets are
//! exempt; neighbour discovery is not, and a policy from host to host that forgets it cuts IPv6
//! off.
//!
//! On the way out, routes bring packets to the TUN, but not all: a socket may be bound to a device,
//! or name one with each packet, and then Linux takes the destination for a neighbour if no route
//! by that device leads there; broadcasts and IPv6 multicast leave by tables that stand before
//! ours. In Linux the policies `out` are asked about these as well, and about what IPv6's routing
//! header has go by others first. So what leaves by another device, without the mark of our
//! sockets, is judged by them here: what is to be protected is dropped, and whoever sent it is told
//! (`EPERM`).
//!
//! An ICMP error quotes the packet that it is about, and most of them leave from an address that no
//! policy names. Those that quote what the policies `in` and `fwd` protect are dropped
//! (`quotes.rs`); in Linux they leave plain.
//!
//! The same table leads there what the policies `out` protect, by a mark (`divert.rs`); what that
//! misses meets the guard.

mod chain;
mod chain_kind;
mod conditions;
mod counter;
mod default_rules;
mod divert;
mod error;
mod exempt;
mod fragments;
mod group;
pub(crate) mod host_bypass;
mod key_refcounts;
mod match_shape;
mod quotes;
mod rules;
mod ruleset_state;
mod run;
mod split_run;
mod upper_layer;

use std::collections::BTreeSet;

use anyhow::Context as _;
use uxfrm_engine::{Direction, DropCounts, DropReason, PolicyChange, Spd};
use uxfrm_io::nftables::{Error, Nftables, PacketFilter, Table, TableWatch};

use crate::{
    config::{self, Config},
    descriptor_store::DescriptorStore,
    routes::DivertMode,
};
use chain::PlacementError;
use chain_kind::ChainKind;
use counter::Counter;
use error::{ApplyError, KernelState};
use exempt::RulesetContext;
use ruleset_state::{PlacementFailure, RulesetState, STEPS};

/// The guard of one gateway: its table in the kernel's packet filter.
#[derive(Debug)]
pub(crate) struct Firewall<F = Nftables> {
    filter: F,
    context: RulesetContext,
    /// The table's name.
    name: String,
    /// Which rules and sets are whose; `None` when that has to be found out anew.
    layout: Option<RulesetState>,
    /// The name of the next set.
    next: u32,
    /// Whether those `out` would be too many rules, and have none.
    leaves_out: bool,
    /// How many policies more may come and go before a better table is asked for again, which the
    /// kernel did not take.
    put_off: usize,
    /// What it dropped since the start.
    counts: [Counter; REASONS.len()],
}

/// Why the guard drops; each has a counter of its name in the table.
const REASONS: [DropReason; 9] = [
    DropReason::InUnprotected,
    DropReason::InPolicyBlock,
    DropReason::InHeld,
    DropReason::InDefaultBlock,
    DropReason::OutUnprotected,
    DropReason::OutQuotesProtected,
    DropReason::OutPolicyBlock,
    DropReason::OutHeld,
    DropReason::OutDefaultBlock,
];

/// Result of adding and removing policies in the table as it stands, without building it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// The kernel's table has the changes.
    Applied,
    /// The changes split too many runs, or a run that they made themselves. No policy was added or
    /// removed, and the table must be built anew.
    Parted,
    /// [`RulesetState`] does not match the policies any more: the table must be built anew.
    Lost,
}

/// How often changes that come together may part runs, each of which looks at all policies, before
/// all is made anew.
const PARTED: usize = 8;

/// Fewer changes than that make no more rules than there is room for after
/// [`ruleset_state::FEWER`].
const MANY_AT_ONCE: usize = 64;

/// A better table that the kernel did not take is asked for again when one in so many policies has
/// come or gone.
const PUT_OFF: usize = 16;

/// What the packet filter's socket is called in the descriptor store.
const FILTER: &str = "nftables";

/// IKE (RFC 7296 §2.23).
const IKE: [u16; 2] = [500, 4500];

impl Firewall {
    /// Puts up the guard for the policies in `spd`, in the place of what earlier runs left, for
    /// whatever TUN, and what leads their packets into it. Where the configuration wants no guard,
    /// the latter alone; `None` if the kernel has no `nf_tables` and need not have it.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open(
        config: &Config,
        spd: &Spd,
        descriptors: &mut DescriptorStore,
    ) -> anyhow::Result<Option<Self>> {
        let before = descriptors.take(FILTER);
        let connect = || match &before {
            // The table is the socket's that made it.
            Some(socket) => match socket.try_clone() {
                Ok(socket) => Ok(Nftables::of_socket(socket)),
                Err(kernel) => Err(Error::Refused { request: "nf_tables".to_owned(), kernel }),
            },
            None => Nftables::open(),
        };
        let (is_required, parts): (_, &[&'static [ChainKind]]) = match config.host.guard {
            config::Guard::Off => (false, &[ChainKind::WAY]),
            config::Guard::Auto => (false, &[ChainKind::ALL, ChainKind::GUARD]),
            config::Guard::Require => (true, &[ChainKind::ALL, ChainKind::GUARD]),
        };
        match Self::install_what_the_kernel_can(config, parts, spd, connect) {
            Err(Error::Unsupported { .. }) if config.host.guard == config::Guard::Off => {
                forgive(Nftables::open().and_then(|mut filter| sweep(&mut filter, None)));
                Ok(None)
            }
            Err(error @ Error::Unsupported { .. }) if !is_required => {
                tracing::warn!(
                    %error,
                    "no guard: plain packets that the policies want protected are NOT dropped, and programs \
                     that bind to a device send them past uxfrm; keep them out by other means (`guard` in [host])"
                );
                Ok(None)
            }
            installed => {
                let mut guard =
                    installed.context("can't put up the guard against plain packets")?;
                forgive(sweep(&mut guard.filter, Some(&guard.name)));
                descriptors.keep(FILTER, guard.filter.socket())?;
                Ok(Some(guard))
            }
        }
    }

    /// Takes down the guards of gateways that have ended.
    ///
    /// # Errors
    /// The kernel's; none where it has no `nf_tables`.
    pub(crate) fn clean() -> Result<(), Error> {
        match Nftables::open().and_then(|mut filter| sweep(&mut filter, None)) {
            Err(Error::Unsupported { .. }) => Ok(()),
            swept => swept,
        }
    }

    fn install_what_the_kernel_can(
        config: &Config,
        parts: &[&'static [ChainKind]],
        spd: &Spd,
        connect: impl Fn() -> Result<Nftables, Error>,
    ) -> Result<Self, Error> {
        let ports = config.wire.udp_ports.iter().map(|port| port.get());
        let ports: BTreeSet<_> = IKE.into_iter().chain(ports).collect();
        let (tun, mark) = (config.host.tun.to_string(), config.wire.mark.get());
        let inline = config.inline.iter();
        let inline = inline.flat_map(|inline| [inline.protected(), inline.wire()]);
        let inline: Vec<_> = inline.map(str::to_owned).collect();
        let install = |parts| {
            let (tun, ports, inline) = (tun.clone(), ports.clone(), inline.clone());
            let context = RulesetContext { tun, mark, ports, inline, parts };
            connect().and_then(|filter| Self::install(filter, context, spd))
        };
        let (first, others) = parts.split_first().unwrap_or((&ChainKind::GUARD, &[]));
        others.iter().fold(install(first), |installed, parts| match installed {
            Err(error @ Error::Unsupported { .. }) => {
                tracing::warn!(
                    %error,
                    "packets are led by destinations, and plain fragments are not dropped before connection tracking: \
                     this kernel's filter can't"
                );
                install(parts)
            }
            installed => installed,
        })
    }

    /// Adds what the guard dropped since the start.
    pub(crate) fn add_to(&mut self, counts: &mut DropCounts) {
        match self.filter.counts(&self.name) {
            Ok(found) => {
                for (reason, count) in REASONS.iter().zip(&mut self.counts) {
                    let now = found.iter().find(|counter| counter.name == reason.as_str());
                    now.into_iter().for_each(|now| count.read(now.packets));
                }
            }
            Err(error) => tracing::warn!(%error, "the guard's counters are older than asked for"),
        }
        for (reason, count) in REASONS.iter().zip(self.counts) {
            counts.add(*reason, count.total());
        }
    }

    /// Hears of tables that somebody takes away, where that may be this one; where the kernel keeps
    /// it, nobody needs to.
    pub(crate) fn watch(&self) -> Option<TableWatch> {
        let watch = self.filter.is_shared().then(TableWatch::open)?;
        watch
            .inspect_err(
                |error| tracing::warn!(%error, "nobody notices if the guard is taken away"),
            )
            .ok()
    }

    /// Takes the guard down.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        self.filter.remove(&self.name).context("can't take down the guard")
    }
}

impl<F: PacketFilter> Firewall<F> {
    /// Makes the rules those of the policies in `spd`, at once, whatever they were.
    ///
    /// # Errors
    /// The kernel's; the old rules stay.
    pub(crate) fn follow(&mut self, spd: &Spd) -> Result<(), Error> {
        match self.lay_out(spd, F::replace_rules) {
            // Somebody took the table away, and it is to be put up anew.
            Err(Error::TooLong { .. }) if !self.filter.has(&self.name)? => {
                self.install_in_pieces(spd)
            }
            result => result,
        }
    }

    /// Lets the rules follow policies that came or went; `spd` is what they led to.
    ///
    /// # Errors
    /// The kernel's. Some of it may have come true, but nothing passes that neither the old
    /// policies nor the new ones let pass.
    pub(crate) fn change(&mut self, changes: &[PolicyChange], spd: &Spd) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        let Some(mut layout) = self.layout.take() else { return self.follow(spd) };
        let carried_out = self.apply_changes(&mut layout, changes, spd);
        self.next = layout.next();
        match carried_out {
            Ok(Placement::Applied) => {}
            Ok(Placement::Parted) => {
                self.layout = Some(layout);
                return self.follow(spd);
            }
            Ok(Placement::Lost) => return self.follow(spd),
            // Somebody took the rules away: `nft flush ruleset`, where the table can't be ours
            // alone.
            Err(ApplyError { error, .. }) if error.is_unsupported() => return self.follow(spd),
            Err(ApplyError { error, left }) => {
                self.layout = match left {
                    KernelState::Unchanged => Some(layout),
                    KernelState::Unknown => None,
                };
                return Err(error);
            }
        }
        let is_good = layout.drop_empty();
        self.layout = Some(layout);
        self.put_off = self.put_off.saturating_sub(changes.len());
        if !is_good && self.put_off == 0 {
            self.try_restore_outgoing(spd);
        }
        Ok(())
    }

    /// By what packets find their way into the TUN.
    pub(crate) fn divert_mode(guard: Option<&Self>) -> DivertMode {
        if guard.is_some_and(Self::leads) { DivertMode::Marks } else { DivertMode::Destinations }
    }

    /// Whether they do by what the table says, and will so after some changes more.
    fn leads(&self) -> bool {
        let is_far_from_many = |layout: &RulesetState| {
            !layout.leaves_out() && layout.rules_out() <= ruleset_state::FEWER
        };
        self.context.parts.contains(&ChainKind::Way)
            && self.layout.as_ref().is_some_and(is_far_from_many)
    }

    /// Whether packets may be marked no more once it has followed so many changes at once: then
    /// they are to be led otherwise before.
    pub(crate) fn may_skip_outgoing(&self, changes: &[PolicyChange]) -> bool {
        changes.len() >= MANY_AT_ONCE && self.leads() && {
            let come = changes.iter().map(|change| match change {
                PolicyChange::Added(entry) if entry.direction() == Direction::Out => {
                    let of_part = |part| conditions::of_policy(part, &entry.policy()).1.len();
                    of_part(ChainKind::Out).max(of_part(ChainKind::Way))
                }
                PolicyChange::Added(_) | PolicyChange::Removed(_) => 0,
            });
            let rules = self.layout.as_ref().map_or(0, RulesetState::rules_out);
            rules + come.sum::<usize>() > ruleset_state::MANY
        }
    }

    /// Whether it is not known what the rules are: the next change makes them anew.
    pub(crate) fn is_out_of_sync(&self) -> bool {
        self.layout.is_none()
    }

    /// Whether its table is there still.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn is_there(&mut self) -> Result<bool, Error> {
        self.filter.has(&self.name)
    }

    /// The rules are not those of the policies: the next change makes them anew.
    pub(crate) fn mark_out_of_sync(&mut self) {
        self.layout = None;
    }

    /// Makes all rules anew as others would be better that do the same. They may stay as they are,
    /// too.
    fn try_restore_outgoing(&mut self, spd: &Spd) {
        if let Err(error) = self.follow(spd) {
            tracing::debug!(%error, "the guard has more rules than it would need");
            self.put_off = (spd.len() / PUT_OFF).max(PUT_OFF);
        }
    }

    /// Puts up the guard in a filter.
    fn install(filter: F, context: RulesetContext, spd: &Spd) -> Result<Self, Error> {
        let name = rules::name(&context);
        let (layout, next, leaves_out, counts) =
            (None, 0, false, [Counter::default(); REASONS.len()]);
        let put_off = 0;
        let mut guard = Self { filter, context, name, layout, next, leaves_out, put_off, counts };
        match guard.lay_out(spd, F::install) {
            Err(Error::TooLong { .. }) => guard.install_in_pieces(spd)?,
            result => result?,
        }
        Ok(guard)
    }

    /// Puts up the guard in a simulated filter, for policies in `spd`.
    #[cfg(test)]
    pub(crate) fn simulated(filter: F, tun: &str, mark: u32, spd: &Spd) -> Result<Self, Error> {
        let (tun, ports) = (tun.to_owned(), IKE.into_iter().collect());
        let context =
            RulesetContext { tun, mark, ports, inline: Vec::new(), parts: ChainKind::GUARD };
        Self::install(filter, context, spd)
    }

    /// What takes several transactions must not leave a gap between two of them. Where it can't be
    /// completed nobody is cut off, but what a table of an earlier run kept out stays out.
    fn install_in_pieces(&mut self, spd: &Spd) -> Result<(), Error> {
        let was_there = self.filter.has(&self.name)?;
        self.filter.install(&rules::closed(&self.context))?;
        let result = self.follow(spd);
        if result.is_err() {
            // That of a table that is not there.
            self.layout = None;
        }
        if result.is_err()
            && !was_there
            && let Err(error) = self.filter.remove(&self.name)
        {
            tracing::error!(%error, "a guard that lets nothing pass stays behind");
        }
        result
    }

    fn lay_out(
        &mut self,
        spd: &Spd,
        tell: impl FnOnce(&mut F, &Table) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let before = self.layout.take();
        let most = if self.leaves_out { ruleset_state::FEWER } else { ruleset_state::MANY };
        let (layout, sets) = RulesetState::of(spd, self.context.parts, self.next, most);
        self.next = layout.next();
        let told = tell(&mut self.filter, &rules::table(&self.context, spd, &layout, sets));
        if told.as_ref().is_err_and(Error::is_refusal) && self.filter.has(&self.name)? {
            self.layout = before;
        }
        told?;
        self.log_skipped_outgoing(layout.leaves_out());
        self.layout = layout.record_policies(&mut self.filter, &self.name, spd)?;
        Ok(())
    }

    /// Applies changes to the rules and the kernel's table, splitting at most [`PARTED`] runs.
    fn apply_changes(
        &mut self,
        layout: &mut RulesetState,
        changes: &[PolicyChange],
        spd: &Spd,
    ) -> Result<Placement, ApplyError> {
        for _ in 0..=PARTED {
            let at = match layout.change(changes) {
                Ok(done) => {
                    let carried_out = self.carry_out(layout).map(|()| Placement::Applied);
                    return carried_out
                        .map_err(|refusal| refusal.then(|| layout.take_back(changes, done)));
                }
                Err(PlacementFailure::Parted(at)) => at,
                Err(PlacementFailure::Lost) => return Ok(Placement::Lost),
            };
            match layout.part(changes, at, spd) {
                Ok(split) => self.carry_out(layout).map_err(|refusal| {
                    refusal.then(|| {
                        layout.undo_part(split, changes, at, spd);
                        Ok(())
                    })
                })?,
                Err(PlacementError::Parted) => break,
                Err(PlacementError::Lost) => return Ok(Placement::Lost),
            }
            layout.drop_empty();
        }
        Ok(Placement::Parted)
    }

    fn carry_out(&mut self, layout: &mut RulesetState) -> Result<(), ApplyError> {
        let mut left = KernelState::Unchanged;
        for step in STEPS {
            let asked = layout.ask(step);
            if !asked.is_empty() {
                let made = self.filter.change(&self.name, &asked);
                let made = made.map_err(|error| ApplyError::of(error, left))?;
                layout.note(step, made);
                left = KernelState::Unknown;
            }
        }
        Ok(())
    }

    /// Says when the way out is guarded no more, and when it is again.
    fn log_skipped_outgoing(&mut self, leaves_out: bool) {
        let before = std::mem::replace(&mut self.leaves_out, leaves_out);
        if leaves_out && !before {
            tracing::warn!(
                rules = ruleset_state::MANY,
                guarded_again_with = ruleset_state::FEWER,
                "the policies out need more rules than the way out is guarded by: programs that bind to a device can \
                 send past uxfrm; policies of one priority that do the same share rules"
            );
        } else if before && !leaves_out {
            tracing::info!("the way out is guarded again");
        }
    }
}

/// Removes the tables that earlier runs left, but one.
fn sweep(filter: &mut Nftables, kept: Option<&str>) -> Result<(), Error> {
    for table in filter.tables()? {
        if table.starts_with(rules::NAME)
            && Some(&*table) != kept
            && has_our_counters(filter, &table)?
        {
            filter.remove(&table)?;
            tracing::info!(table, "a guard that an earlier run left is gone");
        }
    }
    Ok(())
}

/// Somebody else may have given a table such a name.
fn has_our_counters(filter: &mut Nftables, table: &str) -> Result<bool, Error> {
    let is_ours = |name: &str| REASONS.iter().any(|reason| reason.as_str() == name);
    Ok(filter.counts(table)?.iter().any(|count| is_ours(&count.name)))
}

/// What is left drops too much, not too little.
fn forgive(swept: Result<(), Error>) {
    match swept {
        Ok(()) | Err(Error::Unsupported { .. }) => {}
        Err(error) => tracing::warn!(%error, "a guard that an earlier run left may still be there"),
    }
}

#[cfg(test)]
mod tests;
