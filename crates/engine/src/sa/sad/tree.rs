//! A tree of leaves by hash, shared between snapshots until it changes: changing one leaf copies it and the few forks above it.
//!
//! Extendible hashing in forks of [`WAYS`]: a leaf that is full splits in two by one more bit of its hashes, and the halves of a
//! pair that has become small join again. So nothing is ever built anew as a whole, and nothing is left of what was removed.
//!
//! Copying a fork counts a reference to each of its branches, and these lie anywhere in memory: what a change costs is how many
//! they are. So forks are narrow, and all branches are fetched at once before they are counted one by one.

use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_packet::prefetch;

use super::leaf::{Leaf, Level};
use crate::Sa;

/// States by hash.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    root: Branch,
}

#[derive(Clone, Debug)]
enum Branch {
    /// Nothing here, or for a moment what is being changed.
    Empty,
    Leaf(Arc<Leaf>),
    Fork(Arc<Fork>),
}

/// By a few bits of the hash. A leaf of depth `d` stands at all places that share its lowest `d` bits; a fork has depth [`DEEP`].
#[derive(Debug)]
struct Fork {
    branches: [Branch; WAYS],
    depths: [u8; WAYS],
}

/// All states of a tree.
#[derive(Debug)]
pub(super) struct States<'a> {
    leaf: std::slice::Iter<'a, Option<Arc<Sa>>>,
    branches: Vec<&'a Branch>,
}

const BITS: u32 = 3;
const DEEP: u8 = 3;
const WAYS: usize = 1 << BITS;
/// Bits of the hash that make forks. All states in a leaf below these have one hash.
const DEEPEST: u32 = u32::BITS;
/// Hashes that are looked up at a time.
pub(super) const TOGETHER: usize = 16;

impl Default for Tree {
    fn default() -> Self {
        Self { root: Branch::Empty }
    }
}

impl Tree {
    /// The leaf for a hash.
    #[inline]
    pub(super) fn leaf(&self, mut hash: u32) -> Option<&Leaf> {
        let mut branch = &self.root;
        loop {
            match branch {
                Branch::Fork(fork) => {
                    branch = &fork.branches[place(hash)];
                    hash >>= BITS;
                }
                Branch::Leaf(leaf) => return Some(leaf),
                Branch::Empty => return None,
            }
        }
    }

    /// The leaf for each hash. All go down together, so memory is waited for once per level.
    #[inline]
    pub(super) fn leaves(&self, hashes: &[u32]) -> impl Iterator<Item = Option<&Leaf>> + use<'_> {
        let mut all: ArrayVec<(&Branch, u32), TOGETHER> =
            hashes.iter().map(|hash| (&self.root, *hash)).collect();
        let mut deeper = true;
        while deeper {
            deeper = false;
            for (branch, hash) in &mut all {
                if let Branch::Fork(fork) = branch {
                    *branch = &fork.branches[place(*hash)];
                    *hash >>= BITS;
                    prefetch(*branch);
                    deeper = true;
                }
            }
            all.iter().for_each(|(branch, hash)| branch.fetch(*hash));
        }
        all.into_iter().map(|(branch, _)| match branch {
            Branch::Leaf(leaf) => Some(&**leaf),
            Branch::Empty | Branch::Fork(_) => None,
        })
    }

    /// All states, in no order.
    pub(super) fn states(&self) -> States<'_> {
        States { leaf: [].iter(), branches: vec![&self.root] }
    }

    /// Puts in a state under a hash.
    pub(super) fn add(&mut self, hash: u32, sa: &Arc<Sa>, level: Level) {
        self.root.add(hash, 0, &|leaf| leaf.add(hash, sa, level));
    }

    /// Changes the leaf for a hash, if there is one, and joins what has become small.
    pub(super) fn change(&mut self, hash: u32, change: &mut dyn FnMut(&mut Leaf)) {
        self.root.change(hash, change);
    }
}

impl<'a> Iterator for States<'a> {
    type Item = &'a Arc<Sa>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(sa) = self.leaf.by_ref().flatten().next() {
                return Some(sa);
            }
            match self.branches.pop()? {
                Branch::Empty => {}
                Branch::Leaf(leaf) => {
                    self.leaf = leaf.states().iter();
                    self.branches.extend(leaf.crowds().map(|tree| &tree.root));
                }
                Branch::Fork(fork) => self.branches.extend(fork.own()),
            }
        }
    }
}

impl Branch {
    /// Asks for what the next step for a hash will read.
    #[inline]
    fn fetch(&self, hash: u32) {
        match self {
            Self::Empty => {}
            Self::Leaf(leaf) => prefetch(&**leaf),
            Self::Fork(fork) => prefetch(&fork.branches[place(hash)]),
        }
    }

    /// `used` bits of the hash led here.
    fn add(&mut self, hash: u32, used: u32, add: &dyn Fn(&mut Leaf)) {
        match self {
            Self::Empty => {
                let mut leaf = Leaf::default();
                add(&mut leaf);
                *self = Self::Leaf(Arc::new(leaf));
            }
            Self::Leaf(leaf) if !leaf.is_full() || used >= DEEPEST => add(Arc::make_mut(leaf)),
            Self::Leaf(_) => {
                let leaf = std::mem::replace(self, Self::Empty);
                let branches = std::array::from_fn(|_| leaf.clone());
                drop(leaf);
                *self = Self::Fork(Arc::new(Fork { branches, depths: [0; WAYS] }));
                self.add(hash, used, add);
            }
            Self::Fork(fork) => Arc::make_mut(fork).add(hash, used, add),
        }
    }

    fn change(&mut self, hash: u32, change: &mut dyn FnMut(&mut Leaf)) {
        match self {
            Self::Empty => {}
            Self::Leaf(leaf) => {
                let leaf = Arc::make_mut(leaf);
                change(leaf);
                if leaf.is_empty() {
                    *self = Self::Empty;
                }
            }
            Self::Fork(fork) => {
                let fork = Arc::make_mut(fork);
                fork.change(hash, change);
                if fork.depths[0] == 0 {
                    *self = std::mem::replace(&mut fork.branches[0], Self::Empty);
                }
            }
        }
    }

    /// How much is here, when it is not a fork.
    fn len(&self) -> Option<usize> {
        match self {
            Self::Empty => Some(0),
            Self::Leaf(leaf) => Some(leaf.len()),
            Self::Fork(_) => None,
        }
    }
}

impl Clone for Fork {
    fn clone(&self) -> Self {
        for branch in &self.branches {
            branch.fetch(0);
        }
        Self { branches: self.branches.clone(), depths: self.depths }
    }
}

impl Fork {
    /// Its branches, each once.
    fn own(&self) -> impl Iterator<Item = &Branch> {
        let first = |at: &usize| *at < 1 << self.depths[*at];
        (0..WAYS).filter(first).map(|at| &self.branches[at])
    }

    fn add(&mut self, hash: u32, used: u32, add: &dyn Fn(&mut Leaf)) {
        let at = place(hash);
        loop {
            let depth = self.depths[at];
            if depth == DEEP {
                return self.branches[at].add(hash >> BITS, used + BITS, add);
            }
            let mut branch = self.lift(at, depth);
            match &mut branch {
                Branch::Leaf(leaf) if leaf.is_full() => {
                    let high = Arc::make_mut(leaf).split(used + u32::from(depth));
                    let low = at & ((1 << depth) - 1);
                    self.put(low, depth + 1, branch);
                    self.put(low | 1 << depth, depth + 1, Branch::of(high));
                }
                Branch::Leaf(_) | Branch::Fork(_) | Branch::Empty => {
                    branch.add(hash >> BITS, used + BITS, add);
                    return self.put(at, depth, branch);
                }
            }
        }
    }

    fn change(&mut self, hash: u32, change: &mut dyn FnMut(&mut Leaf)) {
        let at = place(hash);
        let depth = self.depths[at];
        let mut branch = self.lift(at, depth);
        branch.change(hash >> BITS, change);
        self.put(at, depth, branch);
        self.join(at);
    }

    /// Joins the leaf at a place with its other half, and what comes of that with its own, while they are small.
    fn join(&mut self, at: usize) {
        loop {
            let depth = self.depths[at];
            let Some(upper) = depth.checked_sub(1) else { return };
            let other = at ^ 1 << upper;
            let both = self.branches[at].len().zip(self.branches[other].len());
            let Some((ours, theirs)) = both else { return };
            if self.depths[other] != depth || ours + theirs > Leaf::FEW {
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
    fn lift(&mut self, at: usize, depth: u8) -> Branch {
        let mut lifted = Branch::Empty;
        for branch in self.branches[low(at, depth)..].iter_mut().step_by(1 << depth) {
            lifted = std::mem::replace(branch, Branch::Empty);
        }
        lifted
    }

    fn put(&mut self, at: usize, depth: u8, branch: Branch) {
        for place in (low(at, depth)..WAYS).step_by(1 << depth) {
            self.branches[place] = branch.clone();
            self.depths[place] = depth;
        }
    }
}

impl Branch {
    fn of(leaf: Leaf) -> Self {
        if leaf.is_empty() { Self::Empty } else { Self::Leaf(Arc::new(leaf)) }
    }
}

/// The first place of a branch that stands at `at`.
fn low(at: usize, depth: u8) -> usize {
    at & ((1 << depth) - 1)
}

#[inline]
fn place(hash: u32) -> usize {
    usize::from(hash.to_le_bytes()[0]) % WAYS
}
