//! Rules and tables that lead packets into the TUN before all of the host's own: those that the
//! packet filter has marked, and those of the [`AddressPlan`].
//!
//! ```text
//! 188       our own mark: goto 219
//! 189…215   from SOURCE: its table, with DESTINATION dev TUN, or throw
//! 216       from the host itself: a table that answers without a TUN alone (`unreachable.rs`)
//! 217       from anybody: another
//! 218       to multicast groups: a table with GROUPS dev TUN src SOURCE, or throw
//! 219       marked as diverted: a table with default dev TUN
//! 220       (strongSwan's)
//! ```
//!
//! Beneath each route to the TUN lies an unreachable one, as in the table of destinations.

use uxfrm_io::rtnetlink::{
    self, FirewallMark, Route, RouteChange, RoutePrefix, RoutingRule, Rtnetlink, RuleAction,
    RuleOrigin, Via,
};
use uxfrm_packet::Version;

use super::{
    BENEATH,
    address_plan::{AddressPlan, Group, Lead, MOST_SOURCES, Source, UnreachableRoutes},
    addresses::{default_net, prefix},
    destinations::Destination,
    forgive_absent, multicast,
    running_gateway::RunningGateway,
    versions,
};
use crate::config::DIVERTED;

/// The rule that leaves out those of the plan.
pub(super) const FIRST: u32 = 188;
/// The first of the plan's.
pub(super) const PLANNED: u32 = FIRST + 1;
/// The plan's for what is refused once the TUN is gone: of the host itself, and of anybody.
const CLOSING: [u32; 2] = [TO_GROUPS - 2, TO_GROUPS - 1];
/// The plan's for groups.
const TO_GROUPS: u32 = LAST - 1;
/// The rule for what is marked: behind the plan, before strongSwan's (220).
pub(super) const LAST: u32 = 219;

/// Tables: that of what is marked, those of sources, those of what is refused without a TUN, that
/// of groups.
const TABLES: usize = 1 + MOST_SOURCES + CLOSING.len() + 1;

const _ALL_FIT: () = assert!(PLANNED as usize + MOST_SOURCES == CLOSING[0] as usize);

/// The rules and tables of one gateway.
#[derive(Debug)]
pub(super) struct DivertRules {
    tun: u32,
    mark: u32,
    tables: [u32; TABLES],
    /// Whether they are up.
    are_up: bool,
    /// What the kernel has of a plan.
    plan: AddressPlan,
    /// Whether the plan may be another one now.
    is_old: bool,
    /// Whether it was not made anew since the last review: then it follows the next change at once.
    may_renew_now: bool,
}

impl DivertRules {
    /// None yet. Their tables are those behind `table`.
    pub(super) fn new(tun: u32, table: u32, mark: u32) -> Self {
        let (tables, plan) = (tables(table), AddressPlan::default());
        Self { tun, mark, tables, are_up: false, plan, is_old: true, may_renew_now: true }
    }

    /// The plan may be another one now.
    pub(super) fn outdate(&mut self) {
        self.is_old = true;
    }

    /// Whether it may be.
    pub(super) fn are_outdated(&self) -> bool {
        self.is_old
    }

    /// Whether the plan is to follow at once: the first change since the last review.
    pub(super) fn may_renew_now(&mut self) -> bool {
        self.is_old && std::mem::replace(&mut self.may_renew_now, false)
    }

    /// A review: where nothing has changed since the last one, the next change may hurry.
    pub(super) fn rest(&mut self) {
        self.may_renew_now |= !self.is_old;
    }

    /// Leads what is marked into the TUN, and nothing else yet.
    pub(super) fn put_up(&mut self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        self.are_up = true;
        for version in versions() {
            let marked = self.pair(self.tables[0], default_net(version)).map(RouteChange::Put);
            rtnetlink.change_routes(&marked)?;
        }
        self.rules_alone(rtnetlink).map(drop)
    }

    /// Has what is marked refused, and what a plan would lead into the TUN.
    pub(super) fn refuse(
        &mut self,
        rtnetlink: &mut Rtnetlink,
        plan: AddressPlan,
    ) -> Result<(), rtnetlink::Error> {
        (self.are_up, self.plan) = (true, plan);
        let marked = versions().flat_map(|version| self.pair(self.tables[0], default_net(version)));
        let put = self.routes(&self.plan).chain(marked);
        let put = put.filter(|route| !matches!(route.via, Via::Link(_))).map(RouteChange::Put);
        rtnetlink.change_routes(&put.collect::<Vec<_>>())?;
        self.rules_alone(rtnetlink).map(drop)
    }

    /// Takes all of it down.
    pub(super) fn take_down(&mut self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        if !std::mem::replace(&mut self.are_up, false) {
            return Ok(());
        }
        self.plan_alone(rtnetlink, AddressPlan::default())?;
        for version in versions() {
            for rule in self.fixed(version) {
                forgive_absent(rtnetlink.delete_rule(&rule))?;
            }
            let marked = self.pair(self.tables[0], default_net(version)).map(RouteChange::Delete);
            rtnetlink.change_routes(&marked)?;
        }
        Ok(())
    }

    /// Has the kernel follow another plan. What it knows too little of meanwhile is led by its
    /// mark.
    pub(super) fn renew_plan(
        &mut self,
        rtnetlink: &mut Rtnetlink,
        plan: AddressPlan,
    ) -> Result<(), rtnetlink::Error> {
        self.is_old = false;
        let result = if self.are_up && plan != self.plan {
            self.plan_alone(rtnetlink, plan)
        } else {
            Ok(())
        };
        self.is_old = result.is_err();
        result
    }

    /// Leaves all to marks until the plan is made anew: some of it may lead too much. Not groups,
    /// which no mark leads; uxfrm passes what it has too much of.
    pub(super) fn narrow(&mut self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        if !self.are_up || self.plan.sources.is_empty() {
            return Ok(());
        }
        let plan = AddressPlan { sources: Vec::new(), ..self.plan.clone() };
        self.plan_alone(rtnetlink, plan)
    }

    /// Makes all of it anew, as the TUN's routes have gone.
    pub(super) fn renew(&mut self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        if !self.are_up {
            return Ok(());
        }
        self.put_up(rtnetlink)?;
        self.is_old = true;
        let plan = self.plan.clone();
        self.install(rtnetlink, &plan)
    }

    /// Puts back rules that somebody has taken away; how many.
    pub(super) fn rules_alone(&self, rtnetlink: &mut Rtnetlink) -> Result<usize, rtnetlink::Error> {
        if !self.are_up {
            return Ok(0);
        }
        let mut missing = 0;
        for version in versions() {
            for rule in self.fixed(version).into_iter().chain(self.planned(&self.plan, version)) {
                missing += usize::from(add(rtnetlink, &rule)?);
            }
        }
        Ok(missing)
    }

    fn plan_alone(
        &mut self,
        rtnetlink: &mut Rtnetlink,
        plan: AddressPlan,
    ) -> Result<(), rtnetlink::Error> {
        for version in versions() {
            let wanted: Vec<_> = self.planned(&plan, version).collect();
            for rule in self.planned(&self.plan, version).filter(|rule| !wanted.contains(rule)) {
                forgive_absent(rtnetlink.delete_rule(&rule))?;
            }
        }
        let before: Vec<_> = self.routes(&self.plan).collect();
        self.install(rtnetlink, &plan)?;
        let wanted: Vec<_> = self.routes(&plan).collect();
        let gone = before.into_iter().filter(|route| !wanted.contains(route));
        rtnetlink.change_routes(&gone.map(RouteChange::Delete).collect::<Vec<_>>())?;
        self.plan = plan;
        Ok(())
    }

    fn install(
        &self,
        rtnetlink: &mut Rtnetlink,
        plan: &AddressPlan,
    ) -> Result<(), rtnetlink::Error> {
        let put: Vec<_> = self.routes(plan).map(RouteChange::Put).collect();
        rtnetlink.change_routes(&put)?;
        for version in versions() {
            for rule in self.planned(plan, version) {
                add(rtnetlink, &rule)?;
            }
        }
        Ok(())
    }

    /// What stays when leftovers go.
    pub(super) fn kept(&self) -> RunningGateway {
        if !self.are_up {
            return RunningGateway::default();
        }
        let mut kept = RunningGateway {
            routes: self.routes(&self.plan).collect(),
            ..RunningGateway::default()
        };
        for version in versions() {
            kept.rules.extend(self.fixed(version));
            kept.rules.extend(self.planned(&self.plan, version));
            kept.routes.extend(self.pair(self.tables[0], default_net(version)));
        }
        kept
    }

    /// The rules that are there whatever the plan is.
    fn fixed(&self, version: Version) -> [RoutingRule; 2] {
        let rule = |priority, mark, action| RoutingRule { mark, ..rule(version, priority, action) };
        let ours = FirewallMark::Is(self.mark, u32::MAX);
        let diverted = FirewallMark::Is(DIVERTED, DIVERTED);
        [
            rule(FIRST, ours, RuleAction::Goto(LAST)),
            rule(LAST, diverted, RuleAction::Lookup(self.tables[0])),
        ]
    }

    fn planned(
        &self,
        plan: &AddressPlan,
        version: Version,
    ) -> impl Iterator<Item = RoutingRule> + use<> {
        let of_source = |(number, source): (usize, &Source)| {
            let action = RuleAction::Lookup(self.tables[1 + number]);
            RoutingRule {
                source: Some(prefix(source.net)),
                ..rule(version, priority(number), action)
            }
        };
        let mut rules: Vec<_> = plan.of_family(version == Version::V4).map(of_source).collect();
        rules.extend(self.closing(plan, version));
        if version == Version::V4 && !plan.groups.is_empty() {
            let action = RuleAction::Lookup(self.tables[TABLES - 1]);
            let groups = Some(prefix(multicast::ALL));
            rules.push(RoutingRule { destination: groups, ..rule(version, TO_GROUPS, action) });
        }
        rules.into_iter()
    }

    /// Rules to tables of which refusals alone count.
    fn closing(&self, plan: &AddressPlan, version: Version) -> impl Iterator<Item = RoutingRule> {
        let made =
            self.closings(plan).into_iter().zip(CLOSING).zip([RuleOrigin::Host, RuleOrigin::Any]);
        made.filter(move |(((_, leads), _), _)| leads.iter().any(|(net, _)| is_of(version, *net)))
            .map(move |(((table, _), priority), sender)| RoutingRule {
                sender,
                suppress_prefix_length: Some(longest(version)),
                ..rule(version, priority, RuleAction::Lookup(table))
            })
    }

    /// The tables of what is refused once the TUN is gone.
    fn closings<'plan>(
        &self,
        plan: &'plan AddressPlan,
    ) -> [(u32, &'plan [(Destination, Lead)]); 2] {
        let [.., own, everyone, _groups] = self.tables;
        [(own, &plan.closing.own), (everyone, &plan.closing.everyone)]
    }

    /// The routes of all of a plan's tables, of the families that the kernel has.
    fn routes(&self, plan: &AddressPlan) -> impl Iterator<Item = Route> {
        let of_source = |(number, source): (usize, &Source)| {
            let table = self.tables[1 + number];
            let of_lead = |(net, lead): &(_, Lead)| self.led(table, prefix(*net), *lead);
            source.leads.iter().flat_map(of_lead).collect::<Vec<_>>()
        };
        let families = versions().map(|version| version == Version::V4);
        let mut all: Vec<_> =
            families.flat_map(|is_v4| plan.of_family(is_v4).flat_map(of_source)).collect();
        for (table, leads) in self.closings(plan) {
            let is_there = |net: &Destination| versions().any(|version| is_of(version, *net));
            let there = leads.iter().filter(|(net, _)| is_there(net));
            all.extend(there.flat_map(|(net, lead)| self.led(table, prefix(*net), *lead)));
        }
        let is_v4_there = versions().any(|version| version == Version::V4);
        for Group { net, lead, source } in plan.groups.iter().filter(|_group| is_v4_there) {
            let mut routes = self.led(self.tables[TABLES - 1], prefix(*net), *lead);
            let to_tun = routes.iter_mut().filter(|route| route.via == Via::Link(self.tun));
            to_tun.for_each(|route| route.source = Some(*source));
            all.extend(routes);
        }
        all.into_iter()
    }

    fn led(&self, table: u32, net: RoutePrefix, lead: Lead) -> Vec<Route> {
        match lead {
            Lead::Tun => self.pair(table, net).to_vec(),
            Lead::On => vec![Route { table, ..Route::new(net, Via::Throw) }],
        }
    }

    /// The route to the TUN and the one beneath it.
    fn pair(&self, table: u32, net: RoutePrefix) -> [Route; 2] {
        let route = |metric, via| Route { table, metric: Some(metric), ..Route::new(net, via) };
        [route(1, Via::Link(self.tun)), route(BENEATH, Via::Unreachable)]
    }
}

fn is_of(version: Version, (address, _): Destination) -> bool {
    address.is_ipv4() == (version == Version::V4)
}

/// The length of the longest prefix.
pub(super) const fn longest(version: Version) -> u32 {
    match version {
        Version::V4 => 32,
        Version::V6 => 128,
    }
}

/// A rule for all packets.
fn rule(version: Version, priority: u32, action: RuleAction) -> RoutingRule {
    RoutingRule {
        version,
        mark: FirewallMark::Any,
        sender: RuleOrigin::Any,
        source: None,
        destination: None,
        action,
        priority,
        suppress_prefix_length: None,
    }
}

/// The priority of the rule of a plan's source, by its number in its family.
fn priority(number: usize) -> u32 {
    PLANNED + u32::try_from(number).unwrap_or(0)
}

/// A plan's rules in words, a line for each.
pub(super) fn lines(plan: &AddressPlan) -> impl Iterator<Item = String> {
    let families = [true, false].into_iter().flat_map(|is_v4| plan.of_family(is_v4));
    let of_sources = families.map(|(number, source)| format!("rule {} {source}", priority(number)));
    let groups: Vec<_> = plan.groups.iter().map(Group::to_string).collect();
    let to_groups = (!groups.is_empty())
        .then(|| format!("rule {TO_GROUPS} of sockets without an address: {}", groups.join(", ")));
    of_sources.chain(to_groups).chain(closing_lines(&plan.closing))
}

fn closing_lines(closing: &UnreachableRoutes) -> impl Iterator<Item = String> {
    let whose = ["what programs here send", "whoever sends"];
    let refused = [&closing.own, &closing.everyone].into_iter().zip(CLOSING).zip(whose);
    refused.filter(|((leads, _), _)| !leads.is_empty()).map(|((leads, priority), whose)| {
        let nets = leads.iter().map(|((net, length), lead)| match lead {
            Lead::Tun => format!("{net}/{length}"),
            Lead::On => format!("but not {net}/{length}"),
        });
        let nets = nets.collect::<Vec<_>>().join(", ");
        format!("rule {priority} refuses without uxfrm, {whose}: {nets}")
    })
}

/// The table of what is marked, of the gateway whose destinations are in this one.
pub(super) fn table(table: u32) -> u32 {
    tables(table)[0]
}

/// The tables of a gateway whose destinations are in this one: those behind it, but for the
/// system's.
pub(super) fn tables(table: u32) -> [u32; TABLES] {
    let mut behind = std::iter::successors(Some(table), |table| Some(table.wrapping_add(1)))
        .skip(1)
        .filter(|table| !matches!(table, 0 | 253..=255));
    std::array::from_fn(|_| behind.next().unwrap_or(table))
}

/// Adds a rule; whether it was missing.
fn add(rtnetlink: &mut Rtnetlink, rule: &RoutingRule) -> Result<bool, rtnetlink::Error> {
    match rtnetlink.add_rule(rule) {
        Ok(()) => Ok(true),
        Err(rtnetlink::Error::Exists { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divert_tables_avoid_system_tables() {
        assert_eq!(tables(30_000)[..3], [30_001, 30_002, 30_003]);
        assert_eq!(tables(251)[..3], [252, 256, 257]);
        assert_eq!(tables(u32::MAX)[..2], [1, 2]);
    }
}
