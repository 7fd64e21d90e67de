//! What of rules and routes is in use, and nobody's leftover.

use uxfrm_io::rtnetlink::{Route, RoutingRule};

/// Rules and routes of a gateway that still runs. Empty by default.
#[derive(Debug, Default)]
pub(super) struct RunningGateway {
    /// Its rules.
    pub(super) rules: Vec<RoutingRule>,
    /// Its routes, but for those to destinations.
    pub(super) routes: Vec<Route>,
    /// Its table of destinations, in which nothing is left over.
    pub(super) destinations: Option<u32>,
}

impl RunningGateway {
    pub(super) fn has(&self, route: &Route) -> bool {
        let alike =
            |other: &Route| (other.table, other.destination) == (route.table, route.destination);
        // The kernel may tell another metric than it was asked for.
        self.routes.iter().any(|other| alike(other) && other.via == route.via)
    }

    pub(super) fn uses(&self, table: u32) -> bool {
        self.rules.iter().any(|rule| rule.table() == Some(table))
    }
}
