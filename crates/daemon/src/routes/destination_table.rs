//! The table of destinations: which routes policies want there, and how the kernel comes to have
//! them.

use std::net::IpAddr;

use uxfrm_engine::PolicyEntry;
use uxfrm_io::rtnetlink::{self, Route, RouteChange, RoutePrefix, Via};

use super::{
    BENEATH, HostRoutes,
    addresses::prefix,
    destinations::{Destination, Steps},
    lookup_rule::DivertMode,
    route_demand,
};

impl HostRoutes {
    /// Makes the routes that [`HostRoutes::change`] has left for later.
    ///
    /// # Errors
    /// As [`HostRoutes::follow`].
    pub(crate) fn finish_deferred(&mut self) -> Result<(), rtnetlink::Error> {
        if self.later.is_empty() {
            return Ok(());
        }
        let mut later = std::mem::take(&mut self.later);
        let result = self.change_routes(&later);
        later.clear();
        self.later = later; // for its room
        result
    }

    /// The route that a policy wants, of those that the kernel can have: where it does without IPv6
    /// there is nothing to bring to the TUN.
    fn wish(&self, entry: &PolicyEntry) -> Option<(Destination, Option<IpAddr>)> {
        let (destination, source) = route_demand::wish(entry, &self.sources)?;
        (destination.0.is_ipv4() || self.has_ipv6).then_some((destination, source))
    }

    /// Counts a policy's wish for a route, if it has one.
    pub(super) fn count_in(&mut self, entry: &PolicyEntry) {
        if let Some((destination, source)) = self.wish(entry) {
            self.peers.meet_all(&mut self.rtnetlink, entry.templates());
            if entry.templates().any(|template| template.destination.is_unspecified()) {
                self.peers.mark_unverified(destination.0);
            }
            self.destinations.count_in(destination, source);
            self.groups.count_in(entry);
        }
    }

    pub(super) fn count_out(&mut self, entry: &PolicyEntry) {
        if let Some((destination, source)) = self.wish(entry) {
            self.destinations.count_out(destination, source);
            self.groups.count_out(entry);
        }
    }

    /// Refuses what new policies block; the routes to the TUN come later. Where packets are marked
    /// the mark refuses them, and what has no other route than these leads nowhere without them.
    pub(super) fn block(&mut self, steps: Steps) -> Result<(), rtnetlink::Error> {
        let (mut later, mut beneath) = (Vec::new(), Vec::new());
        for (destination, source) in steps.put {
            let [above, below] = self.routes(destination, source).map(RouteChange::Put);
            later.push(above);
            match self.leading.by {
                DivertMode::Marks => later.push(below),
                DivertMode::Destinations => beneath.push(below),
            }
        }
        self.later = later;
        self.change_routes(&beneath)
    }

    /// Makes the kernel's routes those that are wanted. What had one route may have others now:
    /// they are there before it goes, and nowhere is the one beneath the only one, as it would
    /// refuse packets for which there is a way.
    pub(super) fn install(&mut self, steps: Steps) -> Result<(), rtnetlink::Error> {
        let Steps { put, delete } = steps;
        let routes = put.into_iter().flat_map(|(at, source)| self.routes(at, source));
        let put: Vec<_> = routes.map(RouteChange::Put).collect();
        let result = self.change_routes(&put);
        if result.is_err() {
            delete
                .into_iter()
                .for_each(|destination| self.destinations.mark_unverified(destination));
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
                self.destinations.mark_unverified(destination);
            }
        }
        result
    }

    /// The route to the TUN and the one beneath it.
    fn routes(&self, destination: Destination, source: Option<IpAddr>) -> [Route; 2] {
        let destination = prefix(destination);
        let (table, tun) = (self.leading.table, Via::Link(self.tun));
        let to_tun = Route { table, source, metric: Some(1), ..Route::new(destination, tun) };
        [to_tun, beneath(table, destination)]
    }
}

/// What refuses packets to a destination where nothing else leads there.
pub(super) fn beneath(table: u32, destination: RoutePrefix) -> Route {
    Route { table, metric: Some(BENEATH), ..Route::new(destination, Via::Unreachable) }
}
