//! Where routes have to lead, so that every address takes the way that the longest prefix around it
//! wants, of all that policies name. Two halves of a prefix that want the same can be joined: a
//! pool of a million clients has one route, not a million.
//!
//! A prefix *wants* what its two halves do while these are joined, or else what its policies do. It
//! has a route if it wants one and is not joined itself with its other half. Halves are joined when
//! all policies are counted in. One that comes later has a route of its own, which is made as fast
//! as ever; one that goes parts at most two halves of each length.

use std::{
    collections::{HashMap, hash_map},
    hash::Hash,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
};

use foldhash::fast::RandomState;

/// Where a route leads: an address and how many of its leading bits count; the others are 0.
pub(super) type Destination = (IpAddr, u8);

/// What is to be done so that the routes are those wanted.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Routes to add, or to give another source for local packets.
    pub(super) put: Vec<(Destination, Option<IpAddr>)>,
    /// Routes to delete.
    pub(super) delete: Vec<Destination>,
}

/// The demand of all policies, and the routes made for it.
#[derive(Debug, Default)]
pub(super) struct Destinations {
    /// What [`Source`]s stand for, from [`Source::FIRST`] on.
    sources: Vec<IpAddr>,
    four: Prefixes<Ipv4Addr>,
    six: Prefixes<Ipv6Addr>,
}

impl Destinations {
    /// One policy more wants a route, with that source for local packets; any will do where there
    /// is none.
    pub(super) fn count_in(&mut self, destination: Destination, source: Option<IpAddr>) {
        let source = self.named(source);
        match destination {
            (IpAddr::V4(address), len) => self.four.count_in((address, len), source),
            (IpAddr::V6(address), len) => self.six.count_in((address, len), source),
        }
    }

    /// One of those that were counted in is gone.
    pub(super) fn count_out(&mut self, destination: Destination, source: Option<IpAddr>) {
        let source = self.named(source);
        match destination {
            (IpAddr::V4(address), len) => self.four.count_out((address, len), source),
            (IpAddr::V6(address), len) => self.six.count_out((address, len), source),
        }
    }

    /// All policies are to be counted in anew, and no route that was made is sure to be there.
    pub(super) fn clear_demand(&mut self) {
        self.sources.clear();
        self.four.clear_demand();
        self.six.clear_demand();
    }

    /// Joins all halves that want the same.
    pub(super) fn join(&mut self) {
        self.four.join();
        self.six.join();
    }

    /// Whether this route is there is not known.
    pub(super) fn mark_unverified(&mut self, destination: Destination) {
        match destination {
            (IpAddr::V4(address), len) => self.four.mark_unverified((address, len)),
            (IpAddr::V6(address), len) => self.six.mark_unverified((address, len)),
        }
    }

    /// What is to be done for all that came and went since the last time; it counts as done.
    pub(super) fn take_steps(&mut self) -> Steps {
        let mut steps = Steps::default();
        self.four.take_steps(&self.sources, &mut steps);
        self.six.take_steps(&self.sources, &mut steps);
        steps
    }

    fn named(&mut self, source: Option<IpAddr>) -> Source {
        let Some(source) = source else { return Source::ANY };
        let known = self.sources.iter().position(|known| *known == source);
        Source::of_place(known.unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        }))
    }
}

/// A source for local packets, or that any will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source(NonZeroU32);

impl Source {
    /// That of a route of which nothing is known.
    const DOUBTFUL: Self = Self(NonZeroU32::MIN);
    /// Where no policy needs a certain one.
    const ANY: Self = Self(NonZeroU32::MIN.saturating_add(1));
    const FIRST: u32 = 3;

    fn of_place(place: usize) -> Self {
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        Self(NonZeroU32::MIN.saturating_add(place).saturating_add(Self::FIRST - 1))
    }

    fn place(self) -> Option<usize> {
        self.0.get().checked_sub(Self::FIRST).map(|place| place as usize)
    }
}

/// A table that could hold so many times what it does gives room back. A million destinations have
/// 64 MiB.
const SPARSE: usize = 8;

/// How many policies want a source address.
#[derive(Clone, Copy, Debug)]
struct SourceDemand {
    source: Source,
    count: u32,
}

/// Nobody's.
impl Default for SourceDemand {
    fn default() -> Self {
        Self { source: Source::DOUBTFUL, count: 0 }
    }
}

/// One prefix.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    /// That of its policies; mostly all want the same.
    first: SourceDemand,
    /// What all of it wants.
    wanted: Option<Source>,
    /// What the route has that was made.
    made: Option<Source>,
    /// Whether its halves are, so that it wants what they do.
    is_joined: bool,
}

/// The prefixes of one family: those that policies name, and those whose halves are joined.
#[derive(Debug)]
struct Prefixes<A> {
    nodes: HashMap<(A, u8), Node, RandomState>,
    /// Of policies that want other sources than the first one does.
    others: HashMap<(A, u8), Vec<SourceDemand>, RandomState>,
    /// Whose routes may have to change.
    touched: Vec<(A, u8)>,
}

impl<A> Default for Prefixes<A> {
    fn default() -> Self {
        Self { nodes: HashMap::default(), others: HashMap::default(), touched: Vec::new() }
    }
}

impl<A: Address> Prefixes<A> {
    fn count_in(&mut self, at: (A, u8), source: Source) {
        let first = &mut self.nodes.entry(at).or_default().first;
        if first.count == 0 {
            first.source = source;
        }
        if first.source == source {
            first.count += 1;
        } else {
            let others = self.others.entry(at).or_default();
            match others.iter_mut().find(|wish| wish.source == source) {
                Some(wish) => wish.count += 1,
                None => others.push(SourceDemand { source, count: 1 }),
            }
        }
        self.settle(at);
    }

    fn count_out(&mut self, at: (A, u8), source: Source) {
        let Some(node) = self.nodes.get_mut(&at) else { return };
        if node.first.source == source {
            node.first.count = node.first.count.saturating_sub(1);
        }
        if let hash_map::Entry::Occupied(mut others) = self.others.entry(at) {
            let wishes = others.get_mut();
            if let Some(wish) = wishes.iter_mut().find(|wish| wish.source == source) {
                wish.count -= 1;
            }
            wishes.retain(|wish| wish.count > 0);
            if node.first.count == 0 {
                node.first = wishes.pop().unwrap_or_default();
            }
            if wishes.is_empty() {
                others.remove();
            }
        }
        self.settle(at);
    }

    fn clear_demand(&mut self) {
        self.others.clear();
        self.touched.clear();
        for (at, node) in &mut self.nodes {
            *node = Node { made: node.made.map(|_| Source::DOUBTFUL), ..Node::default() };
            self.touched.push(*at);
        }
    }

    fn mark_unverified(&mut self, at: (A, u8)) {
        self.nodes.entry(at).or_default().made = Some(Source::DOUBTFUL);
    }

    /// Works out anew what a prefix wants, and all around it that are joined of it.
    fn settle(&mut self, mut at: (A, u8)) {
        loop {
            let Some(node) = self.nodes.get(&at).copied() else { return };
            let joined = if node.is_joined { self.wanted_by_halves(at) } else { None };
            let wanted = joined.or_else(|| self.wanted_by_policies(at));
            let settled = Node { wanted, is_joined: joined.is_some(), ..node };
            self.nodes.insert(at, settled);
            if node.is_joined && !settled.is_joined {
                self.touched.extend(halves(at).into_iter().flatten());
            }
            if node.wanted == wanted {
                return;
            }
            self.touched.push(at);
            match around(at) {
                Some(whole) if self.is_joined(whole) => at = whole,
                Some(_) | None => return,
            }
        }
    }

    /// Joins all halves that want the same, the smallest first.
    fn join(&mut self) {
        let wanting = self.nodes.iter().filter(|(_, node)| node.wanted.is_some());
        let mut by_len = vec![Vec::new(); usize::from(A::WIDTH) + 1];
        wanting.for_each(|((address, len), _)| by_len[usize::from(*len)].push(*address));
        for len in (1..=A::WIDTH).rev() {
            for address in std::mem::take(&mut by_len[usize::from(len)]) {
                let Some(whole) = around((address, len)) else { continue };
                let wanted = self.wanted_by_halves(whole);
                if wanted.is_some() && !self.is_joined(whole) {
                    let node = self.nodes.entry(whole).or_default();
                    (node.wanted, node.is_joined) = (wanted, true);
                    self.touched.push(whole);
                    self.touched.extend(halves(whole).into_iter().flatten());
                    by_len[usize::from(len) - 1].push(whole.0);
                }
            }
        }
    }

    fn wanted(&self, at: (A, u8)) -> Option<Source> {
        self.nodes.get(&at)?.wanted
    }

    fn is_joined(&self, at: (A, u8)) -> bool {
        self.nodes.get(&at).is_some_and(|node| node.is_joined)
    }

    fn wanted_by_halves(&self, at: (A, u8)) -> Option<Source> {
        let [lower, upper] = halves(at)?.map(|half| self.wanted(half));
        lower.filter(|_| lower == upper)
    }

    /// The source that the prefix has if some policy of its own needs that, else one that any
    /// needs, else any.
    fn wanted_by_policies(&self, at: (A, u8)) -> Option<Source> {
        let node = self.nodes.get(&at).filter(|node| node.first.count > 0)?;
        let others = self.others.get(&at).into_iter().flatten();
        let all = std::iter::once(&node.first).chain(others).map(|wish| wish.source);
        let mut needed = all.filter(|source| *source != Source::ANY);
        let has = needed.clone().find(|source| Some(*source) == node.wanted);
        has.or_else(|| needed.next()).or(Some(Source::ANY))
    }

    /// What a prefix's own route has to have.
    fn route(&self, at: (A, u8)) -> Option<Source> {
        let wanted = self.wanted(at)?;
        let is_half = around(at).is_some_and(|whole| self.is_joined(whole));
        (!is_half).then_some(wanted)
    }

    fn take_steps(&mut self, sources: &[IpAddr], steps: &mut Steps) {
        for at in std::mem::take(&mut self.touched) {
            let wanted = self.route(at);
            let hash_map::Entry::Occupied(mut entry) = self.nodes.entry(at) else { continue };
            let node = entry.get_mut();
            let destination = (at.0.into(), at.1);
            match wanted {
                Some(source) if node.made != wanted => {
                    let source = source.place().and_then(|place| sources.get(place));
                    steps.put.push((destination, source.copied()));
                }
                None if node.made.is_some() => steps.delete.push(destination),
                Some(_) | None => {}
            }
            node.made = wanted;
            if wanted.is_none() && node.wanted.is_none() && node.first.count == 0 {
                entry.remove();
            }
        }
        if self.nodes.len() < self.nodes.capacity() / SPARSE {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
    }
}

/// The addresses of a family.
trait Address: Copy + Eq + Hash + Into<IpAddr> {
    const WIDTH: u8;

    /// With one bit, from 1 on, as 1.
    fn set(self, bit: u8) -> Self;
    /// With one bit, from 1 on, as 0.
    fn cleared(self, bit: u8) -> Self;
}

impl Address for Ipv4Addr {
    const WIDTH: u8 = 32;

    fn set(self, bit: u8) -> Self {
        Self::from_bits(self.to_bits() | 1 << (Self::WIDTH - bit))
    }

    fn cleared(self, bit: u8) -> Self {
        Self::from_bits(self.to_bits() & !(1 << (Self::WIDTH - bit)))
    }
}

impl Address for Ipv6Addr {
    const WIDTH: u8 = 128;

    fn set(self, bit: u8) -> Self {
        Self::from_bits(self.to_bits() | 1 << (Self::WIDTH - bit))
    }

    fn cleared(self, bit: u8) -> Self {
        Self::from_bits(self.to_bits() & !(1 << (Self::WIDTH - bit)))
    }
}

/// The two halves of a prefix; a single address has none.
fn halves<A: Address>((address, len): (A, u8)) -> Option<[(A, u8); 2]> {
    let longer = len + 1;
    (len < A::WIDTH).then(|| [address, address.set(longer)].map(|half| (half, longer)))
}

/// The prefix of which one is a half.
fn around<A: Address>((address, len): (A, u8)) -> Option<(A, u8)> {
    (len > 0).then(|| (address.cleared(len), len - 1))
}

#[cfg(test)]
mod tests;
