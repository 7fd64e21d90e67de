//! Who tells the workers their ways: one thread with the kernel's routes and neighbours.
//!
//! A worker asks for a destination once; the kernel's own lookup answers, with the mark of uxfrm's
//! sockets, so by the routes that what uxfrm sends takes in host mode as well. Neighbours are found
//! by the kernel, as it is told that they are used. Changes of routes, rules, links and addresses
//! make workers ask again; changes of neighbours are told at once.

mod requested;

use std::{
    io,
    net::IpAddr,
    os::fd::AsFd as _,
    sync::{
        Arc,
        atomic::AtomicUsize,
        mpsc::{self, Receiver, Sender},
    },
    time::Duration,
};

use uxfrm_engine::Moment;
use uxfrm_io::{
    Rtnetlink, clock,
    poll::{Poller, Waker},
    rtnetlink::{self, Neighbour, NeighbourState, RouteMonitor, RoutingChange},
};
use uxfrm_packet::ethernet::MacAddr;
use uxfrm_runtime::{
    Error, EventLoop, NextHop, NextHopRequest, NextHopUpdate, PortSide, ResolvedRoute, ResolverEnds,
};

pub(crate) use self::requested::RequestedDestinations;
use crate::ports::napi_batching::{self, NapiBatching};

const NOTICES: u8 = 0;

/// The longest wait.
const IDLE: Duration = Duration::from_millis(500);

/// Questions of one worker that are answered before the next one's.
const AT_ONCE: usize = 64;

/// Questions of one worker that may wait. What comes on top is asked again.
const QUESTIONS: usize = 1024;

/// How long workers go on with what they know of the kernel's routes without asking again: of some
/// changes, as of a path's MTU, it does not tell.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// The devices that next hops lead by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    /// Towards those who are protected, if that has a device of its own.
    pub(crate) protected: Option<u32>,
    /// Towards other gateways, and its address when it was opened.
    pub(crate) wire: (u32, MacAddr),
}

/// The resolver's ends of its channel with one worker.
#[derive(Debug)]
pub(crate) struct ResolverChannel {
    requested: Receiver<NextHopRequest>,
    told: Sender<NextHopUpdate>,
}

/// A worker that the resolver answers.
#[derive(Debug)]
pub(crate) struct ResolvedWorker {
    pub(crate) talk: ResolverChannel,
    pub(crate) waker: Waker,
}

/// The state of the resolver thread.
#[derive(Debug)]
pub(crate) struct NextHopResolver {
    poller: Poller,
    surroundings: RouteMonitor,
    rtnetlink: Rtnetlink,
    mark: u32,
    links: Links,
    /// Whether the wire's device is still what it was, so that frames may leave by it.
    is_wire_usable: bool,
    workers: Vec<ResolvedWorker>,
    /// Devices that gather frames, for as long as there are workers.
    gatherers: Vec<NapiBatching>,
    /// When workers were told to ask again.
    told: Moment,
    requested: RequestedDestinations,
}

impl NextHopResolver {
    /// One without workers yet.
    pub(crate) fn open(mark: u32, links: Links) -> anyhow::Result<Self> {
        let (surroundings, poller) = (RouteMonitor::open()?, Poller::new()?);
        poller.add(surroundings.as_fd(), NOTICES)?;
        Ok(Self {
            poller,
            surroundings,
            rtnetlink: Rtnetlink::open()?,
            mark,
            links,
            is_wire_usable: true,
            workers: Vec::new(),
            gatherers: Vec::new(),
            told: now(),
            requested: RequestedDestinations::default(),
        })
    }

    /// The destinations that workers ask for.
    pub(crate) fn requested(&self) -> RequestedDestinations {
        self.requested.clone()
    }

    /// Tells all workers the ways to destinations that were in use before they were.
    pub(crate) fn expect(&mut self, destinations: &[IpAddr]) {
        for destination in destinations {
            let answer = self.way(*destination);
            self.answer_all(NextHopUpdate::PreloadedRoute(*destination, answer));
            if let ResolvedRoute::Via { hop, .. } = answer {
                let standing = self.standing(hop);
                self.answer_all(NextHopUpdate::Neighbour(hop, standing));
            }
        }
    }

    /// Both ends of the talk with a worker.
    pub(crate) fn talk(&self) -> (ResolverEnds, ResolverChannel) {
        let (questions, requested) = mpsc::sync_channel(QUESTIONS);
        let (told, news) = mpsc::channel();
        (
            ResolverEnds { requests: questions, waker: self.poller.waker(), updates: news },
            ResolverChannel { requested, told },
        )
    }

    /// Answers one more worker.
    pub(crate) fn add(&mut self, lane: ResolvedWorker) {
        self.workers.push(lane);
    }

    /// Looks after devices that gather frames.
    pub(crate) fn keep(&mut self, gatherers: impl IntoIterator<Item = NapiBatching>) {
        self.gatherers.extend(gatherers);
    }

    /// Takes in what the kernel says has changed.
    fn take_notices(&mut self) -> Result<(), Error> {
        let mut changed = None;
        while let Some(change) = self.surroundings.next_change() {
            match change {
                RoutingChange::Neighbour(neighbour) => self.tell_of(&neighbour),
                RoutingChange::Routes => changed = changed.or(Some(NextHopUpdate::RoutesChanged)),
                RoutingChange::Links | RoutingChange::Everything => {
                    changed = Some(NextHopUpdate::LinksChanged)
                }
            }
        }
        if changed.is_some() {
            self.refresh_links()?;
        }
        let now = now();
        if changed.is_some() || now.since(self.told) >= KNOWN_FOR {
            self.told = now;
            self.answer_all(changed.unwrap_or(NextHopUpdate::RoutesChanged));
        }
        Ok(())
    }

    /// Inline mode ends with its devices; host mode goes on by the kernel, also where the device
    /// has another address than workers send from.
    fn refresh_links(&mut self) -> Result<(), Error> {
        let (wire, address) = self.links.wire;
        let Some(protected) = self.links.protected else {
            let link = self.rtnetlink.link_of_index(wire);
            let is_usable = link.is_ok_and(|link| link.mac == Some(address));
            if std::mem::replace(&mut self.is_wire_usable, is_usable) && !is_usable {
                tracing::warn!(
                    "the device of `af_xdp` is gone or has another address: ESP passes by the kernel"
                );
            }
            return Ok(());
        };
        for index in [protected, wire] {
            self.rtnetlink
                .link_of_index(index)
                .map_err(|error| Error::Link(io::Error::new(io::ErrorKind::NotFound, error)))?;
        }
        Ok(())
    }

    fn tell_of(&self, neighbour: &Neighbour) {
        if let Some(side) = self.side(neighbour.link) {
            let hop = NextHop { side, address: neighbour.address };
            self.answer_all(NextHopUpdate::Neighbour(hop, neighbour.state));
        }
    }

    fn answer_all(&self, news: NextHopUpdate) {
        for lane in &self.workers {
            // A worker that ended needs no news.
            let _ended = lane.talk.told.send(news);
            lane.waker.wake();
        }
    }

    /// Answers some questions of each worker; whether there may be more.
    fn answer(&mut self) -> bool {
        let mut is_more = false;
        let workers = std::mem::take(&mut self.workers);
        for lane in &workers {
            let mut answered = 0;
            while answered < AT_ONCE
                && let Ok(question) = lane.talk.requested.try_recv()
            {
                answered += 1;
                self.answer_one(question, &lane.talk.told);
            }
            if answered > 0 {
                lane.waker.wake();
            }
            is_more |= answered == AT_ONCE;
        }
        self.workers = workers;
        is_more
    }

    fn answer_one(&mut self, question: NextHopRequest, told: &Sender<NextHopUpdate>) {
        let hop = match question {
            NextHopRequest::Neighbour(hop) => hop,
            NextHopRequest::Route(destination) => {
                self.requested.note(destination, now());
                let answer = self.way(destination);
                let _ended = told.send(NextHopUpdate::Route(destination, answer));
                match answer {
                    ResolvedRoute::Via { hop, .. } => hop,
                    ResolvedRoute::Local | ResolvedRoute::NoRoute => return,
                }
            }
        };
        let standing = self.standing(hop);
        let _ended = told.send(NextHopUpdate::Neighbour(hop, standing));
    }

    fn standing(&mut self, hop: NextHop) -> NeighbourState {
        self.neighbour(hop).unwrap_or_else(|error| {
            tracing::debug!(%error, "a neighbour can't be asked for");
            NeighbourState::Failed
        })
    }

    fn way(&mut self, destination: IpAddr) -> ResolvedRoute {
        let Ok(chosen) = self.rtnetlink.route_to(destination, self.mark) else {
            return ResolvedRoute::NoRoute;
        };
        if chosen.is_local {
            return ResolvedRoute::Local;
        }
        match self.side(chosen.link).filter(|_| !chosen.needs_kernel) {
            Some(side) => ResolvedRoute::Via {
                hop: NextHop { side, address: chosen.gateway.unwrap_or(destination) },
                mtu: u16::try_from(chosen.mtu).unwrap_or(u16::MAX),
                source: chosen.source,
            },
            None => ResolvedRoute::NoRoute,
        }
    }

    /// What the kernel knows of a neighbour, which is being used now.
    fn neighbour(&mut self, hop: NextHop) -> Result<NeighbourState, rtnetlink::Error> {
        let link = match hop.side {
            PortSide::Protected => self.links.protected.unwrap_or(self.links.wire.0),
            PortSide::Wire => self.links.wire.0,
        };
        let known = self.rtnetlink.neighbour(link, hop.address)?;
        match known.map_or(NeighbourState::Removed, |neighbour| neighbour.state) {
            NeighbourState::Known(mac) => Ok(NeighbourState::Known(mac)),
            NeighbourState::Stale(mac) => {
                self.rtnetlink.use_neighbour(link, hop.address)?;
                Ok(NeighbourState::Known(mac))
            }
            NeighbourState::Resolving | NeighbourState::Failed | NeighbourState::Removed => {
                self.rtnetlink.use_neighbour(link, hop.address)?;
                Ok(NeighbourState::Resolving)
            }
        }
    }

    fn side(&self, link: u32) -> Option<PortSide> {
        match link {
            link if Some(link) == self.links.protected => Some(PortSide::Protected),
            link if link == self.links.wire.0 && self.is_wire_usable => Some(PortSide::Wire),
            _other => None,
        }
    }
}

fn now() -> Moment {
    Moment(clock::boot_nanoseconds())
}

impl EventLoop for NextHopResolver {
    fn turn(&mut self) -> Result<(), Error> {
        let patience = if self.gatherers.is_empty() { IDLE } else { napi_batching::EVERY };
        self.poller.wait(Some(patience)).map_err(Error::Poll)?;
        self.gatherers.iter_mut().for_each(|gatherer| gatherer.look(now()));
        loop {
            self.take_notices()?;
            if !self.answer() {
                return Ok(());
            }
        }
    }

    fn waker(&self) -> Waker {
        self.poller.waker()
    }

    fn waiting(&self) -> Arc<AtomicUsize> {
        Arc::default()
    }

    /// Whoever goes on is to find devices as they were.
    fn save_state(&mut self) {
        self.gatherers.iter_mut().for_each(NapiBatching::rest);
    }
}
