//! A tree of pages by hash, shared between snapshots until it changes: changing one page copies it and the few forks above it.
//!
//! Extendible hashing in forks of sixty-four: a page that is full splits in two by one more bit of its hashes, and the halves of a
//! pair that has become small join again. So nothing is ever built anew as a whole, and nothing is left of what was removed.

use std::sync::Arc;

/// A page of some items; the tree decides by their hashes on which they stand.
pub(super) trait Page: Clone + Default {
    /// Whether one more item makes it split.
    fn is_full(&self) -> bool;
    /// How many items there are.
    fn len(&self) -> usize;
    /// Takes out the items whose hash has this bit.
    fn split(&mut self, bit: u32) -> Self;
    /// Takes over all items of another.
    fn join(&mut self, other: &Self);
    /// How many items two pages have when they join.
    const FEW: usize;
}

/// Pages by hash.
#[derive(Clone, Debug)]
pub(super) struct Tree<P> {
    root: Branch<P>,
}

#[derive(Clone, Debug)]
enum Branch<P> {
    /// Nothing here, or for a moment what is being changed.
    Empty,
    Leaf(Arc<P>),
    Fork(Arc<Fork<P>>),
}

/// By six bits of the hash. A leaf of depth `d` stands at all places that share its lowest `d` bits; a fork has depth 6.
#[derive(Clone, Debug)]
struct Fork<P> {
    branches: [Branch<P>; WAYS],
    depths: [u8; WAYS],
}

const BITS: u32 = 6;
const DEEP: u8 = 6;
const WAYS: usize = 1 << BITS;
/// Bits of the hash that make forks; a page under equal hashes grows without splitting.
const DEEPEST: u32 = 48;

impl<P> Default for Tree<P> {
    fn default() -> Self {
        Self { root: Branch::Empty }
    }
}

impl<P> Tree<P> {
    /// The page for a hash.
    #[inline]
    pub(super) fn page(&self, mut hash: u64) -> Option<&P> {
        let mut branch = &self.root;
        loop {
            match branch {
                Branch::Fork(fork) => {
                    branch = &fork.branches[place(hash)];
                    hash >>= BITS;
                }
                Branch::Leaf(page) => return Some(page),
                Branch::Empty => return None,
            }
        }
    }

    /// Each page once.
    pub(super) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a P)) {
        self.root.each(visit);
    }
}

impl<P: Page> Tree<P> {
    /// Changes the page for a hash, with room for one more item.
    pub(super) fn add<R>(&mut self, hash: u64, change: impl FnOnce(&mut P) -> R) -> R {
        self.root.add(hash, 0, change)
    }

    /// Changes the page for a hash, if there is one, and joins what has become small.
    pub(super) fn take<R>(&mut self, hash: u64, change: impl FnOnce(&mut P) -> R) -> Option<R> {
        self.root.take(hash, change)
    }
}

impl<P> Branch<P> {
    fn each<'a>(&'a self, visit: &mut impl FnMut(&'a P)) {
        match self {
            Self::Empty => {}
            Self::Leaf(page) => visit(page),
            Self::Fork(fork) => fork.own().for_each(|branch| branch.each(visit)),
        }
    }
}

impl<P: Page> Branch<P> {
    /// `used` bits of the hash led here.
    fn add<R>(&mut self, hash: u64, used: u32, change: impl FnOnce(&mut P) -> R) -> R {
        match self {
            Self::Empty => {
                let mut page = P::default();
                let result = change(&mut page);
                *self = Self::Leaf(Arc::new(page));
                result
            }
            Self::Leaf(page) if !page.is_full() || used >= DEEPEST => change(Arc::make_mut(page)),
            Self::Leaf(_) => {
                let leaf = std::mem::replace(self, Self::Empty);
                let branches = std::array::from_fn(|_| leaf.clone());
                drop(leaf);
                *self = Self::Fork(Arc::new(Fork { branches, depths: [0; WAYS] }));
                self.add(hash, used, change)
            }
            Self::Fork(fork) => Arc::make_mut(fork).add(hash, used, change),
        }
    }

    fn take<R>(&mut self, hash: u64, change: impl FnOnce(&mut P) -> R) -> Option<R> {
        match self {
            Self::Empty => None,
            Self::Leaf(page) => {
                let page = Arc::make_mut(page);
                let result = change(page);
                if page.len() == 0 {
                    *self = Self::Empty;
                }
                Some(result)
            }
            Self::Fork(fork) => {
                let fork = Arc::make_mut(fork);
                let result = fork.take(hash, change);
                if fork.depths[0] == 0 {
                    *self = std::mem::replace(&mut fork.branches[0], Self::Empty);
                }
                result
            }
        }
    }

    /// How many items are here, when it is not a fork.
    fn len(&self) -> Option<usize> {
        match self {
            Self::Empty => Some(0),
            Self::Leaf(page) => Some(page.len()),
            Self::Fork(_) => None,
        }
    }
}

impl<P> Fork<P> {
    /// Its branches, each once.
    fn own(&self) -> impl Iterator<Item = &Branch<P>> {
        let first = |at: &usize| *at < 1 << self.depths[*at];
        (0..WAYS).filter(first).map(|at| &self.branches[at])
    }
}

impl<P: Page> Fork<P> {
    fn add<R>(&mut self, hash: u64, used: u32, change: impl FnOnce(&mut P) -> R) -> R {
        let at = place(hash);
        loop {
            let depth = self.depths[at];
            if depth == DEEP {
                return self.branches[at].add(hash >> BITS, used + BITS, change);
            }
            let mut branch = self.lift(at, depth);
            match &mut branch {
                Branch::Leaf(page) if page.is_full() => {
                    let high = Arc::make_mut(page).split(used + u32::from(depth));
                    let low = at & ((1 << depth) - 1);
                    self.put(low, depth + 1, branch);
                    self.put(low | 1 << depth, depth + 1, Branch::Leaf(Arc::new(high)));
                }
                Branch::Leaf(_) | Branch::Fork(_) | Branch::Empty => {
                    let result = branch.add(hash >> BITS, used + BITS, change);
                    self.put(at, depth, branch);
                    return result;
                }
            }
        }
    }

    fn take<R>(&mut self, hash: u64, change: impl FnOnce(&mut P) -> R) -> Option<R> {
        let at = place(hash);
        let depth = self.depths[at];
        let mut branch = self.lift(at, depth);
        let result = branch.take(hash >> BITS, change);
        self.put(at, depth, branch);
        self.join(at);
        result
    }

    /// Joins the leaf at a place with its other half, and what comes of that with its own, while they are small.
    fn join(&mut self, at: usize) {
        loop {
            let depth = self.depths[at];
            let Some(upper) = depth.checked_sub(1) else { return };
            let other = at ^ 1 << upper;
            let both = self.branches[at].len().zip(self.branches[other].len());
            let Some((ours, theirs)) = both else { return };
            if self.depths[other] != depth || ours + theirs > P::FEW {
                return;
            }
            let (mut left, right) = (self.lift(at, depth), self.lift(other, depth));
            match (&mut left, &right) {
                (Branch::Leaf(left), Branch::Leaf(right)) => Arc::make_mut(left).join(right),
                (Branch::Empty, _) => left = right,
                (Branch::Leaf(_), Branch::Empty) | (_, Branch::Fork(_)) | (Branch::Fork(_), _) => {}
            }
            self.put(at, upper, left);
        }
    }

    /// Takes a branch out of all its places, so that it is not shared by itself.
    fn lift(&mut self, at: usize, depth: u8) -> Branch<P> {
        let mut lifted = Branch::Empty;
        for branch in self.branches[low(at, depth)..].iter_mut().step_by(1 << depth) {
            lifted = std::mem::replace(branch, Branch::Empty);
        }
        lifted
    }

    fn put(&mut self, at: usize, depth: u8, branch: Branch<P>) {
        for place in (low(at, depth)..WAYS).step_by(1 << depth) {
            self.branches[place] = branch.clone();
            self.depths[place] = depth;
        }
    }
}

/// The first place of a branch that stands at `at`.
fn low(at: usize, depth: u8) -> usize {
    at & ((1 << depth) - 1)
}

#[inline]
fn place(hash: u64) -> usize {
    usize::from(hash.to_le_bytes()[0]) % WAYS
}
