//! A persistent tree of pages by hash: changing a page copies it and the few forks above it. For
//! groups, which may be many, so that each must be small.
//!
//! Extendible hashing in forks of [`WAYS`]: a full page splits by one more hash bit, and halves
//! that became small are joined again. So nothing is ever rebuilt as a whole, and nothing is left
//! of what was removed.
//!
//! Copying a fork increments the scattered reference counts of its branches, which dominates the
//! cost of a change. So forks are narrow, and all branches are prefetched first.

use std::sync::Arc;

use uxfrm_packet::prefetch_far;

use super::page::{self, HashSource, Page};
use crate::Sa;

/// SAs by hash.
#[derive(Clone, Debug)]
pub(super) struct PageTree {
    root: Branch,
}

/// A tree or subtree.
#[derive(Clone, Debug)]
enum Branch {
    /// Empty, or being changed.
    Empty,
    Page(Arc<Page>),
    Fork(Arc<Fork>),
}

/// A node by a few hash bits. A page of depth `d` is at all indexes that share its lowest `d` bits;
/// a fork has depth [`FORK_DEPTH`].
///
/// Most forks hold pages only, and a look-up reads one line of these; so forks are kept apart.
#[derive(Debug, Default)]
struct Fork {
    pages: [Option<Arc<Page>>; WAYS],
    forks: Option<Box<[Option<Arc<Self>>; WAYS]>>,
    depths: [u8; WAYS],
}

/// An SA to be inserted.
struct Addition<'a> {
    hash: u64,
    sa: &'a Arc<Sa>,
    hash_source: &'a dyn HashSource,
}

/// Iterator over a tree's SAs.
#[derive(Debug)]
pub(super) struct States<'a> {
    page: Option<page::States<'a>>,
    pages: Vec<&'a Page>,
    forks: Vec<&'a Fork>,
}

const BITS: u32 = 3;
const FORK_DEPTH: u8 = 3;
const WAYS: usize = 1 << BITS;
/// Upper limit of hash bits used by forks. What a page at this depth has no room for goes to
/// groups.
const MAX_HASH_BITS: u32 = 48;

impl Default for PageTree {
    fn default() -> Self {
        Self { root: Branch::Empty }
    }
}

impl PageTree {
    /// All SAs in no order.
    pub(super) fn states(&self) -> States<'_> {
        let mut states = States { page: None, pages: Vec::new(), forks: Vec::new() };
        states.begin(self);
        states
    }

    /// Inserts an SA under a hash.
    pub(super) fn add(&mut self, hash: u64, sa: &Arc<Sa>, hash_source: &dyn HashSource) {
        self.root.add(&Addition { hash, sa, hash_source }, 0);
    }

    /// Changes the page of a hash, if any, and joins small pages.
    pub(super) fn change(
        &mut self,
        hash: u64,
        hash_source: &dyn HashSource,
        change: &mut dyn FnMut(&mut Page),
    ) {
        self.root.change(hash, 0, hash_source, change);
    }
}

impl<'a> Iterator for States<'a> {
    type Item = &'a Arc<Sa>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(sa) = self.page.as_mut().and_then(Iterator::next) {
                return Some(sa);
            }
            if let Some(page) = self.pages.pop() {
                self.page = Some(page.states());
                page.groups().for_each(|tree| self.begin(tree));
            } else {
                let fork = self.forks.pop()?;
                self.pages.extend(fork.own_pages());
                self.forks.extend(
                    fork.forks.iter().flat_map(|forks| forks.iter().flatten()).map(|fork| &**fork),
                );
            }
        }
    }
}

impl<'a> States<'a> {
    fn begin(&mut self, tree: &'a PageTree) {
        match &tree.root {
            Branch::Empty => {}
            Branch::Page(page) => self.pages.push(page),
            Branch::Fork(fork) => self.forks.push(fork),
        }
    }
}

impl Branch {
    /// Inserts an SA; `used` hash bits led here.
    fn add(&mut self, new: &Addition<'_>, used: u32) {
        match self {
            Self::Empty => {
                let mut page = Page::default();
                new.put_into(&mut page);
                *self = Self::Page(Arc::new(page));
            }
            Self::Page(page) if page.has_room(new.hash) || used >= MAX_HASH_BITS => {
                new.put_into(Arc::make_mut(page));
            }
            Self::Page(_) => {
                let mut fork = Fork::default();
                fork.put(0, 0, std::mem::replace(self, Self::Empty));
                fork.add(new, used);
                *self = Self::Fork(Arc::new(fork));
            }
            Self::Fork(fork) => Arc::make_mut(fork).add(new, used),
        }
    }

    fn change(
        &mut self,
        hash: u64,
        used: u32,
        hash_source: &dyn HashSource,
        change: &mut dyn FnMut(&mut Page),
    ) {
        match self {
            Self::Empty => {}
            Self::Page(page) => {
                let page = Arc::make_mut(page);
                change(page);
                if page.is_empty() {
                    *self = Self::Empty;
                }
            }
            Self::Fork(fork) => {
                let fork = Arc::make_mut(fork);
                fork.change(hash, used, hash_source, change);
                if fork.depths[0] == 0 {
                    *self = fork.take_out(0, 0);
                }
            }
        }
    }

    fn of(page: Page) -> Self {
        if page.is_empty() { Self::Empty } else { Self::Page(Arc::new(page)) }
    }
}

impl Clone for Fork {
    fn clone(&self) -> Self {
        self.pages.iter().flatten().for_each(|page| prefetch_far(&**page));
        Self { pages: self.pages.clone(), forks: self.forks.clone(), depths: self.depths }
    }
}

impl Fork {
    /// Its pages, each once.
    fn own_pages(&self) -> impl Iterator<Item = &Page> {
        let first = |at: &usize| *at < 1 << self.depths[*at];
        (0..WAYS).filter(first).filter_map(|at| self.pages[at].as_deref())
    }

    fn add(&mut self, new: &Addition<'_>, used: u32) {
        let at = place(new.hash >> used);
        loop {
            let depth = self.depths[at];
            let mut branch = self.take_out(at, depth);
            match &mut branch {
                Branch::Page(page) if depth < FORK_DEPTH && !page.has_room(new.hash) => {
                    let (lower, upper) = page.split(used + u32::from(depth), new.hash_source);
                    let low = at & ((1 << depth) - 1);
                    self.put(low, depth + 1, Branch::of(lower));
                    self.put(low | 1 << depth, depth + 1, Branch::of(upper));
                }
                Branch::Page(_) | Branch::Fork(_) | Branch::Empty => {
                    branch.add(new, used + BITS);
                    return self.put(at, depth, branch);
                }
            }
        }
    }

    fn change(
        &mut self,
        hash: u64,
        used: u32,
        hash_source: &dyn HashSource,
        change: &mut dyn FnMut(&mut Page),
    ) {
        let at = place(hash >> used);
        let depth = self.depths[at];
        let mut branch = self.take_out(at, depth);
        branch.change(hash, used + BITS, hash_source, change);
        self.put(at, depth, branch);
        self.join(at, hash_source);
    }

    /// Joins the page at an index with its other half, repeatedly, while they are small.
    fn join(&mut self, at: usize, hash_source: &dyn HashSource) {
        loop {
            let depth = self.depths[at];
            let Some(upper) = depth.checked_sub(1) else { return };
            let other = at ^ 1 << upper;
            let both = self.items(at).zip(self.items(other));
            let Some((ours, theirs)) = both else { return };
            if self.depths[other] != depth || ours + theirs > Page::JOIN_MAX {
                return;
            }
            let (mut left, right) = (self.take_out(at, depth), self.take_out(other, depth));
            match (&mut left, &right) {
                (Branch::Page(left), Branch::Page(right)) => {
                    Arc::make_mut(left).join(right, hash_source)
                }
                (Branch::Empty, _) => left = right,
                (Branch::Page(_), Branch::Empty) | (_, Branch::Fork(_)) | (Branch::Fork(_), _) => {}
            }
            self.put(at, upper, left);
        }
    }

    /// Number of items at an index, unless a fork is there.
    fn items(&self, at: usize) -> Option<usize> {
        let is_fork = self.forks.as_ref().is_some_and(|forks| forks[at].is_some());
        (!is_fork).then(|| self.pages[at].as_ref().map_or(0, |page| page.len()))
    }

    /// Takes a branch out of all its indexes, so that it does not share itself.
    fn take_out(&mut self, at: usize, depth: u8) -> Branch {
        if let Some(forks) = &mut self.forks
            && let Some(fork) = forks[at].take()
        {
            return Branch::Fork(fork);
        }
        let mut lifted = None;
        for page in self.pages[low(at, depth)..].iter_mut().step_by(1 << depth) {
            lifted = page.take();
        }
        lifted.map_or(Branch::Empty, Branch::Page)
    }

    /// Stores a branch at all its indexes.
    fn put(&mut self, at: usize, depth: u8, branch: Branch) {
        let places = (low(at, depth)..WAYS).step_by(1 << depth);
        places.clone().for_each(|place| self.depths[place] = depth);
        match branch {
            Branch::Empty => {}
            Branch::Page(page) => {
                places.for_each(|place| self.pages[place] = Some(Arc::clone(&page)));
            }
            Branch::Fork(fork) => self.forks.get_or_insert_default()[at] = Some(fork),
        }
        if self.forks.as_ref().is_some_and(|forks| forks.iter().all(Option::is_none)) {
            self.forks = None;
        }
    }
}

impl Addition<'_> {
    fn put_into(&self, page: &mut Page) {
        page.add(self.hash, self.sa, self.hash_source);
    }
}

/// First index of the branch at `at`.
fn low(at: usize, depth: u8) -> usize {
    at & ((1 << depth) - 1)
}

#[inline]
fn place(hash: u64) -> usize {
    usize::from(hash.to_le_bytes()[0]) % WAYS
}
