//! Rules and unreachable routes that a gateway left behind when it ended.

use std::collections::BTreeSet;

use uxfrm_io::rtnetlink::{
    self, FirewallMark, Route, RouteChange, RoutingRule, Rtnetlink, RuleAction, Via,
};

use super::{
    BENEATH,
    addresses::prefix,
    destinations::Destinations,
    divert_rules, forgive_absent,
    lookup_rule::{FALLBACK, FIRST},
    multicast,
    running_gateway::RunningGateway,
    versions,
};
use crate::config::DIVERTED;

/// Where routes of an earlier run refuse packets in the table, if there are any; all others there
/// go.
pub(super) fn take_over(
    rtnetlink: &mut Rtnetlink,
    table: u32,
) -> Result<Option<Destinations>, rtnetlink::Error> {
    let (beneath, others): (Vec<_>, Vec<_>) =
        rtnetlink.routes(table)?.into_iter().partition(refuses);
    let others: Vec<_> = others.into_iter().map(RouteChange::Delete).collect();
    rtnetlink.change_routes(&others)?;
    if beneath.is_empty() {
        return Ok(None);
    }
    let mut destinations = Destinations::default();
    for Route { destination, .. } in beneath {
        destinations.mark_unverified((destination.address(), destination.length()));
    }
    Ok(Some(destinations))
}

/// All destinations that a gateway that runs has in the table: none of its routes goes.
pub(super) fn share(
    rtnetlink: &mut Rtnetlink,
    table: u32,
) -> Result<Option<Destinations>, rtnetlink::Error> {
    let routes = rtnetlink.routes(table)?;
    let mut destinations = Destinations::default();
    for Route { destination, .. } in &routes {
        destinations.mark_unverified((destination.address(), destination.length()));
    }
    Ok((!routes.is_empty()).then_some(destinations))
}

/// Removes rules of gateways that do not run, and their routes: they would refuse for ever. Also
/// routes that such a one left in tables that are in use again.
pub(super) fn let_go_of_others(
    rtnetlink: &mut Rtnetlink,
    kept: &RunningGateway,
) -> Result<(), rtnetlink::Error> {
    let mut rules = Vec::new();
    for version in versions() {
        rules.extend(gateways(rtnetlink.rules(version)?));
    }
    rules.retain(|rule| !kept.rules.contains(rule));
    let in_use = kept.routes.iter().map(|route| route.table);
    let tables: BTreeSet<_> = rules.iter().filter_map(RoutingRule::table).chain(in_use).collect();
    let tables = tables.into_iter().filter(|table| kept.destinations != Some(*table));
    let mut left = rtnetlink.routes_of(&tables.collect::<Vec<_>>())?;
    // Where there is a route that refuses nothing the table is somebody else's, or in use.
    let others: BTreeSet<_> =
        left.iter().filter(|route| !refuses(route)).map(|route| route.table).collect();
    let is_others = |table: u32| others.contains(&table) && !kept.uses(table);
    rules.retain(|rule| !rule.table().is_some_and(is_others));
    left.retain(|route| refuses(route) && !kept.has(route) && !is_others(route.table));
    if !rules.is_empty() || !left.is_empty() {
        let (rules, routes) = (rules.len(), left.len());
        tracing::info!(rules, routes, "what an earlier run refused is let go");
    }
    rules.iter().try_for_each(|rule| forgive_absent(rtnetlink.delete_rule(rule)))?;
    rtnetlink.change_routes(&left.into_iter().map(RouteChange::Delete).collect::<Vec<_>>())
}

/// Removes all that a table has, and the rules that lead there.
pub(super) fn clear(rtnetlink: &mut Rtnetlink, table: u32) -> anyhow::Result<()> {
    for version in versions() {
        for rule in rtnetlink.rules(version)?.iter().filter(|rule| rule.table() == Some(table)) {
            forgive_absent(rtnetlink.delete_rule(rule))?;
        }
    }
    let left: Vec<_> = rtnetlink.routes(table)?.into_iter().map(RouteChange::Delete).collect();
    Ok(rtnetlink.change_routes(&left)?)
}

/// Those of gateways: to tables of destinations, of what is marked, and of a plan beside those.
fn gateways(rules: Vec<RoutingRule>) -> impl Iterator<Item = RoutingRule> {
    let to_destinations = rules.iter().filter(|rule| is_destination_rule(rule));
    let mut beside: BTreeSet<_> =
        to_destinations.filter_map(RoutingRule::table).flat_map(divert_rules::tables).collect();
    let marked = rules.iter().filter(|rule| is_mark_rule(rule)).filter_map(RoutingRule::table);
    beside.extend(marked.flat_map(|table| divert_rules::tables(table.wrapping_sub(1))));
    let is_of_plan = move |rule: &RoutingRule| {
        is_planned(rule) && rule.table().is_some_and(|table| beside.contains(&table))
    };
    rules.into_iter().filter(move |rule| {
        follows_plan(rule) || is_destination_rule(rule) || is_mark_rule(rule) || is_of_plan(rule)
    })
}

fn is_destination_rule(rule: &RoutingRule) -> bool {
    [FIRST, FALLBACK].contains(&rule.priority)
        && rule.suppress_prefix_length.is_none()
        && matches!(rule.mark, FirewallMark::IsNot(_, u32::MAX))
}

fn is_mark_rule(rule: &RoutingRule) -> bool {
    rule.priority == divert_rules::LAST && rule.mark == FirewallMark::Is(DIVERTED, DIVERTED)
}

/// Of our own sockets' packets.
fn follows_plan(rule: &RoutingRule) -> bool {
    rule.priority == divert_rules::FIRST
        && rule.action == RuleAction::Goto(divert_rules::LAST)
        && matches!(rule.mark, FirewallMark::Is(_, u32::MAX))
}

fn is_planned(rule: &RoutingRule) -> bool {
    let is_to_groups = rule.destination == Some(prefix(multicast::ALL));
    let is_closing = rule.suppress_prefix_length == Some(divert_rules::longest(rule.version));
    (divert_rules::PLANNED..divert_rules::LAST).contains(&rule.priority)
        && rule.mark == FirewallMark::Any
        && (rule.source.is_some() || is_to_groups || is_closing)
}

fn refuses(route: &Route) -> bool {
    route.via == Via::Throw || route.via == Via::Unreachable && route.metric == Some(BENEATH)
}
