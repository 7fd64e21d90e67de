//! Next hops: for each destination its neighbour, for each neighbour its Ethernet header.
//!
//! A worker caches what the resolver tells it, and requests the rest without waiting; the resolver
//! has the kernel's tables. Known entries stay in use while they are requested again, so route
//! changes delay nobody. Both tables are bounded; a full one is emptied, as only a scan fills it.
//!
//! A neighbour is requested again at its next use if the kernel forgot it, lost it, or was asked
//! for it over a link that was down: at once if it has answered since the last request, else with
//! exponential back-off. So packets wait for neighbours that exist, and one that does not causes no
//! flood of requests.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::mpsc::{Receiver, SyncSender},
};

use uxfrm_engine::Moment;
use uxfrm_io::{poll::Waker, rtnetlink::NeighbourState};
use uxfrm_packet::{
    Version,
    ethernet::{EtherType, EthernetHeader, MacAddr},
};

/// One of the gateway's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortSide {
    /// The protected side: plain packets.
    Protected,
    /// The network between gateways.
    Wire,
}

/// A neighbour on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The port it is reached by.
    pub side: PortSide,
    /// Its address.
    pub address: IpAddr,
}

/// Requests of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHopRequest {
    /// Requests the route to a destination: answered by [`NextHopUpdate::Route`], and by
    /// [`NextHopUpdate::Neighbour`] for its next hop.
    Route(IpAddr),
    /// Reports the use of a neighbour whose address is not confirmed: answered by
    /// [`NextHopUpdate::Neighbour`].
    Neighbour(NextHop),
}

/// Updates for a worker, requested or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHopUpdate {
    /// The route to a destination.
    Route(IpAddr, ResolvedRoute),
    /// The route to a destination in use before this worker started, so that nothing waits for it.
    PreloadedRoute(IpAddr, ResolvedRoute),
    /// State of a neighbour.
    Neighbour(NextHop, NeighbourState),
    /// Any route may have changed.
    RoutesChanged,
    /// A link or an address has changed, and possibly any route: earlier requests may not have left
    /// the host.
    LinksChanged,
}

/// The route to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedRoute {
    /// By one of the ports.
    Via {
        /// The neighbour.
        hop: NextHop,
        /// MTU of the route, in bytes.
        mtu: u16,
        /// The host's source address on that route.
        source: Option<IpAddr>,
    },
    /// The host itself.
    Local,
    /// No route, or one by another device.
    NoRoute,
}

/// Channels to and from the resolver.
#[derive(Debug)]
pub struct ResolverEnds {
    /// Takes questions.
    pub requests: SyncSender<NextHopRequest>,
    /// Wakes the resolver.
    pub waker: Waker,
    /// Updates from the resolver.
    pub updates: Receiver<NextHopUpdate>,
}

/// One worker's table of next hops.
#[derive(Debug)]
pub(crate) struct NextHops {
    guide: ResolverEnds,
    routes: HashMap<IpAddr, Entry>,
    hops: Vec<Hop>,
    hop_index: HashMap<NextHop, usize>,
    macs: [MacAddr; 2],
    /// Generation of routes: older entries are requested again.
    generation: u32,
    /// Generation of links.
    links: u32,
    /// The last entry found: consecutive packets often have the same destination.
    latest: Option<(IpAddr, Entry)>,
    asked: bool,
    /// When a route was last rechecked.
    rechecked: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    state: RouteState,
}

#[derive(Clone, Copy, Debug)]
enum RouteState {
    Pending(Moment),
    Via { hop: usize, mtu: u16, source: Option<IpAddr> },
    Local,
    NoRoute,
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    to: NextHop,
    header: EthernetHeader,
    state: HopState,
    /// When it was last requested.
    asked: Moment,
    /// Requests since its address was last known.
    unanswered: u32,
    /// Generation of links when the kernel began to resolve it.
    links: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HopState {
    Known,
    /// Usable, and its next use is reported to the resolver.
    Stale,
    Resolving(Moment),
    Failed(Moment),
    /// Nobody resolves it: its next use requests it.
    Unknown,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopLookup {
    /// Send it.
    Send { side: PortSide, header: EthernetHeader, mtu: u16 },
    /// Keep it: the answer is pending.
    Pending,
    /// It is for the host.
    Local,
    /// There is no route, or one by another device.
    NoRoute,
    /// The neighbour does not answer.
    Unreachable,
}

/// Most destinations in the table.
const MAX_DESTINATIONS: usize = 1 << 16;

/// Time until an unanswered request is repeated, and until an unreachable neighbour is requested
/// again.
const RETRY_AFTER: u64 = 1_000_000_000;

/// Least time between the first two requests for a neighbour that the kernel forgets in between. It
/// doubles each time, up to [`RETRY_AFTER`].
const MIN_BACKOFF: u64 = 10_000_000;

/// Least time between rechecks of any routes: 100 ms.
const RECHECK_INTERVAL: u64 = 100_000_000;

impl NextHops {
    /// An empty table; `macs` are the addresses of the protected port and of the wire.
    pub(crate) fn new(guide: ResolverEnds, macs: [MacAddr; 2]) -> Self {
        Self {
            guide,
            routes: HashMap::new(),
            hops: Vec::new(),
            hop_index: HashMap::new(),
            macs,
            generation: 0,
            links: 0,
            latest: None,
            asked: false,
            rechecked: Moment(0),
        }
    }

    /// Applies all updates; whether there were any.
    pub(crate) fn apply_updates(&mut self, now: Moment) -> bool {
        let mut changed = false;
        while let Ok(news) = self.guide.updates.try_recv() {
            changed = true;
            self.latest = None;
            match news {
                NextHopUpdate::Route(destination, answer) => {
                    self.set_route(destination, answer, now)
                }
                NextHopUpdate::PreloadedRoute(destination, answer) => {
                    self.insert_pending(destination, now);
                    self.set_route(destination, answer, now);
                }
                NextHopUpdate::Neighbour(hop, standing) => self.set_neighbour(hop, standing, now),
                NextHopUpdate::RoutesChanged => self.generation = self.generation.wrapping_add(1),
                NextHopUpdate::LinksChanged => {
                    self.generation = self.generation.wrapping_add(1);
                    self.links = self.links.wrapping_add(1);
                }
            }
        }
        changed
    }

    /// Next hop of `destination`; requests it if unknown or unconfirmed.
    #[inline]
    pub(crate) fn lookup(&mut self, destination: IpAddr, now: Moment) -> HopLookup {
        if let Some((address, entry)) = self.latest
            && address == destination
            && let RouteState::Via { hop, mtu, .. } = entry.state
            && let Some(Hop { state: HopState::Known, header, to, .. }) = self.hops.get(hop)
        {
            return HopLookup::Send { side: to.side, header: *header, mtu };
        }
        self.lookup_slow(destination, now)
    }

    /// Requests a route again, as its MTU may have grown.
    #[cold]
    pub(crate) fn recheck(&mut self, destination: IpAddr, now: Moment) {
        if now.0.saturating_sub(self.rechecked.0) >= RECHECK_INTERVAL {
            self.rechecked = now;
            self.request(NextHopRequest::Route(destination));
        }
    }

    /// The host's address for an answer to `sender` about a packet to `destination`: preferably the
    /// protected side's, since policies name those networks. Requests unknown routes.
    pub(crate) fn source_address(
        &mut self,
        sender: IpAddr,
        destination: IpAddr,
        now: Moment,
    ) -> Option<IpAddr> {
        let mut found = None;
        for end in [sender, destination] {
            let side = match self.lookup_slow(end, now) {
                HopLookup::Send { side, .. } => Some(side),
                HopLookup::Pending
                | HopLookup::Local
                | HopLookup::NoRoute
                | HopLookup::Unreachable => None,
            };
            let source = match self.routes.get(&end).map(|entry| entry.state) {
                Some(RouteState::Via { source, .. }) => source,
                Some(RouteState::Pending(_) | RouteState::Local | RouteState::NoRoute) | None => {
                    None
                }
            };
            if side == Some(PortSide::Protected) && source.is_some() {
                return source;
            }
            found = found.or(source);
        }
        found
    }

    /// Wakes the resolver if there are new requests.
    #[inline]
    pub(crate) fn wake_resolver(&mut self) {
        if std::mem::take(&mut self.asked) {
            self.guide.waker.wake();
        }
    }

    #[inline(never)]
    fn lookup_slow(&mut self, destination: IpAddr, now: Moment) -> HopLookup {
        let Some(entry) = self.routes.get_mut(&destination) else {
            self.insert_pending(destination, now);
            self.request(NextHopRequest::Route(destination));
            return HopLookup::Pending;
        };
        let is_old = entry.generation != self.generation;
        let is_late =
            matches!(entry.state, RouteState::Pending(since) if now.0 - since.0 > RETRY_AFTER);
        // Packets without a route wait for the answer, as nothing is lost by that.
        if is_late || (is_old && matches!(entry.state, RouteState::NoRoute)) {
            entry.state = RouteState::Pending(now);
        }
        let entry = *entry;
        if (is_old || is_late)
            && self.request(NextHopRequest::Route(destination))
            && let Some(asked) = self.routes.get_mut(&destination)
        {
            asked.generation = self.generation;
        }
        match entry.state {
            RouteState::Pending(_) => HopLookup::Pending,
            RouteState::Local => HopLookup::Local,
            RouteState::NoRoute => HopLookup::NoRoute,
            RouteState::Via { hop, mtu, .. } => {
                self.latest = Some((destination, entry));
                self.via(hop, mtu, now)
            }
        }
    }

    fn via(&mut self, index: usize, mtu: u16, now: Moment) -> HopLookup {
        // Indices belong to this table, which is emptied only together with the routes.
        let Some(hop) = self.hops.get_mut(index) else { return HopLookup::NoRoute };
        let to = hop.to;
        let ready = HopLookup::Send { side: to.side, header: hop.header, mtu };
        match hop.state {
            HopState::Known => ready,
            HopState::Stale => {
                hop.state = HopState::Known;
                self.request(NextHopRequest::Neighbour(to));
                ready
            }
            HopState::Resolving(since) if now.0 - since.0 <= RETRY_AFTER => HopLookup::Pending,
            HopState::Failed(since)
                if now.0 - since.0 <= RETRY_AFTER && hop.is_unreachable(self.links) =>
            {
                HopLookup::Unreachable
            }
            HopState::Failed(_) | HopState::Unknown if now.0 - hop.asked.0 < hop.backoff() => {
                HopLookup::Pending
            }
            HopState::Resolving(_) | HopState::Failed(_) | HopState::Unknown => {
                hop.start_resolving(now, self.links);
                self.request(NextHopRequest::Neighbour(to));
                HopLookup::Pending
            }
        }
    }

    /// Inserts an entry whose answer is pending.
    fn insert_pending(&mut self, destination: IpAddr, now: Moment) {
        self.evict_all_if_full();
        let entry = Entry { generation: self.generation, state: RouteState::Pending(now) };
        self.routes.insert(destination, entry);
    }

    fn set_route(&mut self, destination: IpAddr, answer: ResolvedRoute, now: Moment) {
        let state = match answer {
            ResolvedRoute::Local => RouteState::Local,
            ResolvedRoute::NoRoute => RouteState::NoRoute,
            ResolvedRoute::Via { hop, mtu, source } => {
                RouteState::Via { hop: self.index_of(hop, now), mtu, source }
            }
        };
        // The entry may have been evicted meanwhile.
        if let Some(entry) = self.routes.get_mut(&destination) {
            entry.state = state;
        }
    }

    fn set_neighbour(&mut self, hop: NextHop, standing: NeighbourState, now: Moment) {
        let Some(index) = self.hop_index.get(&hop) else { return };
        let hop = &mut self.hops[*index];
        let (mac, state) = match standing {
            NeighbourState::Known(mac) => (Some(mac), HopState::Known),
            NeighbourState::Stale(mac) => (Some(mac), HopState::Stale),
            NeighbourState::Resolving => (None, HopState::Resolving(now)),
            NeighbourState::Failed => (None, HopState::Failed(now)),
            NeighbourState::Removed => (None, HopState::Unknown),
        };
        if let Some(mac) = mac {
            hop.header.destination = mac;
            hop.unanswered = 0;
        }
        hop.state = state;
    }

    /// Index of a next hop. A new one is unresolved, and requested together with its route.
    fn index_of(&mut self, to: NextHop, now: Moment) -> usize {
        let Self { hops, hop_index, macs, links, .. } = self;
        *hop_index.entry(to).or_insert_with(|| {
            let version = if to.address.is_ipv4() { Version::V4 } else { Version::V6 };
            let source = match to.side {
                PortSide::Protected => macs[0],
                PortSide::Wire => macs[1],
            };
            let header = EthernetHeader {
                destination: MacAddr([0; 6]),
                source,
                ether_type: ether_type(version),
            };
            let state = HopState::Resolving(now);
            hops.push(Hop { to, header, state, asked: now, unanswered: 1, links: *links });
            hops.len() - 1
        })
    }

    fn evict_all_if_full(&mut self) {
        if self.routes.len() >= MAX_DESTINATIONS {
            self.routes.clear();
            self.hops.clear();
            self.hop_index.clear();
            self.latest = None;
        }
    }

    /// Sends a request; `false` if the channel is full. A lost request is repeated, at the latest
    /// after [`RETRY_AFTER`].
    fn request(&mut self, question: NextHopRequest) -> bool {
        self.asked = true;
        self.guide.requests.try_send(question).is_ok()
    }
}

impl Hop {
    /// Records a request. The kernel starts anew only if it is not already resolving.
    const fn start_resolving(&mut self, now: Moment, links: u32) {
        if !matches!(self.state, HopState::Resolving(_)) {
            self.links = links;
        }
        self.state = HopState::Resolving(now);
        self.asked = now;
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Whether it was requested over the present links and did not answer. A neighbour that was
    /// known may have moved, and nobody has looked for it there.
    const fn is_unreachable(&self, links: u32) -> bool {
        self.unanswered > 0 && self.links == links
    }

    /// Least time between the last request and the next.
    fn backoff(&self) -> u64 {
        match self.unanswered {
            0 => 0,
            count => (MIN_BACKOFF << (count - 1).min(16)).min(RETRY_AFTER),
        }
    }
}

const fn ether_type(version: Version) -> EtherType {
    match version {
        Version::V4 => EtherType::IPV4,
        Version::V6 => EtherType::IPV6,
    }
}

#[cfg(test)]
mod tests;
