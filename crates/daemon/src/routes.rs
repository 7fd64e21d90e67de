//! Host mode: rules and routes that bring outbound policies' traffic to the TUN, and keep it from
//! leaving any other way.
//!
//! A packet has the route and the source address that it would have without uxfrm. What policies
//! protect or block is marked by the packet filter ([`crate::firewall`]), and a rule leads what is
//! marked into the TUN (`divert_rules.rs`); before it, addresses lead the common case
//! (`address_plan.rs`).
//!
//! Behind all of the host's own tables stands one of destinations, for what has no other route;
//! where the kernel has no packet filter it stands before them, as in wg-quick: a rule sends every
//! packet *without* our mark there. Our own sockets carry the mark and take the ordinary way.
//!
//! Beneath each route lies an `unreachable` one: when the TUN is gone, packets are refused, not
//! sent plain. The next start keeps those until it has routes of its own (`stale.rs`).
//!
//! Each destination counts its policies, so a policy that comes or goes costs the same however many
//! there are; neighbours share a route (`destinations.rs`). Routes for one that blocks may come a
//! moment after its answer ([`HostRoutes::finish_deferred`]): that beneath only where packets are
//! marked.

pub(crate) mod address_plan;
mod addresses;
mod destination_table;
mod destinations;
mod divert_rules;
mod lookup_rule;
pub(crate) mod multicast;
mod peers;
mod route_demand;
mod rp_filter;
mod running_gateway;
mod stale;
mod sysctl;

use std::{net::IpAddr, sync::Arc};

use uxfrm_engine::{HostView, PolicyChange, PolicyEntry, Spd};
use uxfrm_io::ipv6_support::is_missing;
use uxfrm_io::rtnetlink::{self, MonitorResult, RouteChange, Rtnetlink, RtnlMonitor};
use uxfrm_packet::Version;

use crate::{config::DIVERTED, tun::gso_limit};

use address_plan::AddressPlan;
use destinations::Destinations;
use divert_rules::DivertRules;
pub(crate) use lookup_rule::DivertMode;
use lookup_rule::LookupRule;
use multicast::GroupPolicies;
use multicast::MulticastGroups;
pub(crate) use peers::LastingMtus;
use peers::Peers;
pub(crate) use route_demand::passes_plain;
use running_gateway::RunningGateway;

/// Metric of the `unreachable` routes beneath.
const BENEATH: u32 = u32::MAX - 1;

/// What becomes of a host whose gateway ends by a fault.
pub(crate) const STAYS: &str = "protected destinations stay unreachable until uxfrm runs again";

/// The state of the process that had the host before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreviousGateway {
    /// It has ended, if there was one, and its TUN with it.
    Gone,
    /// It carries packets by the same TUN until this one takes its place.
    Runs,
}

/// Rules and routes of one gateway.
#[derive(Debug)]
pub(crate) struct HostRoutes {
    rtnetlink: Rtnetlink,
    leading: LookupRule,
    tun: u32,
    /// Its name.
    name: String,
    ways: DivertRules,
    own: Vec<IpAddr>,
    /// Those of them that packets into the TUN may be given as their source.
    sources: Vec<IpAddr>,
    destinations: Destinations,
    groups: GroupPolicies,
    peers: Peers,
    /// Whether the TUN is up, so that routes to it are there.
    is_up: bool,
    /// Routes that are still to come.
    later: Vec<RouteChange>,
    has_ipv6: bool,
}

impl HostRoutes {
    /// Takes over what an earlier run left in `table`, so that what it refuses is refused until
    /// [`HostRoutes::follow`]. Where it left nothing, nothing of the host's changes before
    /// [`HostRoutes::lead`]. Routes into a TUN that `before` says is in use stay.
    ///
    /// # Errors
    /// The kernel's; what was to be done is in the text.
    pub(crate) fn open(
        tun: u32,
        table: u32,
        mark: u32,
        before: PreviousGateway,
    ) -> anyhow::Result<Self> {
        let mut rtnetlink = Rtnetlink::open()?;
        let left = match before {
            PreviousGateway::Gone => stale::take_over(&mut rtnetlink, table)?,
            PreviousGateway::Runs => stale::share(&mut rtnetlink, table)?,
        };
        let [own, sources] = addresses::of_host(&mut rtnetlink)?;
        let name = rtnetlink.link_of_index(tun)?.name;
        sysctl::accept_from(&name);
        sysctl::forward_from(&name);
        let leading = LookupRule { table, mark, by: DivertMode::Destinations };
        if left.is_some() {
            leading.keep(&mut rtnetlink)?;
        }
        Ok(Self {
            rtnetlink,
            leading,
            tun,
            name,
            ways: DivertRules::new(tun, table, mark),
            own,
            sources,
            destinations: left.unwrap_or_default(),
            groups: GroupPolicies::default(),
            peers: Peers::new(mark),
            is_up: true,
            later: Vec::new(),
            has_ipv6: !is_missing(Version::V6),
        })
    }

    /// Adds the rules that lead to the table, for a kernel that marks or does not.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn lead(&mut self, by: DivertMode) -> Result<(), rtnetlink::Error> {
        self.leading.by = by;
        match by {
            DivertMode::Marks => {
                self.ways.put_up(&mut self.rtnetlink)?;
                self.leading.alone(&mut self.rtnetlink).map(drop)
            }
            DivertMode::Destinations => {
                self.finish_deferred()?;
                self.leading.alone(&mut self.rtnetlink)?;
                self.ways.take_down(&mut self.rtnetlink)
            }
        }
    }

    /// The same, if it was otherwise until now.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn turn(&mut self, by: DivertMode) -> Result<(), rtnetlink::Error> {
        if by == self.leading.by {
            return Ok(());
        }
        tracing::info!(?by, "packets are led into the TUN otherwise than before");
        self.ways.outdate();
        self.lead(by)
    }

    /// Has the plan follow the first change since the last review, before packets find another way
    /// that they would remember.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn plan_now(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        let hurries = self.ways.may_renew_now() | self.groups.take_urgency();
        if hurries { self.plan(spd) } else { Ok(()) }
    }

    /// The same for all changes until now, some time later.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn review_plan(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        self.ways.rest();
        self.plan(spd)
    }

    /// What the plan misses meanwhile is led by marks.
    fn plan(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        if !self.ways.are_outdated() {
            return Ok(());
        }
        let mark = self.leading.mark;
        let groups =
            self.groups.are_any().then(|| MulticastGroups::of(spd, &mut self.rtnetlink, mark));
        let groups = groups.unwrap_or_default();
        let plan = AddressPlan::of(spd, &self.sources, &groups);
        self.ways.renew_plan(&mut self.rtnetlink, plan)
    }

    /// Hears of what happens to links and addresses, and of rules and routes that somebody else
    /// takes away.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn watch(&self) -> Result<RtnlMonitor, rtnetlink::Error> {
        RtnlMonitor::open(
            &self.rtnetlink,
            [self.leading.table, divert_rules::table(self.leading.table)],
        )
    }

    /// Puts back rules that somebody has taken away.
    fn put_rules_back(&mut self) -> Result<(), rtnetlink::Error> {
        let to_destinations = self.leading.alone(&mut self.rtnetlink)?;
        if to_destinations + self.ways.rules_alone(&mut self.rtnetlink)? > 0 {
            tracing::warn!(
                table = self.leading.table,
                "somebody has removed the rule that leads packets to uxfrm; it is back"
            );
        }
        Ok(())
    }

    /// Makes the routes those of the outbound policies in `spd`, whatever they were.
    ///
    /// # Errors
    /// The kernel's about the first route that it does not take; all others are as they should be.
    pub(crate) fn follow(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        self.put_rules_back()?;
        [self.own, self.sources] = addresses::of_host(&mut self.rtnetlink)?;
        self.later.clear();
        self.peers.clear_demand();
        self.destinations.clear_demand();
        self.groups = GroupPolicies::default();
        for entry in spd.iter() {
            self.count_in(entry);
        }
        self.destinations.join();
        let steps = self.destinations.take_steps();
        self.install(steps)?;
        self.ways.renew(&mut self.rtnetlink)?;
        self.plan(spd)
    }

    /// Lets go of what a killed gateway refused, by another table or another way. Only when routes
    /// are there for what is protected now.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn sweep(&mut self) -> Result<(), rtnetlink::Error> {
        let mut kept =
            RunningGateway { destinations: Some(self.leading.table), ..self.ways.kept() };
        kept.rules.extend(versions().map(|version| self.leading.rule(version)));
        stale::let_go_of_others(&mut self.rtnetlink, &kept)
    }

    /// Lets the routes follow policies that came or went.
    ///
    /// # Errors
    /// As [`HostRoutes::follow`].
    pub(crate) fn change(&mut self, changes: &[PolicyChange]) -> Result<(), rtnetlink::Error> {
        self.finish_deferred()?;
        if changes.iter().any(route_demand::is_of_out) {
            self.ways.outdate();
        }
        if changes.iter().any(route_demand::lets_go) {
            self.ways.narrow(&mut self.rtnetlink)?;
        }
        for change in changes {
            match change {
                PolicyChange::Added(entry) => self.count_in(entry),
                PolicyChange::Removed(entry) => self.count_out(entry),
            }
        }
        let steps = self.destinations.take_steps();
        let only_blocks = steps.delete.is_empty() && changes.iter().all(route_demand::only_blocks);
        if only_blocks { self.block(steps) } else { self.install(steps) }
    }

    /// The TUN's index.
    pub(crate) fn tun(&self) -> u32 {
        self.tun
    }

    /// The host's addresses.
    pub(crate) fn own(&self) -> &[IpAddr] {
        &self.own
    }

    /// Removes rules, routes and all.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn close(&mut self) -> anyhow::Result<()> {
        self.ways.take_down(&mut self.rtnetlink)?;
        stale::clear(&mut self.rtnetlink, self.leading.table)
    }

    /// Has refused what policies protect, by what stays when a gateway ends: there need be no TUN.
    /// Nothing that is there goes.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn refuse(
        spd: &Spd,
        table: u32,
        mark: u32,
        by: DivertMode,
    ) -> Result<(), rtnetlink::Error> {
        let mut rtnetlink = Rtnetlink::open()?;
        let mut destinations = Destinations::default();
        for (destination, source) in spd.iter().filter_map(|entry| route_demand::wish(entry, &[])) {
            destinations.count_in(destination, source);
        }
        destinations.join();
        let put = destinations.take_steps().put.into_iter();
        let put = put.map(|(destination, _)| {
            RouteChange::Put(destination_table::beneath(table, addresses::prefix(destination)))
        });
        rtnetlink.change_routes(&put.collect::<Vec<_>>())?;
        if by == DivertMode::Marks {
            let [_own, sources] = addresses::of_host(&mut rtnetlink)?;
            let plan = AddressPlan::of(spd, &sources, &MulticastGroups::default());
            DivertRules::new(0, table, mark).refuse(&mut rtnetlink, plan)?;
        }
        LookupRule { table, mark, by }.alone(&mut rtnetlink).map(drop)
    }

    /// Removes what gateways that have ended left, in whatever table.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn clean() -> anyhow::Result<()> {
        Ok(stale::let_go_of_others(&mut Rtnetlink::open()?, &RunningGateway::default())?)
    }

    /// What workers are to know of the host: its addresses, and the largest IP packet that the
    /// network takes towards all peers.
    pub(crate) fn host(&self) -> HostView {
        HostView {
            addresses: self.own.iter().copied().collect(),
            mtu: self.peers.mtu(),
            path_mtus: self.peers.narrow().clone(),
        }
    }

    /// The same, if it may have changed since the last time.
    pub(crate) fn take_route_news(&mut self) -> Option<HostView> {
        self.peers.take_route_news().then(|| self.host())
    }

    /// What the network takes towards peers, as far as that lasts.
    pub(crate) fn lasting_mtus(&self) -> LastingMtus {
        self.peers.lasting()
    }

    /// Gives the TUN another MTU, unless it has it.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn fit_tun(&mut self, mtu: u16) -> Result<(), rtnetlink::Error> {
        if self.rtnetlink.link_of_index(self.tun)?.mtu == u32::from(mtu) {
            return Ok(());
        }
        self.rtnetlink.set_mtu(self.tun, mtu.into())?;
        tracing::info!(mtu, "the TUN has another MTU");
        gso_limit::fit(&mut self.rtnetlink, self.tun, self.peers.mtu().into());
        Ok(())
    }

    /// Says where the kernel takes nothing from a peer, now that routes are there.
    pub(crate) fn check_rp_filters(&mut self) {
        self.peers.check_rp_filters(&mut self.rtnetlink, self.tun);
    }

    /// Whether a policy has a tunnel that leads there.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.peers.has(address)
    }

    /// A packet to there was refused, as it was longer than the network takes.
    pub(crate) fn note_path_mtu(&mut self, to: IpAddr) {
        self.peers.note_path_mtu(&mut self.rtnetlink, to);
    }

    /// Asks again where the network took less.
    pub(crate) fn remeasure_path_mtu(&mut self) {
        self.peers.remeasure_path_mtu(&mut self.rtnetlink);
    }

    /// Links or addresses have changed, or rules or routes have gone: makes all right again where
    /// that matters to it.
    ///
    /// # Errors
    /// As [`HostRoutes::follow`].
    pub(crate) fn refresh_host(
        &mut self,
        news: MonitorResult,
        spd: &Spd,
    ) -> Result<(), rtnetlink::Error> {
        self.put_rules_back()?;
        sysctl::forward_from(&self.name);
        self.ways.outdate();
        let is_up = self.rtnetlink.link_of_index(self.tun)?.is_up;
        let was_up = std::mem::replace(&mut self.is_up, is_up) && news != MonitorResult::RoutesGone;
        let came_back = is_up && !was_up;
        let [own, sources] = addresses::of_host(&mut self.rtnetlink)?;
        if came_back || own != self.own || sources != self.sources {
            return self.follow(spd);
        }
        self.peers.meet_again(&mut self.rtnetlink);
        Ok(())
    }
}

/// How packets find their way into the TUN, line by line; nothing where none does.
pub(crate) fn describe(spd: &Spd, tun: &str, mark: u32) -> Vec<String> {
    let policies =
        spd.iter().filter(|entry: &&Arc<PolicyEntry>| route_demand::is_led(entry)).count();
    if policies == 0 {
        return Vec::new();
    }
    // Whoever may not ask has a plan without those of the host's own addresses that stand for all.
    let asked = Rtnetlink::open().and_then(|mut rtnetlink| {
        let [_own, sources] = addresses::of_host(&mut rtnetlink)?;
        Ok((sources, MulticastGroups::of(spd, &mut rtnetlink, mark)))
    });
    let (sources, groups) = asked.unwrap_or_default();
    let plan = AddressPlan::of(spd, &sources, &groups);
    let mark = format!(
        "policies out that lead to {tun}: {policies}, by the mark {DIVERTED:#x} and rule {}",
        divert_rules::LAST
    );
    std::iter::once(mark).chain(divert_rules::lines(&plan)).collect()
}

/// Those that the kernel has.
fn versions() -> impl Iterator<Item = Version> {
    [Version::V4, Version::V6].into_iter().filter(|version| !is_missing(*version))
}

/// What is not there need not be deleted: the kernel takes a device's routes along with it.
fn forgive_absent(result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match result {
        Ok(()) | Err(rtnetlink::Error::NotFound { .. }) => Ok(()),
        error => error,
    }
}
