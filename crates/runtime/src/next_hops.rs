//! Where packets go next: for each destination its next hop, for each next hop its Ethernet header.
//!
//! A lane keeps what it was told and asks, without waiting, for what it does not know: whoever answers has the kernel's tables. What it
//! knows it goes on using while it asks again, so news of routes hold nobody up. Both tables are bounded; a full one is forgotten as a
//! whole, as only a scan fills it.
//!
//! A neighbour that the kernel has forgotten, or no longer finds where it was, or that was asked for by a link that was down perhaps, is asked for at its
//! next use: at once if it has answered since it was last asked for, else later each time. So packets wait for one that is there, and one that
//! is not is no flood of questions.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::mpsc::{Receiver, SyncSender},
};

use uxfrm_engine::Moment;
use uxfrm_io::{poll::Waker, rtnetlink::Standing};
use uxfrm_packet::{
    Version,
    ethernet::{EtherType, EthernetHeader, MacAddr},
};

/// One of the gateway's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Towards those who are protected: plain packets.
    Protected,
    /// Towards the network between gateways.
    Wire,
}

/// A neighbour on one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The port it is reached by.
    pub side: Side,
    /// Its address.
    pub address: IpAddr,
}

/// What a lane asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Which way leads to a destination: a [`News::Way`] is the answer, and [`News::Neighbour`] about its next hop.
    Way(IpAddr),
    /// It sends to a neighbour whose address is not known for sure: [`News::Neighbour`].
    Use(NextHop),
}

/// What a lane is told, asked or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Which way leads to a destination.
    Way(IpAddr, Answer),
    /// The same of a destination that was in use before this lane was, so that nothing has to wait for the answer.
    Expected(IpAddr, Answer),
    /// What is known of a neighbour.
    Neighbour(NextHop, Standing),
    /// Any way may have changed.
    Changed,
    /// A link or an address has changed, and any way with it: who did not answer before may not have been reached.
    Links,
}

/// Which way leads to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By one of the ports.
    By {
        /// To whom.
        hop: NextHop,
        /// Bytes of the largest IP packet along that way.
        mtu: u16,
        /// The host's address for packets of its own that way.
        source: Option<IpAddr>,
    },
    /// To the host itself.
    Local,
    /// None, or one by another device.
    Nowhere,
}

/// Both ends of the talk with whoever knows the kernel's tables.
#[derive(Debug)]
pub struct Guide {
    /// Takes questions.
    pub questions: SyncSender<Question>,
    /// Wakes who answers them.
    pub waker: Waker,
    /// Brings news.
    pub news: Receiver<News>,
}

/// What a lane knows.
#[derive(Debug)]
pub(crate) struct NextHops {
    guide: Guide,
    routes: HashMap<IpAddr, Entry>,
    hops: Vec<Hop>,
    hop_index: HashMap<NextHop, usize>,
    macs: [MacAddr; 2],
    /// Of the routes: what was told before it is asked for again.
    generation: u32,
    /// Of the links.
    links: u32,
    /// The latest entry that was found: neighbours in a batch often go the same way.
    latest: Option<(IpAddr, Entry)>,
    asked: bool,
    /// When a way was doubted.
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
    /// When it was asked for.
    asked: Moment,
    /// How often it was asked for since its address was known.
    unanswered: u32,
    /// What the links were when the kernel began to seek it.
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

/// What a lane can do with a packet to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HopLookup {
    /// Send it.
    Send { side: Side, header: EthernetHeader, mtu: u16 },
    /// Keep it: the answer is on its way.
    Pending,
    /// It is for the host.
    Local,
    /// There is no route, or one by another device.
    NoRoute,
    /// The neighbour does not answer.
    Unreachable,
}

/// Destinations that are known at the most.
const MAX_DESTINATIONS: usize = 1 << 16;

/// How long a question is open before it is asked again, and a neighbour that does not answer is left in peace.
const RETRY_AFTER: u64 = 1_000_000_000;

/// How long the second question for a neighbour comes after the first at the least, if the kernel forgets it in between. Each later one takes twice as long,
/// up to [`RETRY_AFTER`].
const MIN_BACKOFF: u64 = 10_000_000;

/// How often a way may be doubted, whichever it is: 100 ms.
const RECHECK_INTERVAL: u64 = 100_000_000;

impl NextHops {
    /// Nothing is known yet; `macs` are the addresses of the protected port and of the wire's.
    pub(crate) fn new(guide: Guide, macs: [MacAddr; 2]) -> Self {
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

    /// Takes in all news; whether there were any.
    pub(crate) fn apply_updates(&mut self, now: Moment) -> bool {
        let mut changed = false;
        while let Ok(news) = self.guide.news.try_recv() {
            changed = true;
            self.latest = None;
            match news {
                News::Way(destination, answer) => self.set_route(destination, answer, now),
                News::Expected(destination, answer) => {
                    self.insert_pending(destination, now);
                    self.set_route(destination, answer, now);
                }
                News::Neighbour(hop, standing) => self.set_neighbour(hop, standing, now),
                News::Changed => self.generation = self.generation.wrapping_add(1),
                News::Links => {
                    self.generation = self.generation.wrapping_add(1);
                    self.links = self.links.wrapping_add(1);
                }
            }
        }
        changed
    }

    /// What to do with a packet to `destination`; asks where that is not known, or not for sure.
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

    /// Asks again what a way takes, as somebody thinks that it is more.
    #[cold]
    pub(crate) fn recheck(&mut self, destination: IpAddr, now: Moment) {
        if now.0.saturating_sub(self.rechecked.0) >= RECHECK_INTERVAL {
            self.rechecked = now;
            self.request(Question::Way(destination));
        }
    }

    /// The host's address for an answer to `sender` about a packet to `destination`: that of the protected side, as far as it is known, since
    /// policies name the networks there. What is not known is asked for.
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
            if side == Some(Side::Protected) && source.is_some() {
                return source;
            }
            found = found.or(source);
        }
        found
    }

    /// Wakes who answers, if anything was asked since the last time.
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
            self.request(Question::Way(destination));
            return HopLookup::Pending;
        };
        let is_old = entry.generation != self.generation;
        let is_late =
            matches!(entry.state, RouteState::Pending(since) if now.0 - since.0 > RETRY_AFTER);
        // What led nowhere is waited for, as nothing is lost by that.
        if is_late || (is_old && matches!(entry.state, RouteState::NoRoute)) {
            entry.state = RouteState::Pending(now);
        }
        let entry = *entry;
        if (is_old || is_late)
            && self.request(Question::Way(destination))
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
        // Places are of this table, which is only emptied together with the ways.
        let Some(hop) = self.hops.get_mut(index) else { return HopLookup::NoRoute };
        let to = hop.to;
        let ready = HopLookup::Send { side: to.side, header: hop.header, mtu };
        match hop.state {
            HopState::Known => ready,
            HopState::Stale => {
                hop.state = HopState::Known;
                self.request(Question::Use(to));
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
                self.request(Question::Use(to));
                HopLookup::Pending
            }
        }
    }

    /// An answer about it is to come.
    fn insert_pending(&mut self, destination: IpAddr, now: Moment) {
        self.evict_all_if_full();
        let entry = Entry { generation: self.generation, state: RouteState::Pending(now) };
        self.routes.insert(destination, entry);
    }

    fn set_route(&mut self, destination: IpAddr, answer: Answer, now: Moment) {
        let state = match answer {
            Answer::Local => RouteState::Local,
            Answer::Nowhere => RouteState::NoRoute,
            Answer::By { hop, mtu, source } => {
                RouteState::Via { hop: self.index_of(hop, now), mtu, source }
            }
        };
        // Nobody waits for what was forgotten meanwhile.
        if let Some(entry) = self.routes.get_mut(&destination) {
            entry.state = state;
        }
    }

    fn set_neighbour(&mut self, hop: NextHop, standing: Standing, now: Moment) {
        let Some(index) = self.hop_index.get(&hop) else { return };
        let hop = &mut self.hops[*index];
        let (mac, state) = match standing {
            Standing::Known(mac) => (Some(mac), HopState::Known),
            Standing::Stale(mac) => (Some(mac), HopState::Stale),
            Standing::Sought => (None, HopState::Resolving(now)),
            Standing::Gone => (None, HopState::Failed(now)),
            Standing::Forgotten => (None, HopState::Unknown),
        };
        if let Some(mac) = mac {
            hop.header.destination = mac;
            hop.unanswered = 0;
        }
        hop.state = state;
    }

    /// The place of a next hop, a new one if need be: not known yet, and asked for together with the way.
    fn index_of(&mut self, to: NextHop, now: Moment) -> usize {
        let Self { hops, hop_index, macs, links, .. } = self;
        *hop_index.entry(to).or_insert_with(|| {
            let version = if to.address.is_ipv4() { Version::V4 } else { Version::V6 };
            let source = match to.side {
                Side::Protected => macs[0],
                Side::Wire => macs[1],
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

    /// Whether there was room for the question: without, it is lost, and to be asked again, at the latest when its patience is over.
    fn request(&mut self, question: Question) -> bool {
        self.asked = true;
        self.guide.questions.try_send(question).is_ok()
    }
}

impl Hop {
    /// It is asked for now. The kernel begins anew only where it does not seek it already.
    const fn start_resolving(&mut self, now: Moment, links: u32) {
        if !matches!(self.state, HopState::Resolving(_)) {
            self.links = links;
        }
        self.state = HopState::Resolving(now);
        self.asked = now;
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Whether it was asked for by the links of now, and did not answer. One that was there until now may be elsewhere, where nobody has sought it yet.
    const fn is_unreachable(&self, links: u32) -> bool {
        self.unanswered > 0 && self.links == links
    }

    /// How long after the latest question for it the next one may come.
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
