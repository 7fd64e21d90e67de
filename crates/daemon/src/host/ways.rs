//! Rules and tables that lead packets into the TUN before all of the host's own: those that the packet filter has marked, and those of the [`Plan`].
//!
//! ```text
//! 188       our own mark: goto 219
//! 189…218   from SOURCE: its table, with DESTINATION dev TUN, or throw
//! 219       marked as diverted: a table with default dev TUN
//! 220       (strongSwan's)
//! ```
//!
//! Beneath each route to the TUN lies an unreachable one, as in the table of destinations.

use uxfrm_io::rtnetlink::{
    self, FirewallMark, Prefix, Route, RouteChange, Rtnetlink, Rule, RuleAction, Via,
};
use uxfrm_packet::Version;

use super::{
    BENEATH, default_net, forgive_absent,
    plan::{Lead, MOST_SOURCES, Plan, Source},
    prefix, versions,
};
use crate::guard::DIVERTED;

/// The rule that leaves out those of the plan.
const FIRST: u32 = 188;
/// The first of the plan's.
const PLANNED: u32 = FIRST + 1;
/// The rule for what is marked: behind the plan, before strongSwan's (220).
pub(super) const LAST: u32 = 219;

/// Tables: that of what is marked, and those of sources.
const TABLES: usize = 1 + MOST_SOURCES;

const _ALL_FIT: () = assert!(PLANNED as usize + MOST_SOURCES == LAST as usize);

/// The rules and tables of one gateway.
#[derive(Debug)]
pub(super) struct Ways {
    tun: u32,
    mark: u32,
    tables: [u32; TABLES],
    /// Whether they are up.
    are_up: bool,
    /// What the kernel has of a plan.
    plan: Plan,
}

impl Ways {
    /// None yet. Their tables are those behind `table`.
    pub(super) fn new(tun: u32, table: u32, mark: u32) -> Self {
        Self { tun, mark, tables: tables(table), are_up: false, plan: Plan::default() }
    }

    /// Leads what is marked into the TUN, and nothing else yet.
    pub(super) fn put_up(&mut self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        if !self.are_up {
            self.clear(rtnetlink)?;
        }
        self.are_up = true;
        for version in versions() {
            let marked = self.pair(self.tables[0], default_net(version)).map(RouteChange::Put);
            rtnetlink.change_routes(&marked)?;
        }
        self.rules_alone(rtnetlink).map(drop)
    }

    /// Takes all of it down.
    pub(super) fn take_down(&mut self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        if !std::mem::replace(&mut self.are_up, false) {
            return Ok(());
        }
        self.plan_alone(rtnetlink, Plan::default())?;
        for version in versions() {
            for rule in self.fixed(version) {
                forgive_absent(rtnetlink.delete_rule(&rule))?;
            }
            let marked = self.pair(self.tables[0], default_net(version)).map(RouteChange::Delete);
            rtnetlink.change_routes(&marked)?;
        }
        Ok(())
    }

    /// Has the kernel follow another plan. What it knows too little of meanwhile is led by its mark.
    pub(super) fn follow(
        &mut self,
        rtnetlink: &mut Rtnetlink,
        plan: Plan,
    ) -> Result<(), rtnetlink::Error> {
        if !self.are_up || plan == self.plan {
            return Ok(());
        }
        self.plan_alone(rtnetlink, plan)
    }

    /// Makes all of it anew, as the TUN's routes have gone.
    pub(super) fn renew(&mut self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        if !self.are_up {
            return Ok(());
        }
        self.put_up(rtnetlink)?;
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
        plan: Plan,
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

    fn install(&self, rtnetlink: &mut Rtnetlink, plan: &Plan) -> Result<(), rtnetlink::Error> {
        let put: Vec<_> = self.routes(plan).map(RouteChange::Put).collect();
        rtnetlink.change_routes(&put)?;
        for version in versions() {
            for rule in self.planned(plan, version) {
                add(rtnetlink, &rule)?;
            }
        }
        Ok(())
    }

    /// Lets go of what an earlier run left in the same tables.
    fn clear(&self, rtnetlink: &mut Rtnetlink) -> Result<(), rtnetlink::Error> {
        let mut left = Vec::new();
        for version in versions() {
            for rule in rtnetlink.rules(version)? {
                let table = rule.table().filter(|table| self.tables[1..].contains(table));
                if let (PLANNED..LAST, Some(table)) = (rule.priority, table) {
                    forgive_absent(rtnetlink.delete_rule(&rule))?;
                    left.push(table);
                }
            }
        }
        left.sort_unstable();
        left.dedup();
        for table in left {
            let routes: Vec<_> =
                rtnetlink.routes(table)?.into_iter().map(RouteChange::Delete).collect();
            rtnetlink.change_routes(&routes)?;
        }
        Ok(())
    }

    /// The rules that are there whatever the plan is.
    fn fixed(&self, version: Version) -> [Rule; 2] {
        let rule = |priority, mark, action| Rule {
            version,
            mark,
            source: None,
            action,
            priority,
            suppress_prefix_length: None,
        };
        let ours = FirewallMark::Is(self.mark, u32::MAX);
        let diverted = FirewallMark::Is(DIVERTED, DIVERTED);
        [
            rule(FIRST, ours, RuleAction::Goto(LAST)),
            rule(LAST, diverted, RuleAction::Lookup(self.tables[0])),
        ]
    }

    fn planned(&self, plan: &Plan, version: Version) -> impl Iterator<Item = Rule> + use<> {
        let tables = self.tables;
        let rule = move |(number, net): (usize, Prefix)| Rule {
            version,
            mark: FirewallMark::Any,
            source: Some(net),
            action: RuleAction::Lookup(tables[1 + number]),
            priority: priority(number),
            suppress_prefix_length: None,
        };
        let sources = plan.of_family(version == Version::V4);
        let nets: Vec<_> = sources.map(|(number, source)| (number, prefix(source.net))).collect();
        nets.into_iter().map(rule)
    }

    /// The routes of all of a plan's tables, of the families that the kernel has.
    fn routes(&self, plan: &Plan) -> impl Iterator<Item = Route> {
        let of_source = |(number, source): (usize, &Source)| {
            let table = self.tables[1 + number];
            let of_lead = |(net, lead): &(_, Lead)| match lead {
                Lead::Tun => self.pair(table, prefix(*net)).to_vec(),
                Lead::On => vec![Route { table, ..Route::new(prefix(*net), Via::Throw) }],
            };
            source.leads.iter().flat_map(of_lead).collect::<Vec<_>>()
        };
        let families = versions().map(|version| version == Version::V4);
        let all: Vec<_> =
            families.flat_map(|is_v4| plan.of_family(is_v4).flat_map(of_source)).collect();
        all.into_iter()
    }

    /// The route to the TUN and the one beneath it.
    fn pair(&self, table: u32, net: Prefix) -> [Route; 2] {
        let route = |metric, via| Route { table, metric: Some(metric), ..Route::new(net, via) };
        [route(1, Via::Link(self.tun)), route(BENEATH, Via::Unreachable)]
    }
}

/// The priority of the rule of a plan's source, by its number in its family.
pub(super) fn priority(number: usize) -> u32 {
    PLANNED + u32::try_from(number).unwrap_or(0)
}

/// The tables of a gateway whose destinations are in this one: those behind it, but for the system's.
pub(super) fn tables(table: u32) -> [u32; TABLES] {
    let mut behind = std::iter::successors(Some(table), |table| Some(table.wrapping_add(1)))
        .skip(1)
        .filter(|table| !matches!(table, 0 | 253..=255));
    std::array::from_fn(|_| behind.next().unwrap_or(table))
}

/// Adds a rule; whether it was missing.
fn add(rtnetlink: &mut Rtnetlink, rule: &Rule) -> Result<bool, rtnetlink::Error> {
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
    fn tables_are_none_of_the_systems() {
        assert_eq!(tables(30_000)[..3], [30_001, 30_002, 30_003]);
        assert_eq!(tables(251)[..3], [252, 256, 257]);
        assert_eq!(tables(u32::MAX)[..2], [1, 2]);
    }
}
