//! Host mode: rules and routes that bring outbound policies' traffic to the TUN, and keep it from leaving any other way.
//!
//! A packet has the route and the source address that it would have without uxfrm. What policies protect or block is marked by the packet filter
//! ([`crate::guard`]), and a rule leads what is marked into the TUN (`ways.rs`); before it, the common case is led by its addresses (`plan.rs`).
//!
//! Behind all of the host's own tables stands one of destinations, for what has no other route; where the kernel has no packet filter it stands before
//! them, as in wg-quick: a rule sends every packet *without* our mark there, and what outbound policies protect or block has routes to the TUN.
//! Our own sockets carry the mark, so what they send takes the ordinary way. Beneath each route lies an `unreachable` one: when the TUN is gone (`kill -9`), packets are refused, not sent plain. The next
//! start keeps those until it has routes of its own, and then clears what of them is left; an orderly end removes everything.
//!
//! Many policies may lead to one destination, so each destination counts its policies, and a policy that comes or goes costs the same
//! however many there are; neighbours share a route (`destinations.rs`). One that blocks is in force as soon as the route beneath is there: that to the TUN, where its packets
//! are counted, may come a moment later ([`HostRoutes::catch_up`]).

mod destinations;
mod left_over;
pub(crate) mod plan;
mod settings;
mod way_back;
mod ways;

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use uxfrm_engine::{
    Action, Direction, Host, NarrowPaths, PolicyChange, PolicyEntry, Prefix, Spd, Template,
    least_path,
};
use uxfrm_io::absent::is_absent;
use uxfrm_io::rtnetlink::{
    self, Address, FirewallMark, Monitor, News, Route, RouteChange, Rtnetlink, Rule, RuleAction,
    Via,
};
use uxfrm_packet::Version;

use crate::guard::DIVERTED;

use destinations::{Destination, Destinations, Steps};
use plan::Plan;
use way_back::WaysBack;
use ways::Ways;

/// Metric of the `unreachable` routes beneath.
const BENEATH: u32 = u32::MAX - 1;

/// Priority of the rule for destinations where it leads: before the main table's 32766, behind anything that an administrator numbers by hand.
const LEADING: u32 = 32_700;

/// The same where packets are marked: behind the default table's 32767.
const FALLBACK: u32 = 33_000;

/// By what packets find their way into the TUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedBy {
    /// A mark that the packet filter gives them, or the plan.
    Marks,
    /// Routes to their destinations alone.
    Destinations,
}

/// What the network takes towards peers that no route leads to.
const USUAL_MTU: u32 = 1500;
/// Every network takes that much (RFC 791 §3.2).
const SMALLEST_MTU: u16 = 576;

/// Narrow paths that are known at once.
const MOST_NARROW: usize = 1 << 12;

/// Rules and routes of one gateway.
#[derive(Debug)]
pub(crate) struct HostRoutes {
    rtnetlink: Rtnetlink,
    table: u32,
    mark: u32,
    tun: u32,
    /// Its name.
    name: String,
    led_by: LedBy,
    ways: Ways,
    /// Whether the plan may be another one now.
    plan_is_old: bool,
    /// Whether it was not made anew since the last review: then it follows the next change at once.
    plan_may_hurry: bool,
    own: Vec<IpAddr>,
    /// Those of them that packets into the TUN may be given as their source.
    sources: Vec<IpAddr>,
    destinations: Destinations,
    /// Where tunnels lead.
    peers: HashSet<IpAddr>,
    /// The largest IP packet that the network takes towards all of those, but for narrow ones.
    mtu: u32,
    /// Where the way takes less than its device, or packets were refused as they were too long, and what the network takes towards there.
    narrow: NarrowPaths,
    /// Whether workers have to be told.
    news: bool,
    /// Whether the TUN is up, so that routes to it are there.
    is_up: bool,
    /// Routes to the TUN that are still to come.
    later: Vec<RouteChange>,
    ways_back: WaysBack,
    has_ipv6: bool,
}

impl HostRoutes {
    /// Takes over what an earlier run left in `table`, so that what it refuses is refused until [`HostRoutes::follow`]. Where it left nothing, nothing
    /// of the host's changes before [`HostRoutes::lead`].
    ///
    /// # Errors
    /// The kernel's; what was to be done is in the text.
    pub(crate) fn open(tun: u32, table: u32, mark: u32) -> anyhow::Result<Self> {
        let mut rtnetlink = Rtnetlink::open()?;
        let left = left_over::take_over(&mut rtnetlink, table)?;
        let [own, sources] = addresses(&mut rtnetlink)?;
        let (peers, is_led_to) = (HashSet::new(), left.is_some());
        let destinations = left.unwrap_or_default();
        let name = rtnetlink.link_of_index(tun)?.name;
        settings::accept_from(&name);
        settings::forward_from(&name);
        let mut routes = Self {
            rtnetlink,
            table,
            mark,
            tun,
            name,
            led_by: LedBy::Destinations,
            ways: Ways::new(tun, table, mark),
            plan_is_old: true,
            plan_may_hurry: true,
            own,
            sources,
            destinations,
            peers,
            mtu: u32::MAX,
            narrow: NarrowPaths::new(),
            news: true,
            is_up: true,
            later: Vec::new(),
            ways_back: WaysBack::default(),
            has_ipv6: !is_absent(Version::V6),
        };
        if is_led_to {
            routes.keep_led()?;
        }
        Ok(routes)
    }

    /// Adds the rules that lead to the table, for a kernel that marks or does not.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn lead(&mut self, by: LedBy) -> Result<(), rtnetlink::Error> {
        self.led_by = by;
        match by {
            LedBy::Marks => {
                self.ways.put_up(&mut self.rtnetlink)?;
                self.rules_alone().map(drop)
            }
            LedBy::Destinations => {
                self.rules_alone()?;
                self.ways.take_down(&mut self.rtnetlink)
            }
        }
    }

    /// The same, if it was otherwise until now.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn turn(&mut self, by: LedBy) -> Result<(), rtnetlink::Error> {
        if by == self.led_by {
            return Ok(());
        }
        tracing::info!(?by, "packets are led into the TUN otherwise than before");
        self.plan_is_old = true;
        self.lead(by)
    }

    /// Has what an earlier run refuses refused still, whichever way it led there.
    fn keep_led(&mut self) -> Result<(), rtnetlink::Error> {
        for version in versions() {
            let all = self.rtnetlink.rules(version)?;
            if !all.iter().any(|rule| rule.table() == Some(self.table)) {
                self.rule_alone(version)?;
            }
        }
        Ok(())
    }

    /// Has the plan follow the first change since the last review, before packets find another way that they would remember.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn plan_at_once(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        let hurries = self.plan_is_old && std::mem::replace(&mut self.plan_may_hurry, false);
        if hurries { self.plan_anew(spd) } else { Ok(()) }
    }

    /// The same for all changes until now, some time later.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn review_plan(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        self.plan_may_hurry |= !self.plan_is_old;
        self.plan_anew(spd)
    }

    /// What the plan misses is led by marks meanwhile.
    fn plan_anew(&mut self, spd: &Spd) -> Result<(), rtnetlink::Error> {
        if !std::mem::replace(&mut self.plan_is_old, false) {
            return Ok(());
        }
        let result = self.ways.follow(&mut self.rtnetlink, Plan::of(spd, &self.sources));
        self.plan_is_old = result.is_err();
        result
    }

    /// Hears of what happens to links and addresses, and of rules and routes that somebody else takes away.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn watch(&self) -> Result<Monitor, rtnetlink::Error> {
        Monitor::open(&self.rtnetlink, self.table)
    }

    /// Has our rules lead to the table, and no others; how many were not there.
    fn rules_alone(&mut self) -> Result<usize, rtnetlink::Error> {
        let mut missing = 0;
        for version in versions() {
            missing += usize::from(self.rule_alone(version)?);
        }
        Ok(missing)
    }

    fn rule_alone(&mut self, version: Version) -> Result<bool, rtnetlink::Error> {
        let ours = self.rule(version);
        let was_missing = match self.rtnetlink.add_rule(&ours) {
            Ok(()) => true,
            Err(rtnetlink::Error::Exists { .. }) => false,
            Err(error) => return Err(error),
        };
        let all = self.rtnetlink.rules(version)?;
        let is_ours = |rule: &&Rule| rule.table() == Some(self.table);
        let others = all.iter().filter(is_ours).filter(|rule| **rule != ours);
        others.copied().try_for_each(|rule| forgive_absent(self.rtnetlink.delete_rule(&rule)))?;
        Ok(was_missing)
    }

    /// Puts back rules that somebody has taken away.
    fn put_rules_back(&mut self) -> Result<(), rtnetlink::Error> {
        if self.rules_alone()? + self.ways.rules_alone(&mut self.rtnetlink)? > 0 {
            tracing::warn!(
                table = self.table,
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
        [self.own, self.sources] = addresses(&mut self.rtnetlink)?;
        self.later.clear();
        self.peers.clear();
        (self.mtu, self.news) = (u32::MAX, true);
        self.destinations.start_over();
        for entry in spd.iter() {
            self.count_in(entry);
        }
        self.destinations.join();
        let steps = self.destinations.take_steps();
        self.install(steps)?;
        self.ways.renew(&mut self.rtnetlink)?;
        self.plan_is_old = true;
        self.plan_anew(spd)
    }

    /// Lets go of what a killed gateway refused that had another table. Only when routes are there for what is protected now.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn sweep(&mut self) -> Result<(), rtnetlink::Error> {
        left_over::let_go_of_others(&mut self.rtnetlink, self.table)
    }

    /// Lets the routes follow policies that came or went.
    ///
    /// # Errors
    /// As [`HostRoutes::follow`].
    pub(crate) fn change(&mut self, changes: &[PolicyChange]) -> Result<(), rtnetlink::Error> {
        self.catch_up()?;
        self.plan_is_old |= changes.iter().any(is_of_out);
        if changes.iter().any(lets_go) {
            self.ways.follow(&mut self.rtnetlink, Plan::default())?;
        }
        let blocks = |change: &PolicyChange| match change {
            // One that leaves some of a destination's packets to other policies has the route to the TUN first: those find their way all the time.
            PolicyChange::Added(entry) => {
                entry.action() == Action::Block && entry.selector().protocol == 0
            }
            // Its neighbours may need routes of their own.
            PolicyChange::Removed(_) => false,
        };
        for change in changes {
            match change {
                PolicyChange::Added(entry) => self.count_in(entry),
                PolicyChange::Removed(entry) => self.count_out(entry),
            }
        }
        let steps = self.destinations.take_steps();
        let only_blocks = steps.delete.is_empty() && changes.iter().all(blocks);
        if only_blocks { self.block(steps) } else { self.install(steps) }
    }

    /// Makes the routes to the TUN that [`HostRoutes::change`] has left for later.
    ///
    /// # Errors
    /// As [`HostRoutes::follow`].
    pub(crate) fn catch_up(&mut self) -> Result<(), rtnetlink::Error> {
        if self.later.is_empty() {
            return Ok(());
        }
        let mut later = std::mem::take(&mut self.later);
        let result = self.change_routes(&later);
        later.clear();
        self.later = later; // for its room
        result
    }

    /// The route that a policy wants, of those that the kernel can have: where it does without IPv6 there is nothing to bring to the TUN.
    fn wish(&self, entry: &PolicyEntry) -> Option<(Destination, Option<IpAddr>)> {
        let (destination, source) = wish(entry, &self.sources)?;
        (destination.0.is_ipv4() || self.has_ipv6).then_some((destination, source))
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
    pub(crate) fn close(mut self) -> anyhow::Result<()> {
        self.ways.take_down(&mut self.rtnetlink)?;
        for version in versions() {
            let rule = self.rule(version);
            forgive_absent(self.rtnetlink.delete_rule(&rule))?;
        }
        clear(&mut self.rtnetlink, self.table)
    }

    /// Removes what gateways that have ended left, in whatever table.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn clean() -> anyhow::Result<()> {
        Ok(left_over::let_go_of_others(&mut Rtnetlink::open()?, NO_TABLE)?)
    }

    /// What workers are to know of the host: its addresses, and the largest IP packet that the network takes towards all peers.
    pub(crate) fn host(&self) -> Host {
        let (addresses, narrow) = (self.own.iter().copied().collect(), self.narrow.clone());
        Host { addresses, mtu: self.usual_mtu(), narrow }
    }

    fn usual_mtu(&self) -> u16 {
        let mtu = if self.mtu == u32::MAX { USUAL_MTU } else { self.mtu };
        u16::try_from(mtu).unwrap_or(u16::MAX).max(SMALLEST_MTU)
    }

    /// Says where the kernel takes nothing from a peer, now that routes are there.
    pub(crate) fn check_ways_back(&mut self) {
        self.ways_back.check(&mut self.rtnetlink, self.tun, self.mark);
    }

    /// Whether a policy has a tunnel that leads there.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.peers.contains(&address)
    }

    /// A packet to there was refused, as it was longer than the network takes: asks how much that is.
    pub(crate) fn meet_narrow_path(&mut self, to: IpAddr) {
        if self.narrow.len() < MOST_NARROW || self.narrow.contains_key(&to) {
            self.measure(to);
        }
    }

    /// Asks again where the network took less: the kernel forgets after some minutes what routers have said (`net.ipv4.route.mtu_expires`).
    pub(crate) fn measure_again(&mut self) {
        let known: Vec<_> = self.narrow.keys().copied().collect();
        known.into_iter().for_each(|peer| self.measure(peer));
    }

    fn measure(&mut self, peer: IpAddr) {
        let way = self.rtnetlink.route_to(peer, self.mark).ok();
        let now = way.map(|way| u16::try_from(way.mtu).unwrap_or(u16::MAX).max(least_path(peer)));
        let usual = self.usual_mtu();
        let before = match now.filter(|now| *now < usual) {
            Some(now) => self.narrow.insert(peer, now),
            None => self.narrow.remove(&peer),
        };
        self.news |= before != self.narrow.get(&peer).copied();
    }

    /// The same, if it may have changed since the last time.
    pub(crate) fn take_news(&mut self) -> Option<Host> {
        std::mem::take(&mut self.news).then(|| self.host())
    }

    /// Links or addresses have changed, or rules or routes have gone: makes all right again where that matters to it.
    ///
    /// # Errors
    /// As [`HostRoutes::follow`].
    pub(crate) fn look_around(&mut self, news: News, spd: &Spd) -> Result<(), rtnetlink::Error> {
        self.put_rules_back()?;
        settings::forward_from(&self.name);
        let is_up = self.rtnetlink.link_of_index(self.tun)?.is_up;
        let was_up = std::mem::replace(&mut self.is_up, is_up) && news != News::RoutesWent;
        let came_back = is_up && !was_up;
        let [own, sources] = addresses(&mut self.rtnetlink)?;
        if came_back || own != self.own || sources != self.sources {
            return self.follow(spd);
        }
        (self.mtu, self.news) = (u32::MAX, true);
        let peers = std::mem::take(&mut self.peers);
        peers.into_iter().for_each(|peer| self.meet(peer));
        Ok(())
    }

    /// Asks for the way to the peers of a policy, the first time.
    fn meet_peers(&mut self, templates: impl Iterator<Item = Template>) {
        for template in templates {
            let peer = template.destination;
            if !peer.is_unspecified() && !self.peers.contains(&peer) {
                self.meet(peer);
            }
        }
    }

    fn meet(&mut self, peer: IpAddr) {
        // A peer that no route leads to says nothing about packets' size; the next change of links asks again.
        self.peers.insert(peer);
        self.ways_back.doubt(peer);
        let way = self.rtnetlink.route_to(peer, self.mark).ok();
        let Some(way) = way.filter(|way| way.mtu < self.mtu) else { return };
        // What takes less than its device is narrow for this peer alone, and perhaps for some minutes only.
        let device = self.rtnetlink.link_of_index(way.link).map_or(way.mtu, |link| link.mtu);
        let is_known = way.mtu < device && self.narrow.len() < MOST_NARROW;
        let mtu = if is_known { device } else { way.mtu };
        if mtu < self.mtu {
            (self.mtu, self.news) = (mtu, true);
        }
        if is_known {
            self.measure(peer);
        }
    }

    /// Counts a policy's wish for a route, if it has one.
    fn count_in(&mut self, entry: &PolicyEntry) {
        if let Some((destination, source)) = self.wish(entry) {
            self.meet_peers(entry.templates());
            if entry.templates().any(|template| template.destination.is_unspecified()) {
                self.ways_back.doubt(destination.0);
            }
            self.destinations.count_in(destination, source);
        }
    }

    fn count_out(&mut self, entry: &PolicyEntry) {
        if let Some((destination, source)) = self.wish(entry) {
            self.destinations.count_out(destination, source);
        }
    }

    /// Refuses what new policies block; the routes to the TUN come later.
    fn block(&mut self, steps: Steps) -> Result<(), rtnetlink::Error> {
        let (mut to_tun, mut beneath) = (Vec::new(), Vec::new());
        for (destination, source) in steps.put {
            let [above, below] = self.routes(destination, source).map(RouteChange::Put);
            to_tun.push(above);
            beneath.push(below);
        }
        self.later = to_tun;
        self.change_routes(&beneath)
    }

    /// Makes the kernel's routes those that are wanted. What had one route may have others now: they are there before it goes, and nowhere is
    /// the one beneath the only one, as it would refuse packets for which there is a way.
    fn install(&mut self, steps: Steps) -> Result<(), rtnetlink::Error> {
        let Steps { put, delete } = steps;
        let routes = put.into_iter().flat_map(|(at, source)| self.routes(at, source));
        let put: Vec<_> = routes.map(RouteChange::Put).collect();
        let result = self.change_routes(&put);
        if result.is_err() {
            delete.into_iter().for_each(|destination| self.destinations.doubt(destination));
            return result;
        }
        let routes = delete.into_iter().flat_map(|at| self.routes(at, None).into_iter().rev());
        let delete: Vec<_> = routes.map(RouteChange::Delete).collect();
        self.change_routes(&delete)
    }

    fn change_routes(&mut self, changes: &[RouteChange]) -> Result<(), rtnetlink::Error> {
        let result = self.rtnetlink.change_routes(changes);
        if result.is_err() {
            // Which of them are there is asked of the kernel by trying again.
            for RouteChange::Put(route) | RouteChange::Delete(route) in changes {
                let destination = (route.destination.address(), route.destination.length());
                self.destinations.doubt(destination);
            }
        }
        result
    }

    /// The route to the TUN and the one beneath it.
    fn routes(&self, (destination, length): Destination, source: Option<IpAddr>) -> [Route; 2] {
        let destination = prefix((destination, length));
        let (table, tun) = (self.table, Via::Link(self.tun));
        let to_tun = Route { table, source, metric: Some(1), ..Route::new(destination, tun) };
        let beneath =
            Route { table, metric: Some(BENEATH), ..Route::new(destination, Via::Unreachable) };
        [to_tun, beneath]
    }

    fn rule(&self, version: Version) -> Rule {
        Rule {
            version,
            mark: FirewallMark::IsNot(self.mark, u32::MAX),
            source: None,
            action: RuleAction::Lookup(self.table),
            priority: match self.led_by {
                LedBy::Marks => FALLBACK,
                LedBy::Destinations => LEADING,
            },
            suppress_prefix_length: None,
        }
    }
}

fn prefix((address, length): Destination) -> rtnetlink::Prefix {
    rtnetlink::Prefix::new(address, length).unwrap_or_else(|| rtnetlink::Prefix::host(address))
}

/// All addresses of a version.
fn default_net(version: Version) -> rtnetlink::Prefix {
    prefix(match version {
        Version::V4 => (Ipv4Addr::UNSPECIFIED.into(), 0),
        Version::V6 => (Ipv6Addr::UNSPECIFIED.into(), 0),
    })
}

/// How packets find their way into the TUN, line by line; nothing where none does.
pub(crate) fn describe(spd: &Spd, tun: &str) -> Vec<String> {
    let is_led =
        |entry: &&Arc<PolicyEntry>| entry.direction() == Direction::Out && !passes_plain(entry);
    let policies = spd.iter().filter(is_led).count();
    if policies == 0 {
        return Vec::new();
    }
    // Whoever may not ask has a plan without those of the host's own addresses that stand for all.
    let own = Rtnetlink::open().and_then(|mut rtnetlink| addresses(&mut rtnetlink));
    let plan = Plan::of(spd, &own.map(|[_own, sources]| sources).unwrap_or_default());
    let mark = format!(
        "policies out that lead to {tun}: {policies}, by the mark {DIVERTED:#x} and rule {}",
        ways::LAST
    );
    let rules = plan.rules().map(|(priority, source)| format!("rule {priority} {source}"));
    std::iter::once(mark).chain(rules).collect()
}

fn is_of_out(change: &PolicyChange) -> bool {
    let (PolicyChange::Added(entry) | PolicyChange::Removed(entry)) = change;
    entry.direction() == Direction::Out
}

/// Whether packets may be uxfrm's no more that were until then.
fn lets_go(change: &PolicyChange) -> bool {
    is_of_out(change)
        && match change {
            PolicyChange::Added(entry) => passes_plain(entry),
            PolicyChange::Removed(entry) => !passes_plain(entry),
        }
}

/// The route that an outbound policy wants, unless it simply lets pass.
fn wish(entry: &PolicyEntry, sources: &[IpAddr]) -> Option<(Destination, Option<IpAddr>)> {
    let is_meant = entry.direction() == Direction::Out && !passes_plain(entry);
    is_meant.then(|| {
        let selector = entry.selector();
        let destination = selector.destination;
        let source = source(selector.source, sources);
        ((network(destination), destination.prefix_len()), source)
    })
}

/// The host's addresses, and those of them that may be sources: the kernel takes no route with one that it does not yet use, or that is of another link alone.
fn addresses(rtnetlink: &mut Rtnetlink) -> Result<[Vec<IpAddr>; 2], rtnetlink::Error> {
    let all = rtnetlink.addresses()?;
    let address = |own: &Address| own.prefix.address();
    let sources = all.iter().filter(|own| own.is_usable).map(address);
    Ok([all.iter().map(address).collect(), sources.filter(|own| !is_link_local(*own)).collect()])
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn passes_plain(entry: &PolicyEntry) -> bool {
    entry.action() == Action::Allow && entry.templates().len() == 0
}

/// An own address that the policy's source holds: the very one it names, else the first.
fn source(prefix: Prefix, sources: &[IpAddr]) -> Option<IpAddr> {
    if sources.contains(&prefix.address()) {
        return Some(prefix.address());
    }
    sources.iter().copied().find(|address| prefix.contains(*address) && !address.is_loopback())
}

/// A prefix's address without its host bits.
fn network(prefix: Prefix) -> IpAddr {
    let host_bits = u32::from(prefix.family().bits() - prefix.prefix_len());
    match prefix.address() {
        IpAddr::V4(address) => {
            IpAddr::V4((address.to_bits() & u32::MAX.checked_shl(host_bits).unwrap_or(0)).into())
        }
        IpAddr::V6(address) => {
            IpAddr::V6((address.to_bits() & u128::MAX.checked_shl(host_bits).unwrap_or(0)).into())
        }
    }
}

/// Those that the kernel has.
fn versions() -> impl Iterator<Item = Version> {
    [Version::V4, Version::V6].into_iter().filter(|version| !is_absent(*version))
}

/// `RT_TABLE_UNSPEC`: nobody's.
const NO_TABLE: u32 = 0;

fn clear(rtnetlink: &mut Rtnetlink, table: u32) -> anyhow::Result<()> {
    for version in versions() {
        for rule in rtnetlink.rules(version)?.iter().filter(|rule| rule.table() == Some(table)) {
            forgive_absent(rtnetlink.delete_rule(rule))?;
        }
    }
    let left: Vec<_> = rtnetlink.routes(table)?.into_iter().map(RouteChange::Delete).collect();
    Ok(rtnetlink.change_routes(&left)?)
}

/// What is not there need not be deleted: the kernel takes a device's routes along with it.
fn forgive_absent(result: Result<(), rtnetlink::Error>) -> Result<(), rtnetlink::Error> {
    match result {
        Ok(()) | Err(rtnetlink::Error::NotFound { .. }) => Ok(()),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_the_address_that_the_policy_names_if_it_is_ours() {
        let own: Vec<IpAddr> =
            ["127.0.0.1", "14.0.0.9", "14.0.0.52"].map(|own| own.parse().unwrap()).into();
        let named = Prefix::new("14.0.0.52".parse().unwrap(), 24).unwrap();
        assert_eq!(source(named, &own), Some(own[2]));
        let net = Prefix::new("14.0.0.0".parse().unwrap(), 24).unwrap();
        assert_eq!(source(net, &own), Some(own[1]));
        let all = Prefix::new("0.0.0.0".parse().unwrap(), 0).unwrap();
        assert_eq!(source(all, &own), Some(own[1]));
        let other = Prefix::new("10.0.0.0".parse().unwrap(), 8).unwrap();
        assert_eq!(source(other, &own), None);
    }

    #[test]
    fn networks_lose_their_host_bits() {
        let net = Prefix::new("14.0.0.52".parse().unwrap(), 24).unwrap();
        assert_eq!(network(net).to_string(), "14.0.0.0");
        let all = Prefix::new("fd00::1".parse().unwrap(), 0).unwrap();
        assert_eq!(network(all).to_string(), "::");
        let host = Prefix::new("fd00::1".parse().unwrap(), 128).unwrap();
        assert_eq!(network(host).to_string(), "fd00::1");
    }
}
