//! The remote ends of tunnels, and the path MTU to each.

use std::{collections::HashSet, net::IpAddr};

use uxfrm_engine::{PathMtus, Template, min_path_mtu};
use uxfrm_io::rtnetlink::Rtnetlink;

use super::rp_filter::RpFilterCheck;

/// What the network takes towards peers that no route leads to.
const USUAL_MTU: u32 = 1500;
/// Every network takes that much (RFC 791 §3.2).
const SMALLEST_MTU: u16 = 576;

/// Narrow paths that are known at once.
const MOST_NARROW: usize = 1 << 12;

/// The largest IP packets that the network takes, in bytes, as far as that lasts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastingMtus {
    /// Towards most peers.
    pub(crate) usual: u16,
    /// Towards those with a route that takes less.
    pub(crate) narrow: PathMtus,
}

impl LastingMtus {
    /// Towards a peer.
    pub(crate) fn to(&self, peer: IpAddr) -> u16 {
        match self.narrow.is_empty() {
            true => self.usual,
            false => self.narrow.get(&peer).map_or(self.usual, |narrow| self.usual.min(*narrow)),
        }
    }
}

/// The ends of all policies' tunnels.
#[derive(Debug)]
pub(super) struct Peers {
    /// That of our own sockets.
    mark: u32,
    known: HashSet<IpAddr>,
    /// The largest IP packet that the network takes towards all of those, but for narrow ones.
    mtu: u32,
    /// Where the way takes less than its device, or packets were refused as they were too long,
    /// and what the network takes towards there.
    narrow: PathMtus,
    /// Where the kernel has learned what the network takes, and will forget it: what the entry
    /// takes that leads there.
    learned: PathMtus,
    /// Whether workers have to be told.
    news: bool,
    ways_back: RpFilterCheck,
}

impl Peers {
    /// None yet.
    pub(super) fn new(mark: u32) -> Self {
        Self {
            mark,
            known: HashSet::new(),
            mtu: u32::MAX,
            narrow: PathMtus::new(),
            learned: PathMtus::new(),
            news: true,
            ways_back: RpFilterCheck::default(),
        }
    }

    /// Forgets them: those that are still peers are met again.
    pub(super) fn clear_demand(&mut self) {
        self.known.clear();
        (self.mtu, self.news) = (u32::MAX, true);
    }

    /// Asks for the ways to all of them again.
    pub(super) fn meet_again(&mut self, rtnetlink: &mut Rtnetlink) {
        let known = std::mem::take(&mut self.known);
        self.clear_demand();
        known.into_iter().for_each(|peer| self.meet(rtnetlink, peer));
    }

    /// Asks for the way to the peers of a policy, the first time.
    pub(super) fn meet_all(
        &mut self,
        rtnetlink: &mut Rtnetlink,
        templates: impl Iterator<Item = Template>,
    ) {
        for template in templates {
            let peer = template.destination;
            if !peer.is_unspecified() && !self.known.contains(&peer) {
                self.meet(rtnetlink, peer);
            }
        }
    }

    /// A peer that no route leads to says nothing about packets' size; the next change of links
    /// asks again.
    fn meet(&mut self, rtnetlink: &mut Rtnetlink, peer: IpAddr) {
        self.known.insert(peer);
        self.ways_back.mark_unverified(peer);
        let way = rtnetlink.route_to(peer, self.mark).ok();
        let Some(way) = way.filter(|way| way.mtu < self.mtu) else { return };
        // What takes less than its device is narrow for this peer alone, perhaps for some minutes.
        let device = rtnetlink.link_of_index(way.link).map_or(way.mtu, |link| link.mtu);
        let is_known = way.mtu < device && self.narrow.len() < MOST_NARROW;
        let mtu = if is_known { device } else { way.mtu };
        if mtu < self.mtu {
            (self.mtu, self.news) = (mtu, true);
        }
        if is_known {
            self.measure(rtnetlink, peer);
        }
    }

    /// Whether a policy has a tunnel that leads there.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.known.contains(&address)
    }

    /// A packet to there was longer than the network takes: asks how much that is.
    pub(super) fn note_path_mtu(&mut self, rtnetlink: &mut Rtnetlink, to: IpAddr) {
        if self.narrow.len() < MOST_NARROW || self.narrow.contains_key(&to) {
            self.measure(rtnetlink, to);
        }
    }

    /// Asks again where the network took less: the kernel forgets after some minutes what routers
    /// have said (`net.ipv4.route.mtu_expires`).
    pub(super) fn remeasure_path_mtu(&mut self, rtnetlink: &mut Rtnetlink) {
        let known: Vec<_> = self.narrow.keys().copied().collect();
        known.into_iter().for_each(|peer| self.measure(rtnetlink, peer));
    }

    fn measure(&mut self, rtnetlink: &mut Rtnetlink, peer: IpAddr) {
        let way = rtnetlink.route_to(peer, self.mark).ok();
        let bytes = |mtu| u16::try_from(mtu).unwrap_or(u16::MAX).max(min_path_mtu(peer));
        if way.as_ref().is_some_and(|way| way.expires) {
            let lasting = rtnetlink.lasting_mtu(peer, self.mark).map_or(u16::MAX, bytes);
            self.learned.insert(peer, lasting);
        } else {
            self.learned.remove(&peer);
        }
        let now = way.map(|way| bytes(way.mtu));
        let usual = self.mtu();
        let before = match now.filter(|now| *now < usual) {
            Some(now) => self.narrow.insert(peer, now),
            None => self.narrow.remove(&peer),
        };
        self.news |= before != self.narrow.get(&peer).copied();
    }

    /// The largest IP packet that the network takes towards all peers that no narrow path leads to.
    pub(super) fn mtu(&self) -> u16 {
        let mtu = if self.mtu == u32::MAX { USUAL_MTU } else { self.mtu };
        u16::try_from(mtu).unwrap_or(u16::MAX).max(SMALLEST_MTU)
    }

    /// What the network takes towards others.
    pub(super) fn narrow(&self) -> &PathMtus {
        &self.narrow
    }

    /// What the network takes by devices and routes alone, whatever routers tell for some minutes.
    pub(super) fn lasting(&self) -> LastingMtus {
        let narrow = self.narrow.iter();
        let narrow = narrow.map(|(peer, mtu)| (*peer, *self.learned.get(peer).unwrap_or(mtu)));
        LastingMtus { usual: self.mtu(), narrow: narrow.collect() }
    }

    /// Whether workers have to be told, since the last time.
    pub(super) fn take_route_news(&mut self) -> bool {
        std::mem::take(&mut self.news)
    }

    /// Something comes from there, and perhaps the kernel does not take it.
    pub(super) fn mark_unverified(&mut self, destination: IpAddr) {
        self.ways_back.mark_unverified(destination);
    }

    /// Says where the kernel takes nothing from a peer.
    pub(super) fn check_rp_filters(&mut self, rtnetlink: &mut Rtnetlink, tun: u32) {
        self.ways_back.check(rtnetlink, tun, self.mark);
    }
}
