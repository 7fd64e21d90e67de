//! Routes and guard as [`KernelTables`](super::KernelTables) uses them. The simulation has its own.

use std::{fmt::Debug, net::IpAddr};

use anyhow::Context as _;
use uxfrm_engine::{DropCounts, HostView, PolicyChange, Spd};
use uxfrm_io::{nftables, rtnetlink};

use crate::{
    firewall::Firewall,
    routes::{DivertMode, HostRoutes, LastingMtus, STAYS},
};

/// Routes that bring the host's packets to the gateway; see [`HostRoutes`].
pub(crate) trait Routes: Debug {
    /// Leads the packets of these policies here, and lets go of what an earlier run left.
    fn bring_up(&mut self, by: DivertMode, spd: &Spd) -> anyhow::Result<HostView>;

    /// Makes them those of the policies.
    fn follow(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error>;

    /// Lets them follow policies that came or went.
    fn change(&mut self, changes: &[PolicyChange]) -> Result<(), rtnetlink::Error>;

    /// Does what [`Routes::change`] has left for later.
    fn finish_deferred(&mut self) -> Result<(), rtnetlink::Error>;

    /// Has packets led into the TUN by something else.
    fn turn(&mut self, by: DivertMode) -> Result<(), rtnetlink::Error>;

    /// Makes the rules that lead packets those of the policies, where that can't wait.
    fn plan_now(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error>;

    /// The same, where it could wait.
    fn review_plan(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error>;

    /// Links or addresses have changed, or rules or routes have gone.
    fn refresh_host(
        &mut self,
        news: rtnetlink::MonitorResult,
        spd: &Spd,
    ) -> Result<(), rtnetlink::Error>;

    /// What workers are to know of the host, if it may have changed since the last time.
    fn take_route_news(&mut self) -> Option<HostView>;

    /// The host's addresses.
    fn own(&self) -> &[IpAddr];

    /// The TUN's index.
    fn tun(&self) -> u32;

    /// Whether a policy has a tunnel that leads there.
    fn is_peer(&self, address: IpAddr) -> bool;

    /// A packet to there was longer than the network takes.
    fn note_path_mtu(&mut self, to: IpAddr);

    /// Asks again where the network took less.
    fn remeasure_path_mtu(&mut self);

    /// What the network takes towards peers, as far as that lasts.
    fn lasting_mtus(&self) -> LastingMtus;

    /// Gives the TUN another MTU.
    fn fit_tun(&mut self, mtu: u16) -> Result<(), rtnetlink::Error>;

    /// Says where the kernel takes nothing from a peer.
    fn check_rp_filters(&mut self);

    /// Removes all of them.
    fn close(&mut self) -> anyhow::Result<()>;
}

/// What keeps plain packets back that the policies want protected; see [`Firewall`].
pub(crate) trait FirewallTable: Debug {
    /// Makes it that of the policies, whatever it was.
    fn follow(&mut self, spd: &Spd) -> Result<(), nftables::Error>;

    /// Lets it follow policies that came or went; `spd` is what they led to.
    fn change(&mut self, changes: &[PolicyChange], spd: &Spd) -> Result<(), nftables::Error>;

    /// By what packets find their way into the TUN.
    fn divert_mode(&self) -> DivertMode;

    /// Whether that is something else once it has followed so many changes at once.
    fn may_skip_outgoing(&self, changes: &[PolicyChange]) -> bool;

    /// Whether it is not known what it is: the next change makes it anew.
    fn is_out_of_sync(&self) -> bool;

    /// It is not that of the policies.
    fn mark_out_of_sync(&mut self);

    /// Whether nobody has taken it away.
    fn is_there(&mut self) -> Result<bool, nftables::Error>;

    /// Adds what it dropped since the start.
    fn add_to(&mut self, counts: &mut DropCounts);

    /// Takes it down.
    fn close(self: Box<Self>) -> anyhow::Result<()>;
}

/// A packet filter, whichever it is.
pub(crate) type AnyFilter = Box<dyn FirewallTable>;

impl Routes for HostRoutes {
    fn bring_up(&mut self, by: DivertMode, spd: &Spd) -> anyhow::Result<HostView> {
        self.lead(by)?;
        Self::follow(self, spd).context(STAYS)?;
        self.sweep().context("can't let go of what an earlier run left").context(STAYS)?;
        Ok(self.host())
    }

    fn follow(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        Self::follow(self, spd)
    }

    fn change(&mut self, changes: &[PolicyChange]) -> Result<(), rtnetlink::Error> {
        Self::change(self, changes)
    }

    fn finish_deferred(&mut self) -> Result<(), rtnetlink::Error> {
        Self::finish_deferred(self)
    }

    fn turn(&mut self, by: DivertMode) -> Result<(), rtnetlink::Error> {
        Self::turn(self, by)
    }

    fn plan_now(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        Self::plan_now(self, spd)
    }

    fn review_plan(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        Self::review_plan(self, spd)
    }

    fn refresh_host(
        &mut self,
        news: rtnetlink::MonitorResult,
        spd: &Spd,
    ) -> Result<(), rtnetlink::Error> {
        Self::refresh_host(self, news, spd)
    }

    fn take_route_news(&mut self) -> Option<HostView> {
        Self::take_route_news(self)
    }

    fn own(&self) -> &[IpAddr] {
        Self::own(self)
    }

    fn tun(&self) -> u32 {
        Self::tun(self)
    }

    fn is_peer(&self, address: IpAddr) -> bool {
        Self::is_peer(self, address)
    }

    fn note_path_mtu(&mut self, to: IpAddr) {
        Self::note_path_mtu(self, to);
    }

    fn remeasure_path_mtu(&mut self) {
        Self::remeasure_path_mtu(self);
    }

    fn lasting_mtus(&self) -> LastingMtus {
        Self::lasting_mtus(self)
    }

    fn fit_tun(&mut self, mtu: u16) -> Result<(), rtnetlink::Error> {
        Self::fit_tun(self, mtu)
    }

    fn check_rp_filters(&mut self) {
        Self::check_rp_filters(self);
    }

    fn close(&mut self) -> anyhow::Result<()> {
        Self::close(self)
    }
}

impl FirewallTable for Firewall {
    fn follow(&mut self, spd: &Spd) -> Result<(), nftables::Error> {
        Self::follow(self, spd)
    }

    fn change(&mut self, changes: &[PolicyChange], spd: &Spd) -> Result<(), nftables::Error> {
        Self::change(self, changes, spd)
    }

    fn divert_mode(&self) -> DivertMode {
        Self::divert_mode(Some(self))
    }

    fn may_skip_outgoing(&self, changes: &[PolicyChange]) -> bool {
        Self::may_skip_outgoing(self, changes)
    }

    fn is_out_of_sync(&self) -> bool {
        Self::is_out_of_sync(self)
    }

    fn mark_out_of_sync(&mut self) {
        Self::mark_out_of_sync(self);
    }

    fn is_there(&mut self) -> Result<bool, nftables::Error> {
        Self::is_there(self)
    }

    fn add_to(&mut self, counts: &mut DropCounts) {
        Self::add_to(self, counts);
    }

    fn close(self: Box<Self>) -> anyhow::Result<()> {
        Self::close(*self)
    }
}
