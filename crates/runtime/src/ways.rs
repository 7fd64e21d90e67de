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
pub(crate) struct Ways {
    guide: Guide,
    ways: HashMap<IpAddr, Entry>,
    hops: Vec<Hop>,
    places: HashMap<NextHop, usize>,
    macs: [MacAddr; 2],
    /// Of the routes: what was told before it is asked for again.
    generation: u32,
    /// Of the links.
    links: u32,
    /// The latest entry that was found: neighbours in a batch often go the same way.
    latest: Option<(IpAddr, Entry)>,
    asked: bool,
    /// When a way was doubted.
    doubted: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    generation: u32,
    known: Known,
}

#[derive(Clone, Copy, Debug)]
enum Known {
    Asked(Moment),
    By { hop: usize, mtu: u16, source: Option<IpAddr> },
    Local,
    Nowhere,
}

#[derive(Clone, Copy, Debug)]
struct Hop {
    to: NextHop,
    header: EthernetHeader,
    standing: HopStanding,
    /// When it was asked for.
    asked: Moment,
    /// How often it was asked for since its address was known.
    unanswered: u32,
    /// What the links were when the kernel began to seek it.
    links: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HopStanding {
    Known,
    /// Known, and to be told of at its next use.
    Stale,
    Sought(Moment),
    Gone(Moment),
    /// Nobody seeks it: to be asked for at its next use.
    Forgotten,
}

/// What a lane can do with a packet to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Send it.
    By { side: Side, header: EthernetHeader, mtu: u16 },
    /// Keep it: the answer is on its way.
    Asked,
    /// It is for the host.
    Local,
    /// No route.
    Nowhere,
    /// The neighbour does not answer.
    Gone,
}

/// Destinations that are known at the most.
const MOST: usize = 1 << 16;

/// How long a question is open before it is asked again, and a neighbour that does not answer is left in peace.
const PATIENCE: u64 = 1_000_000_000;

/// How long the second question for a neighbour comes after the first at the least, if the kernel forgets it in between. Each later one takes twice as long,
/// up to [`PATIENCE`].
const PAUSE: u64 = 10_000_000;

/// How often a way may be doubted, whichever it is: 100 ms.
const DOUBT: u64 = 100_000_000;

impl Ways {
    /// Nothing is known yet; `macs` are the addresses of the protected port and of the wire's.
    pub(crate) fn new(guide: Guide, macs: [MacAddr; 2]) -> Self {
        Self {
            guide,
            ways: HashMap::new(),
            hops: Vec::new(),
            places: HashMap::new(),
            macs,
            generation: 0,
            links: 0,
            latest: None,
            asked: false,
            doubted: Moment(0),
        }
    }

    /// Takes in all news; whether there were any.
    pub(crate) fn hear(&mut self, now: Moment) -> bool {
        let mut heard = false;
        while let Ok(news) = self.guide.news.try_recv() {
            heard = true;
            self.latest = None;
            match news {
                News::Way(destination, answer) => self.learn(destination, answer, now),
                News::Expected(destination, answer) => {
                    self.expect(destination, now);
                    self.learn(destination, answer, now);
                }
                News::Neighbour(hop, standing) => self.meet(hop, standing, now),
                News::Changed => self.generation = self.generation.wrapping_add(1),
                News::Links => {
                    self.generation = self.generation.wrapping_add(1);
                    self.links = self.links.wrapping_add(1);
                }
            }
        }
        heard
    }

    /// What to do with a packet to `destination`; asks where that is not known, or not for sure.
    #[inline]
    pub(crate) fn to(&mut self, destination: IpAddr, now: Moment) -> Way {
        if let Some((address, entry)) = self.latest
            && address == destination
            && let Known::By { hop, mtu, .. } = entry.known
            && let Some(Hop { standing: HopStanding::Known, header, to, .. }) = self.hops.get(hop)
        {
            return Way::By { side: to.side, header: *header, mtu };
        }
        self.find(destination, now)
    }

    /// Asks again what a way takes, as somebody thinks that it is more.
    #[cold]
    pub(crate) fn doubt(&mut self, destination: IpAddr, now: Moment) {
        if now.0.saturating_sub(self.doubted.0) >= DOUBT {
            self.doubted = now;
            self.ask(Question::Way(destination));
        }
    }

    /// The host's address for an answer to `sender` about a packet to `destination`: that of the protected side, as far as it is known, since
    /// policies name the networks there. What is not known is asked for.
    pub(crate) fn source(
        &mut self,
        sender: IpAddr,
        destination: IpAddr,
        now: Moment,
    ) -> Option<IpAddr> {
        let mut found = None;
        for end in [sender, destination] {
            let side = match self.find(end, now) {
                Way::By { side, .. } => Some(side),
                Way::Asked | Way::Local | Way::Nowhere | Way::Gone => None,
            };
            let source = match self.ways.get(&end).map(|entry| entry.known) {
                Some(Known::By { source, .. }) => source,
                Some(Known::Asked(_) | Known::Local | Known::Nowhere) | None => None,
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
    pub(crate) fn send(&mut self) {
        if std::mem::take(&mut self.asked) {
            self.guide.waker.wake();
        }
    }

    #[inline(never)]
    fn find(&mut self, destination: IpAddr, now: Moment) -> Way {
        let Some(entry) = self.ways.get_mut(&destination) else {
            self.expect(destination, now);
            self.ask(Question::Way(destination));
            return Way::Asked;
        };
        let is_old = entry.generation != self.generation;
        let is_late = matches!(entry.known, Known::Asked(since) if now.0 - since.0 > PATIENCE);
        // What led nowhere is waited for, as nothing is lost by that.
        if is_late || (is_old && matches!(entry.known, Known::Nowhere)) {
            entry.known = Known::Asked(now);
        }
        let entry = *entry;
        if (is_old || is_late)
            && self.ask(Question::Way(destination))
            && let Some(asked) = self.ways.get_mut(&destination)
        {
            asked.generation = self.generation;
        }
        match entry.known {
            Known::Asked(_) => Way::Asked,
            Known::Local => Way::Local,
            Known::Nowhere => Way::Nowhere,
            Known::By { hop, mtu, .. } => {
                self.latest = Some((destination, entry));
                self.by(hop, mtu, now)
            }
        }
    }

    fn by(&mut self, place: usize, mtu: u16, now: Moment) -> Way {
        // Places are of this table, which is only emptied together with the ways.
        let Some(hop) = self.hops.get_mut(place) else { return Way::Nowhere };
        let to = hop.to;
        let ready = Way::By { side: to.side, header: hop.header, mtu };
        match hop.standing {
            HopStanding::Known => ready,
            HopStanding::Stale => {
                hop.standing = HopStanding::Known;
                self.ask(Question::Use(to));
                ready
            }
            HopStanding::Sought(since) if now.0 - since.0 <= PATIENCE => Way::Asked,
            HopStanding::Gone(since)
                if now.0 - since.0 <= PATIENCE && hop.is_silent(self.links) =>
            {
                Way::Gone
            }
            HopStanding::Gone(_) | HopStanding::Forgotten if now.0 - hop.asked.0 < hop.pause() => {
                Way::Asked
            }
            HopStanding::Sought(_) | HopStanding::Gone(_) | HopStanding::Forgotten => {
                hop.seek(now, self.links);
                self.ask(Question::Use(to));
                Way::Asked
            }
        }
    }

    /// An answer about it is to come.
    fn expect(&mut self, destination: IpAddr, now: Moment) {
        self.make_room();
        let entry = Entry { generation: self.generation, known: Known::Asked(now) };
        self.ways.insert(destination, entry);
    }

    fn learn(&mut self, destination: IpAddr, answer: Answer, now: Moment) {
        let known = match answer {
            Answer::Local => Known::Local,
            Answer::Nowhere => Known::Nowhere,
            Answer::By { hop, mtu, source } => Known::By { hop: self.place(hop, now), mtu, source },
        };
        // Nobody waits for what was forgotten meanwhile.
        if let Some(entry) = self.ways.get_mut(&destination) {
            entry.known = known;
        }
    }

    fn meet(&mut self, hop: NextHop, standing: Standing, now: Moment) {
        let Some(place) = self.places.get(&hop) else { return };
        let hop = &mut self.hops[*place];
        let (mac, standing) = match standing {
            Standing::Known(mac) => (Some(mac), HopStanding::Known),
            Standing::Stale(mac) => (Some(mac), HopStanding::Stale),
            Standing::Sought => (None, HopStanding::Sought(now)),
            Standing::Gone => (None, HopStanding::Gone(now)),
            Standing::Forgotten => (None, HopStanding::Forgotten),
        };
        if let Some(mac) = mac {
            hop.header.destination = mac;
            hop.unanswered = 0;
        }
        hop.standing = standing;
    }

    /// The place of a next hop, a new one if need be: not known yet, and asked for together with the way.
    fn place(&mut self, to: NextHop, now: Moment) -> usize {
        let Self { hops, places, macs, links, .. } = self;
        *places.entry(to).or_insert_with(|| {
            let version = if to.address.is_ipv4() { Version::V4 } else { Version::V6 };
            let source = match to.side {
                Side::Protected => macs[0],
                Side::Wire => macs[1],
            };
            let header =
                EthernetHeader { destination: MacAddr([0; 6]), source, ether_type: of(version) };
            let standing = HopStanding::Sought(now);
            hops.push(Hop { to, header, standing, asked: now, unanswered: 1, links: *links });
            hops.len() - 1
        })
    }

    fn make_room(&mut self) {
        if self.ways.len() >= MOST {
            self.ways.clear();
            self.hops.clear();
            self.places.clear();
            self.latest = None;
        }
    }

    /// Whether there was room for the question: without, it is lost, and to be asked again, at the latest when its patience is over.
    fn ask(&mut self, question: Question) -> bool {
        self.asked = true;
        self.guide.questions.try_send(question).is_ok()
    }
}

impl Hop {
    /// It is asked for now. The kernel begins anew only where it does not seek it already.
    const fn seek(&mut self, now: Moment, links: u32) {
        if !matches!(self.standing, HopStanding::Sought(_)) {
            self.links = links;
        }
        self.standing = HopStanding::Sought(now);
        self.asked = now;
        self.unanswered = self.unanswered.saturating_add(1);
    }

    /// Whether it was asked for by the links of now, and did not answer. One that was there until now may be elsewhere, where nobody has sought it yet.
    const fn is_silent(&self, links: u32) -> bool {
        self.unanswered > 0 && self.links == links
    }

    /// How long after the latest question for it the next one may come.
    fn pause(&self) -> u64 {
        match self.unanswered {
            0 => 0,
            count => (PAUSE << (count - 1).min(16)).min(PATIENCE),
        }
    }
}

const fn of(version: Version) -> EtherType {
    match version {
        Version::V4 => EtherType::IPV4,
        Version::V6 => EtherType::IPV6,
    }
}

#[cfg(test)]
mod tests;
