//! One tuple's hash table: masked selectors and the policies that have them.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::packed::Packed;
use super::ternary::{Key, Words};
use super::tree::{Page, Tree, Walk};
use crate::PolicyEntry;

/// Policies by their selectors' bits under one mask.
#[derive(Clone, Debug)]
pub(crate) struct Table<W: Words> {
    tree: Tree<Slots<W>>,
}

/// All policies with the same bits.
#[derive(Clone, Debug)]
pub(crate) struct Slot<W: Words> {
    pub(crate) bits: W,
    pub(crate) hit: Hit<W>,
}

/// What equal bits say of a packet.
#[derive(Clone, Debug)]
pub(crate) enum Hit<W: Words> {
    /// They are all that this policy asks; it is the only one.
    One { rank: Rank, entry: Arc<PolicyEntry> },
    /// These are to be compared.
    Several { rank: Rank, policies: Arc<Packed<W>> },
}

/// Device policies first, then by priority. Equal ranks are told apart by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    software: bool,
    priority: u32,
}

/// Some slots, with eight bits of each one's hash in the first cache line.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Slots<W: Words> {
    tags: [u8; WIDTH],
    slots: ArrayVec<Slot<W>, WIDTH>,
    /// Slots whose hashes no page can tell apart.
    more: Vec<Slot<W>>,
}

const WIDTH: usize = 16;

impl Rank {
    /// Behind all policies.
    pub(crate) const LAST: Self = Self { software: true, priority: u32::MAX };

    #[inline]
    pub(crate) fn of(entry: &PolicyEntry) -> Self {
        Self { software: entry.place().is_software(), priority: entry.place().priority().0 }
    }
}

impl<W: Words> Default for Table<W> {
    fn default() -> Self {
        Self { tree: Tree::default() }
    }
}

impl<W: Words> Table<W> {
    /// The page on which bits with this hash would stand.
    #[inline]
    pub(crate) fn page(&self, hash: u64) -> Option<&Slots<W>> {
        self.tree.page(hash)
    }

    /// The way to that page.
    #[inline]
    pub(crate) fn walk(&self, hash: u64) -> Walk<'_, Slots<W>> {
        self.tree.walk(hash)
    }

    /// What the bits say.
    #[inline]
    pub(crate) fn find(&self, bits: &W) -> Option<&Hit<W>> {
        let hash = bits.hash();
        self.page(hash)?.find(hash, bits)
    }

    /// Adds a policy whose bits here these are; `exact` says that no packet has them that it does not fit.
    pub(crate) fn insert(&mut self, bits: W, exact: Exactness, entry: &Arc<PolicyEntry>) {
        let hash = bits.hash();
        self.tree.add(hash, |page| match page.find_mut(hash, &bits) {
            Some(slot) => slot.hit.insert(entry),
            None => page.push(hash, Slot { bits, hit: Hit::new(exact, entry) }),
        });
    }

    /// Takes a policy out; one that is not in is no error.
    pub(crate) fn remove(&mut self, bits: &W, entry: &PolicyEntry) {
        let hash = bits.hash();
        self.tree.take(hash, |page| {
            let Some(slot) = page.find_mut(hash, bits) else { return };
            if slot.hit.remove(entry) {
                page.drop(hash, bits);
            }
        });
    }

    /// Each slot.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Slot<W>)) {
        self.tree.each(&mut |page| page.slots.iter().chain(&page.more).for_each(&mut *visit));
    }

    /// Bytes of pages and forks, and of the policies that share slots.
    pub(crate) fn memory(&self) -> usize {
        let mut bytes = self.tree.memory();
        self.each(&mut |slot| {
            if let Hit::Several { policies, .. } = &slot.hit {
                bytes += policies.memory();
            }
        });
        bytes
    }
}

/// Whether equal bits are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exactness {
    /// They are all that the policy asks.
    Exact,
    /// It asks more.
    Residual,
}

impl<W: Words> Hit<W> {
    fn new(exact: Exactness, entry: &Arc<PolicyEntry>) -> Self {
        let rank = Rank::of(entry);
        match exact {
            Exactness::Exact => Self::One { rank, entry: Arc::clone(entry) },
            Exactness::Residual => {
                let mut policies = Packed::default();
                policies.insert(entry);
                Self::Several { rank, policies: Arc::new(policies) }
            }
        }
    }

    /// The best rank among them.
    #[inline]
    pub(crate) const fn rank(&self) -> Rank {
        match self {
            Self::One { rank, .. } | Self::Several { rank, .. } => *rank,
        }
    }

    /// The rank of a policy that [`Hit::first`] found here.
    #[inline]
    pub(crate) fn rank_of(&self, found: &PolicyEntry) -> Rank {
        match self {
            Self::One { rank, .. } => *rank,
            Self::Several { .. } => Rank::of(found),
        }
    }

    /// The policy that fits first.
    #[inline]
    pub(crate) fn first(&self, key: &Key<W>) -> Option<&Arc<PolicyEntry>> {
        match self {
            Self::One { entry, .. } => Some(entry),
            Self::Several { policies, .. } => policies.first(key),
        }
    }

    /// How many policies.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One { .. } => 1,
            Self::Several { policies, .. } => policies.len(),
        }
    }

    /// Shows each policy.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        match self {
            Self::One { entry, .. } => visit(entry),
            Self::Several { policies, .. } => policies.iter().for_each(visit),
        }
    }

    fn insert(&mut self, new: &Arc<PolicyEntry>) {
        match self {
            Self::One { rank, entry } => {
                let mut policies = Packed::default();
                policies.insert(entry);
                policies.insert(new);
                *self = Self::Several { rank: Rank::of(new).min(*rank), policies: policies.into() };
            }
            Self::Several { rank, policies } => {
                Arc::make_mut(policies).insert(new);
                *rank = Rank::of(new).min(*rank);
            }
        }
    }

    /// True when none is left.
    fn remove(&mut self, gone: &PolicyEntry) -> bool {
        match self {
            Self::One { entry, .. } => entry.place() == gone.place(),
            Self::Several { rank, policies } => {
                let policies = Arc::make_mut(policies);
                policies.remove(gone);
                match policies.iter().next() {
                    Some(first) => *rank = Rank::of(first),
                    None => return true,
                }
                false
            }
        }
    }
}

impl<W: Words> Default for Slots<W> {
    fn default() -> Self {
        Self { tags: [0; WIDTH], slots: ArrayVec::new(), more: Vec::new() }
    }
}

impl<W: Words> Slots<W> {
    /// What the bits say; `hash` is theirs.
    #[inline]
    pub(crate) fn find(&self, hash: u64, bits: &W) -> Option<&Hit<W>> {
        for at in places(&self.tags, tag(hash)) {
            if let Some(slot) = self.slots.get(at)
                && slot.bits == *bits
            {
                return Some(&slot.hit);
            }
        }
        if self.more.is_empty() {
            return None;
        }
        self.more.iter().find(|slot| slot.bits == *bits).map(|slot| &slot.hit)
    }

    /// The first slot whose tag fits, to be fetched ahead of [`Slots::find`].
    #[inline]
    pub(crate) fn likely(&self, hash: u64) -> Option<&Slot<W>> {
        self.slots.get(places(&self.tags, tag(hash)).next()?)
    }

    fn find_mut(&mut self, hash: u64, bits: &W) -> Option<&mut Slot<W>> {
        let at = places(&self.tags, tag(hash))
            .find(|at| self.slots.get(*at).is_some_and(|slot| slot.bits == *bits));
        match at {
            Some(at) => self.slots.get_mut(at),
            None => self.more.iter_mut().find(|slot| slot.bits == *bits),
        }
    }

    fn push(&mut self, hash: u64, slot: Slot<W>) {
        let at = self.slots.len();
        match self.slots.try_push(slot) {
            Ok(()) => self.tags[at] = tag(hash),
            Err(full) => self.more.push(full.element()),
        }
    }

    fn drop(&mut self, hash: u64, bits: &W) {
        match places(&self.tags, tag(hash))
            .find(|at| self.slots.get(*at).is_some_and(|slot| slot.bits == *bits))
        {
            Some(at) => {
                self.slots.swap_remove(at);
                self.tags[at] = self.tags[self.slots.len()];
                if let Some(slot) = self.more.pop() {
                    self.push(slot.bits.hash(), slot);
                }
            }
            None => self.more.retain(|slot| slot.bits != *bits),
        }
    }
}

impl<W: Words> Page for Slots<W> {
    const FEW: usize = WIDTH / 2;

    fn is_full(&self) -> bool {
        self.slots.is_full()
    }

    fn len(&self) -> usize {
        self.slots.len() + self.more.len()
    }

    fn split(&mut self, bit: u32) -> Self {
        let (mut low, mut high) = (Self::default(), Self::default());
        for slot in self.slots.drain(..).chain(self.more.drain(..)) {
            let hash = slot.bits.hash();
            let half = if hash >> bit & 1 == 0 { &mut low } else { &mut high };
            half.push(hash, slot);
        }
        *self = low;
        high
    }

    fn join(&mut self, other: &Self) {
        for slot in other.slots.iter().chain(&other.more) {
            self.push(slot.bits.hash(), slot.clone());
        }
    }
}

/// The bits that the tree uses last.
#[inline]
const fn tag(hash: u64) -> u8 {
    hash.to_be_bytes()[0]
}

/// Where in `tags` a tag may stand, lowest first; now and then one place too many, never one too few.
#[inline]
fn places(tags: &[u8; WIDTH], tag: u8) -> impl Iterator<Item = usize> + use<> {
    const ONES: u128 = u128::from_ne_bytes([1; WIDTH]);
    let zero_where_equal = u128::from_le_bytes(*tags) ^ (ONES * u128::from(tag));
    let mut found = zero_where_equal.wrapping_sub(ONES) & !zero_where_equal & ONES << 7;
    std::iter::from_fn(move || {
        (found != 0).then(|| {
            let at = found.trailing_zeros() / 8;
            found &= found - 1;
            at as usize
        })
    })
}
