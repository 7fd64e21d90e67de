//! What a gateway that was killed left behind: rules, and the routes beneath that refuse what it protected.

use std::collections::BTreeSet;

use uxfrm_io::rtnetlink::{self, FirewallMark, Route, RouteChange, Rtnetlink, Rule, Via};

use super::{BENEATH, PRIORITY, destinations::Destinations, forgive_absent, versions};

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
        rules.extend(rtnetlink.rules(version)?.into_iter().filter(is_a_gateways));
    }
    let tables: BTreeSet<_> = rules.iter().map(|rule| rule.table).collect();
    for table in tables.into_iter().filter(|table| *table != own) {
        let routes = rtnetlink.routes(table)?;
        if routes.is_empty() || !routes.iter().all(refuses) {
            continue; // somebody else's
        }
        for rule in rules.iter().filter(|rule| rule.table == table) {
            forgive_absent(rtnetlink.delete_rule(rule))?;
        }
        let routes: Vec<_> = routes.into_iter().map(RouteChange::Delete).collect();
        rtnetlink.change_routes(&routes)?;
        tracing::info!(table, "what an earlier run refused by another table is let go");
    }
    Ok(())
}

fn is_a_gateways(rule: &Rule) -> bool {
    rule.priority == PRIORITY
        && rule.suppress_prefix_length.is_none()
        && matches!(rule.mark, FirewallMark::IsNot(_, u32::MAX))
}

fn refuses(route: &Route) -> bool {
    route.via == Via::Unreachable && route.metric == Some(BENEATH)
}
