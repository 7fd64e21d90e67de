//! What a gateway that was killed left behind: rules, and the routes beneath that refuse what it protected.

use std::collections::BTreeSet;

use uxfrm_io::rtnetlink::{self, FirewallMark, Route, RouteChange, Rtnetlink, Rule, Via};

use super::{
    BENEATH, FALLBACK, LEADING, destinations::Destinations, forgive_absent, versions, ways,
};
use crate::guard::DIVERTED;

/// Where routes of an earlier run refuse packets in the table, if there are any; all others there go.
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
        destinations.doubt((destination.address(), destination.length()));
    }
    Ok(Some(destinations))
}

/// Removes the rules and routes of gateways that had other tables than this one: they would refuse for ever.
pub(super) fn let_go_of_others(
    rtnetlink: &mut Rtnetlink,
    own: u32,
) -> Result<(), rtnetlink::Error> {
    let mut rules = Vec::new();
    for version in versions() {
        rules.extend(gateways(rtnetlink.rules(version)?));
    }
    let kept = ways::tables(own);
    let is_kept = |table: &u32| *table == own || kept.contains(table);
    let tables: BTreeSet<_> = rules.iter().filter_map(Rule::table).collect();
    for table in tables.into_iter().filter(|table| !is_kept(table)) {
        let routes = rtnetlink.routes(table)?;
        if routes.is_empty() || !routes.iter().all(refuses) {
            continue; // somebody else's
        }
        for rule in rules.iter().filter(|rule| rule.table() == Some(table)) {
            forgive_absent(rtnetlink.delete_rule(rule))?;
        }
        let routes: Vec<_> = routes.into_iter().map(RouteChange::Delete).collect();
        rtnetlink.change_routes(&routes)?;
        tracing::info!(table, "what an earlier run refused by another table is let go");
    }
    Ok(())
}

/// Those of gateways: to tables of destinations, of what is marked, and of sources beside that.
fn gateways(rules: Vec<Rule>) -> impl Iterator<Item = Rule> {
    let marked = rules.iter().filter(|rule| is_for_marked(rule)).filter_map(Rule::table);
    let of_sources: BTreeSet<_> =
        marked.flat_map(|table| ways::tables(table.wrapping_sub(1))).collect();
    let is_of_source = move |rule: &Rule| {
        rule.source.is_some() && rule.table().is_some_and(|table| of_sources.contains(&table))
    };
    rules
        .into_iter()
        .filter(move |rule| is_for_destinations(rule) || is_for_marked(rule) || is_of_source(rule))
}

fn is_for_destinations(rule: &Rule) -> bool {
    [LEADING, FALLBACK].contains(&rule.priority)
        && rule.suppress_prefix_length.is_none()
        && matches!(rule.mark, FirewallMark::IsNot(_, u32::MAX))
}

fn is_for_marked(rule: &Rule) -> bool {
    rule.priority == ways::LAST && rule.mark == FirewallMark::Is(DIVERTED, DIVERTED)
}

fn refuses(route: &Route) -> bool {
    route.via == Via::Throw || route.via == Via::Unreachable && route.metric == Some(BENEATH)
}
