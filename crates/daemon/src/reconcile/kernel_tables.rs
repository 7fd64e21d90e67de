//! The kernel's tables that follow the policies: routes, guard, and what inline mode and AF_XDP
//! know of the host's addresses.

mod interface;

use uxfrm_engine::{ChangeSet, Database, DefaultActions, DropCounts, HostView, Spd};
use uxfrm_io::rtnetlink::{MonitorResult, RtnlMonitor};

#[cfg(test)]
pub(crate) use self::interface::FirewallTable;
pub(crate) use self::interface::{AnyFilter, Routes};
use super::{refusal::KernelRefusal, retry::Retry};
use crate::{
    clock::now, firewall::host_bypass::HostBypass, ports::af_xdp::AfXdpDevice, routes::DivertMode,
};

/// Routes, guard and what follows the host's addresses.
#[derive(Debug)]
pub(crate) struct KernelTables {
    pub(super) routes: Box<dyn Routes>,
    pub(super) guard: Option<AnyFilter>,
    pub(super) host_bypass: Option<HostBypass>,
    pub(super) af_xdp: Option<AfXdpDevice>,
    /// What happened to packets that no policy is for when the guard last followed.
    pub(super) defaults: DefaultActions,
    /// Whether routes may be others than the policies want.
    pub(super) are_routes_behind: bool,
    /// When routes and guard are made to follow anew.
    pub(super) retry: Retry,
}

impl KernelTables {
    /// A guard that stands as the databases want it.
    pub(crate) fn set_guard(&mut self, guard: Option<AnyFilter>) {
        self.guard = guard;
    }

    /// Brings the packets of these policies to the gateway. What workers are to know of the host.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn bring_up_routes(&mut self, spd: &Spd) -> anyhow::Result<HostView> {
        let by = self.divert_mode();
        self.routes.bring_up(by, spd)
    }

    /// Removes the routes: nothing is brought to the gateway any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close_routes(&mut self) -> anyhow::Result<()> {
        self.routes.close()
    }

    /// Takes the guard down.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close_guard(&mut self) -> anyhow::Result<()> {
        self.guard.take().map_or(Ok(()), |guard| guard.close())
    }

    /// Lets the host's stack have the packets of inline mode.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_down_host_bypass(&mut self) -> anyhow::Result<()> {
        self.host_bypass.take().map_or(Ok(()), HostBypass::take_down)
    }

    /// By what packets find their way into the TUN.
    pub(crate) fn divert_mode(&self) -> DivertMode {
        self.guard.as_ref().map_or(DivertMode::Destinations, |guard| guard.divert_mode())
    }

    /// What the guard dropped, if there is one.
    pub(crate) fn guard_counts(&mut self) -> Option<DropCounts> {
        let mut counts = DropCounts::default();
        self.guard.as_mut()?.add_to(&mut counts);
        Some(counts)
    }

    /// Adds what the guard dropped.
    pub(crate) fn add_to(&mut self, counts: &mut DropCounts) {
        if let Some(guard) = &mut self.guard {
            guard.add_to(counts);
        }
    }

    /// Follows links and addresses, if they have changed.
    pub(crate) fn refresh_host(&mut self, network: &RtnlMonitor, database: &mut Database) {
        let news = network.take_news(self.routes.tun());
        if news == MonitorResult::Nothing {
            return;
        }
        if let Err(error) = self.routes.refresh_host(news, &database.snapshot().spd) {
            tracing::warn!(%error, "routes don't follow the host's addresses");
            self.schedule_route_retry();
        }
        if self.addresses_follow().is_err() {
            self.retry.owe(now());
        }
        self.publish_host(database);
    }

    /// Tells the host's addresses to who is to leave alone what is to them.
    fn addresses_follow(&mut self) -> Result<(), KernelRefusal> {
        let own = self.routes.own();
        if let Some(host_bypass) = &mut self.host_bypass {
            host_bypass.follow(own).map_err(KernelRefusal::HostBypass)?;
        }
        if let Some(af_xdp) = &self.af_xdp {
            af_xdp.follow(own).map_err(KernelRefusal::AfXdpDevice)?;
        }
        Ok(())
    }

    pub(super) fn publish_host(&mut self, database: &mut Database) {
        if let Some(host) = self.routes.take_route_news() {
            database.set_host(host);
        }
    }

    /// Does what could wait until the answers were out.
    pub(crate) fn finish_deferred(&mut self) {
        if self.routes.finish_deferred().is_err() {
            self.schedule_route_retry();
        }
    }

    pub(super) fn follow_changes(
        &mut self,
        changes: &ChangeSet,
        database: &mut Database,
    ) -> Result<(), KernelRefusal> {
        self.routes_follow(changes, database)?;
        self.guard_follows(changes, database)
    }

    pub(super) fn routes_follow(
        &mut self,
        changes: &ChangeSet,
        database: &mut Database,
    ) -> Result<(), KernelRefusal> {
        if !changes.policies.is_empty() {
            self.routes.change(&changes.policies)?;
            self.publish_host(database);
        }
        Ok(())
    }

    pub(super) fn guard_follows(
        &mut self,
        changes: &ChangeSet,
        database: &Database,
    ) -> Result<(), KernelRefusal> {
        // No snapshot: the next change would have to copy what it touches, within a round too.
        let spd = &database.current().spd;
        if self.guard.as_ref().is_some_and(|guard| guard.may_skip_outgoing(&changes.policies)) {
            self.routes.turn(DivertMode::Destinations)?;
        }
        let guarded = match &mut self.guard {
            None => Ok(()),
            Some(guard) if changes.defaults => guard.follow(spd),
            Some(guard) => guard.change(&changes.policies, spd),
        };
        let turned = self.routes.turn(self.divert_mode());
        guarded?;
        turned?;
        self.routes.plan_now(spd)?;
        self.defaults = spd.defaults();
        Ok(())
    }

    /// Another process may have changed routes and guard: both are made anew soon.
    pub(crate) fn mark_unverified(&mut self) {
        if let Some(guard) = &mut self.guard {
            guard.mark_out_of_sync();
        }
        self.host_bypass.iter_mut().for_each(HostBypass::mark_unverified);
        self.schedule_route_retry();
    }

    /// Somebody has taken tables of the packet filter away. Where the guard was among them it is
    /// back when this returns, and what packets are led by.
    pub(crate) fn restore_firewall(&mut self, spd: &Spd) {
        let Some(guard) = &mut self.guard else { return };
        if guard.is_there().unwrap_or(true) {
            return;
        }
        tracing::warn!(
            "somebody has taken the guard away, as `nft flush ruleset` does before Linux 6.9: it is put up again"
        );
        guard.mark_out_of_sync();
        self.retry.owe(now());
        self.rebuild_tables(spd);
    }

    pub(super) fn schedule_route_retry(&mut self) {
        self.are_routes_behind = true;
        self.retry.owe(now());
    }

    /// Makes routes and guard anew where they are not sure to be right. That they can't be is said
    /// once, and once when they are.
    pub(super) fn rebuild_tables(&mut self, spd: &Spd) {
        let guard = self.guard.as_mut().filter(|guard| guard.is_out_of_sync());
        let guarded = guard.map_or(Ok(()), |guard| guard.follow(spd));
        let turned = self.routes.turn(self.divert_mode());
        let routed = if self.are_routes_behind { self.routes.follow(spd) } else { Ok(()) };
        let routed = routed.and(turned);
        self.are_routes_behind = routed.is_err();
        let told = self.addresses_follow();
        let faults = [
            guarded.err().map(KernelRefusal::from),
            routed.err().map(KernelRefusal::from),
            told.err(),
        ];
        match faults.into_iter().flatten().next() {
            None => {
                if self.retry.succeed() {
                    tracing::info!("routes and guard follow the policies again");
                }
            }
            Some(fault) => {
                if self.retry.fail(fault.errno(), now()) {
                    tracing::error!(error = %fault, "routes or guard don't follow the policies");
                }
            }
        }
    }

    /// Has routes and guard follow what was undone, as far as they had followed what was done.
    pub(super) fn repair_tables(
        &mut self,
        fault: &KernelRefusal,
        undone: &ChangeSet,
        database: &mut Database,
    ) {
        match fault {
            KernelRefusal::Route(_) => self.are_routes_behind = true,
            KernelRefusal::Guard(_)
            | KernelRefusal::HostBypass(_)
            | KernelRefusal::AfXdpDevice(_) => {
                let routed = self.routes_follow(undone, database);
                self.are_routes_behind |= routed.is_err();
            }
        }
        if self.are_routes_behind || self.guard.as_ref().is_some_and(|guard| guard.is_out_of_sync())
        {
            self.retry.owe(now());
        }
    }

    /// The same for what nobody is refused: what the kernel does not take is tried again.
    pub(super) fn follow_or_retry(&mut self, changes: &ChangeSet, database: &mut Database) {
        let routed = self.routes_follow(changes, database);
        self.are_routes_behind |= routed.is_err();
        let guarded = self.guard_follows(changes, database);
        if let (Err(_), Some(guard)) = (&guarded, &mut self.guard) {
            guard.mark_out_of_sync();
        }
        if routed.is_err() || guarded.is_err() {
            self.retry.owe(now());
        }
    }

    /// Does what is due by now.
    pub(super) fn review(&mut self, spd: &Spd) {
        if self.retry.is_due(now()) {
            self.rebuild_tables(spd);
        }
        if self.routes.review_plan(spd).is_err() {
            self.schedule_route_retry();
        }
        self.routes.check_rp_filters();
    }
}
