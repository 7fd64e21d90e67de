//! Many policies of one family: a tuple space of at most 64 tables, pruned before any of them is looked into.
//!
//! A *tuple* is a shape (which bits count) with a hash table of all selectors of that shape. Sieves of destinations and of sources
//! and a list by protocol each say in one word which tuples may know a packet; only those that all three name are probed.
//! Sets with more shapes than there are tuples share tables of coarser ones, as in TupleMerge (Daly et al., ToN 2019).

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::sieve::Sieve;
use super::table::{Exactness, Hit, Rank, Slots, Table};
use super::ternary::{Key, Shape, Ternary, Words, protocol};
use super::tree::{Tree, Walk};
use super::{Found, TOGETHER};
use crate::PolicyEntry;

/// The tuples, by their bits in words.
#[derive(Clone, Debug)]
pub(crate) struct Tuples<W: Words> {
    tuples: Vec<Tuple<W>>,
    /// Tuples in use.
    live: u64,
    destinations: Sieve,
    sources: Sieve,
    protocols: Arc<[u64; 256]>,
    policies: usize,
    /// Policies removed since the sieves were new.
    removed: usize,
}

#[derive(Clone, Debug)]
struct Tuple<W: Words> {
    mask: Key<W>,
    shape: Shape,
    table: Table<W>,
    policies: usize,
    /// No policy in it is before this.
    best: Rank,
}

/// A packet half looked up: which tuples are to be probed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidates(u64);

/// A packet's first probe, before its page is known.
#[derive(Debug)]
struct Approach<'a, W: Words> {
    tuple: u32,
    hash: u64,
    bits: W,
    way: Walk<'a, Slots<W>>,
}

/// A packet's first probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe<'a, W: Words> {
    tuple: u32,
    hash: u64,
    bits: W,
    page: &'a Slots<W>,
}

const MOST: usize = 64;
/// So few tuples are faster probed than pruned.
const UNPRUNED: usize = 2;
/// Policies that share a slot of a coarser tuple before another tuple is made.
const CROWD: usize = 4;

impl<W: Words> Tuples<W> {
    pub(crate) fn new() -> Self {
        Self {
            tuples: Vec::new(),
            live: 0,
            destinations: Sieve::with_room(0),
            sources: Sieve::with_room(0),
            protocols: Arc::new([0; 256]),
            policies: 0,
            removed: 0,
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.policies
    }

    /// The first policy that fits.
    #[inline]
    pub(crate) fn first(&self, key: &Key<W>) -> Option<&Arc<PolicyEntry>> {
        self.best_of(self.candidates(key), key, None)
    }

    /// The tuples that may hold a policy for a packet.
    #[inline]
    pub(crate) fn candidates(&self, key: &Key<W>) -> Candidates {
        if self.tuples.len() <= UNPRUNED {
            return Candidates(self.live);
        }
        let protocols = self.protocols[protocol(key.words.upper())];
        let destinations = self.destinations.tuples(key.words.destination());
        let sources = self.sources.tuples(key.words.source());
        Candidates(self.live & protocols & destinations & sources)
    }

    /// Fetches what [`Tuples::candidates`] will read.
    #[inline]
    pub(crate) fn prefetch(&self, key: &Key<W>) {
        if self.tuples.len() > UNPRUNED {
            self.destinations.prefetch(key.words.destination());
            self.sources.prefetch(key.words.source());
        }
    }

    /// The first tuple to be looked into, and the way to the page in it.
    #[inline]
    fn approach(&self, candidates: Candidates, key: &Key<W>) -> Option<Approach<'_, W>> {
        let tuple = candidates.0.trailing_zeros();
        let it = self.tuples.get(tuple as usize)?;
        let bits = key.under(&it.mask);
        let hash = bits.hash();
        Some(Approach { tuple, hash, bits, way: it.table.walk(hash) })
    }

    /// The first policy that fits; `probe` is that of these candidates.
    #[inline]
    pub(crate) fn best_of<'a>(
        &'a self,
        candidates: Candidates,
        key: &Key<W>,
        probe: Option<Probe<'a, W>>,
    ) -> Option<&'a Arc<PolicyEntry>> {
        let mut left = candidates.0;
        let mut best = Best { rank: Rank::LAST, entry: None };
        if let Some(probe) = probe {
            left &= !(1 << probe.tuple);
            best.consider(probe.page.find(probe.hash, &probe.bits), key);
        }
        while left != 0 {
            let tuple = &self.tuples[left.trailing_zeros() as usize];
            left &= left - 1;
            if tuple.best <= best.rank {
                best.consider(tuple.table.find(&key.under(&tuple.mask)), key);
            }
        }
        best.entry
    }

    /// As [`Tuples::first`] of each key, while the memory that one waits for is fetched for all.
    pub(crate) fn first_of_each<'a>(&'a self, keys: &[Key<W>], found: &mut Found<'a>) {
        keys.iter().for_each(|key| self.prefetch(key));
        let all: ArrayVec<Candidates, TOGETHER> =
            keys.iter().take(TOGETHER).map(|key| self.candidates(key)).collect();
        let each = || keys.iter().zip(all.iter().copied());
        let mut ways: ArrayVec<_, TOGETHER> =
            each().map(|(key, candidates)| self.approach(candidates, key)).collect();
        for _ in 0..Tree::<Slots<W>>::steps(self.policies) {
            ways.iter_mut().flatten().for_each(|approach| approach.way.step());
        }
        let probes: ArrayVec<Option<Probe<'_, W>>, TOGETHER> =
            ways.into_iter().map(|approach| approach?.probe()).collect();
        for probe in probes.iter().flatten() {
            if let Some(slot) = probe.page.likely(probe.hash) {
                uxfrm_packet::prefetch(slot);
            }
        }
        for ((key, candidates), probe) in each().zip(probes) {
            let best = self.best_of(candidates, key, probe);
            if let Some(best) = best {
                uxfrm_packet::prefetch(&**best);
            }
            found.push(best);
        }
    }

    pub(crate) fn insert(&mut self, entry: &Arc<PolicyEntry>) {
        let shape = Shape::of(entry.policy());
        let ternary = Ternary::of(entry.policy());
        let at = self.tuple_for(&shape, &ternary);
        let tuple = &mut self.tuples[at];
        let bits = ternary.value.under(&tuple.mask);
        let exact = match tuple.shape == shape && ternary.mask.extra == 0 {
            true => Exactness::Exact,
            false => Exactness::Residual,
        };
        tuple.table.insert(bits, exact, entry);
        tuple.policies += 1;
        tuple.best = tuple.best.min(Rank::of(entry));
        self.policies += 1;
        self.note(at, &bits);
        if self.destinations.is_full() || self.sources.is_full() {
            self.sift();
        }
    }

    /// Takes a policy out that is in.
    pub(crate) fn remove(&mut self, entry: &PolicyEntry) {
        let shape = Shape::of(entry.policy());
        let ternary: Ternary<W> = Ternary::of(entry.policy());
        let Some(at) = self.home(&shape, &ternary, entry) else { return };
        let tuple = &mut self.tuples[at];
        tuple.table.remove(&ternary.value.under(&tuple.mask), entry);
        tuple.policies -= 1;
        self.policies -= 1;
        self.removed += 1;
        if tuple.policies == 0 {
            self.retire(at);
        } else if self.removed > self.policies + MOST {
            self.sift();
        }
    }

    /// Shows each policy, in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        for tuple in &self.tuples {
            tuple.table.each(&mut |slot| slot.hit.each(visit));
        }
    }

    pub(crate) fn memory(&self) -> usize {
        let tables: usize = self.tuples.iter().map(|tuple| tuple.table.memory()).sum();
        size_of::<Self>()
            + self.tuples.capacity() * size_of::<Tuple<W>>()
            + size_of::<[u64; 256]>()
            + tables
            + self.destinations.memory()
            + self.sources.memory()
    }

    /// How many tuples are in use.
    pub(crate) const fn shapes(&self) -> u32 {
        self.live.count_ones()
    }

    /// Where a policy is.
    fn home(&self, shape: &Shape, ternary: &Ternary<W>, entry: &PolicyEntry) -> Option<usize> {
        let holds = |tuple: &Tuple<W>| {
            let mut found = false;
            if tuple.shape.holds(shape)
                && let Some(hit) = tuple.table.find(&ternary.value.under(&tuple.mask))
            {
                hit.each(&mut |other| found |= other.place() == entry.place());
            }
            found
        };
        self.each_live().find(|at| holds(&self.tuples[*at]))
    }

    /// The tuple for a policy to be added: its own shape's, or a coarser one where not too many stand in its slot.
    fn tuple_for(&mut self, shape: &Shape, ternary: &Ternary<W>) -> usize {
        if let Some(at) = self.each_live().find(|at| self.tuples[*at].shape == *shape) {
            return at;
        }
        let used = self.live.count_ones();
        if used >= COARSER[0].0 {
            let crowd = |tuple: &Tuple<W>| {
                tuple.table.find(&ternary.value.under(&tuple.mask)).map_or(0, Hit::len)
            };
            let joined = self
                .each_live()
                .filter(|at| self.tuples[*at].shape.holds(shape))
                .filter(|at| crowd(&self.tuples[*at]) < CROWD)
                .max_by_key(|at| self.tuples[*at].shape.weight());
            if let Some(at) = joined {
                return at;
            }
        }
        let step = COARSER.iter().rev().find(|(from, _)| used >= *from).map(|(_, step)| step);
        let shape = step.map_or(*shape, |step| step.round::<W>(shape));
        match self.each_live().find(|at| self.tuples[*at].shape == shape) {
            Some(at) => at,
            None => self.found(shape),
        }
    }

    /// A new tuple, in the place of one that is gone if there is one.
    fn found(&mut self, shape: Shape) -> usize {
        let tuple = Tuple {
            mask: shape.mask(),
            shape,
            table: Table::default(),
            policies: 0,
            best: Rank::LAST,
        };
        let at = (!self.live).trailing_zeros() as usize;
        match self.tuples.get_mut(at) {
            Some(gone) => *gone = tuple,
            None => self.tuples.push(tuple),
        }
        let bit = 1 << at;
        self.live |= bit;
        self.destinations.admit::<W>(bit, shape.destination);
        self.sources.admit::<W>(bit, shape.source);
        at
    }

    /// The last policy of a tuple is gone.
    fn retire(&mut self, at: usize) {
        let bit = 1 << at;
        self.live &= !bit;
        self.destinations.dismiss(bit);
        self.sources.dismiss(bit);
        Arc::make_mut(&mut self.protocols).iter_mut().for_each(|tuples| *tuples &= !bit);
        self.tuples[at].table = Table::default();
        self.tuples.truncate(64 - self.live.leading_zeros() as usize);
    }

    /// Makes the sieves and the list of protocols know that a tuple has these bits.
    fn note(&mut self, at: usize, bits: &W) {
        let shape = self.tuples[at].shape;
        let bit = 1 << at;
        self.destinations.note::<W>(bit, shape.destination, bits.destination());
        self.sources.note::<W>(bit, shape.source, bits.source());
        let known = match shape.protocol {
            0 => self.protocols.iter().all(|tuples| tuples & bit != 0),
            _ => self.protocols[protocol(bits.upper())] & bit != 0,
        };
        if known {
            return;
        }
        let protocols = Arc::make_mut(&mut self.protocols);
        match shape.protocol {
            0 => protocols.iter_mut().for_each(|tuples| *tuples |= bit),
            _ => protocols[protocol(bits.upper())] |= bit,
        }
    }

    /// Makes new sieves from what is there: larger ones, or ones without traces of what was removed.
    fn sift(&mut self) {
        self.removed = 0;
        self.destinations = Sieve::with_room(self.policies * 2);
        self.sources = Sieve::with_room(self.policies * 2);
        self.protocols = Arc::new([0; 256]);
        let tuples = std::mem::take(&mut self.tuples);
        for at in self.each_live() {
            self.destinations.admit::<W>(1 << at, tuples[at].shape.destination);
            self.sources.admit::<W>(1 << at, tuples[at].shape.source);
        }
        self.tuples = tuples;
        for at in self.each_live() {
            let table = self.tuples[at].table.clone();
            let mut best = Rank::LAST;
            table.each(&mut |slot| {
                best = best.min(slot.hit.rank());
                self.note(at, &slot.bits);
            });
            self.tuples[at].best = best;
        }
    }

    fn each_live(&self) -> impl Iterator<Item = usize> + use<W> {
        let live = self.live;
        (0..MOST).filter(move |at| live >> at & 1 != 0)
    }
}

impl<'a, W: Words> Approach<'a, W> {
    /// Goes to the page, and fetches its beginning.
    #[inline]
    fn probe(self) -> Option<Probe<'a, W>> {
        let page = self.way.end()?;
        uxfrm_packet::prefetch(page);
        Some(Probe { tuple: self.tuple, hash: self.hash, bits: self.bits, page })
    }
}

/// The first of the policies seen so far.
struct Best<'a> {
    rank: Rank,
    entry: Option<&'a Arc<PolicyEntry>>,
}

impl<'a> Best<'a> {
    #[inline]
    fn consider<W: Words>(&mut self, hit: Option<&'a Hit<W>>, key: &Key<W>) {
        let Some(hit) = hit.filter(|hit| hit.rank() <= self.rank) else { return };
        let Some(found) = hit.first(key) else { return };
        // With nothing found before, the rank need not be read from the policy, which may be far away.
        let (first, rank) = match self.entry {
            None => (true, hit.rank_of(found)),
            Some(entry) => (found.place() < entry.place(), Rank::of(found)),
        };
        if first {
            *self = Self { rank, entry: Some(found) };
        }
    }
}

/// From how many tuples on new ones are made coarser, and how.
const COARSER: [(u32, Step); 3] = [
    (24, Step { prefix: [4, 8], port: 4, protocol: u8::MAX, extra: u32::MAX }),
    (40, Step { prefix: [8, 16], port: 16, protocol: u8::MAX, extra: 0 }),
    (54, Step { prefix: [16, 64], port: 0, protocol: 0, extra: 0 }),
];

/// How a shape is made coarser: the last step leaves nine shapes, so there are never more than 63 tuples.
struct Step {
    /// Prefix lengths go down to a multiple of this, in IPv4 and IPv6.
    prefix: [u8; 2],
    /// As do the leading ones of port masks; 0 drops them.
    port: u32,
    protocol: u8,
    extra: u32,
}

impl Step {
    fn round<W: Words>(&self, shape: &Shape) -> Shape {
        let unit = self.prefix[usize::from(W::BITS > 32)];
        let port = |mask: u16| match (mask.leading_ones()).checked_div(self.port) {
            Some(units) => u16::MAX.checked_shl(16 - units * self.port).unwrap_or(0),
            None => 0,
        };
        Shape {
            destination: shape.destination / unit * unit,
            source: shape.source / unit * unit,
            ports: shape.ports.map(port),
            protocol: shape.protocol & self.protocol,
            mark: shape.mark & self.extra,
            ifindex: shape.ifindex & self.extra,
        }
    }
}
