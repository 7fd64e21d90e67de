//! A two-level table of pages by hash: a table of chunks, each a table of pages, small enough for
//! the CPU cache at a million SAs. A change copies its page; it copies a chunk or the table only
//! while a snapshot shares it.
//!
//! Extendible hashing on both levels: a full page splits by one more hash bit, a chunk whose page
//! cannot split splits itself, and the table doubles when a chunk cannot. Halves of a page that
//! became small are joined again; chunks are not.

use std::sync::Arc;

use uxfrm_packet::prefetch_far;

use super::page::{HashSource, Page};
use crate::Sa;

/// SAs by hash.
#[derive(Clone, Debug, Default)]
pub(super) struct PageTable {
    /// Empty, or a power of two. A chunk of depth `d` is at all indexes that share its lowest `d`
    /// bits.
    chunks: Vec<Option<Arc<Chunk>>>,
    /// Depths of the chunks, so that a look-up reads one line of a chunk and not two.
    depths: Vec<u8>,
}

/// Pages by the hash bits behind those that the chunk's SAs share. A page of depth `d` is at all
/// indexes that share its lowest `d` bits.
#[derive(Debug)]
#[repr(C)]
struct Chunk {
    /// Hash bits that all its SAs share.
    depth: u8,
    depths: [u8; PLACES],
    pages: [Option<Arc<Page>>; PLACES],
}

/// An SA to be inserted.
struct Addition<'a> {
    hash: u64,
    sa: &'a Arc<Sa>,
    hash_source: &'a dyn HashSource,
}

const BITS: u8 = 6;
const PLACES: usize = 1 << BITS;
/// Upper limit of hash bits that select pages. What a page at this depth has no room for goes to
/// groups.
const MAX_HASH_BITS: u32 = 48;

impl PageTable {
    /// The page of a hash.
    #[inline]
    pub(super) fn page(&self, hash: u64) -> Option<&Page> {
        let at = self.place(hash);
        let (chunk, depth) = (self.chunks.get(at)?.as_ref()?, *self.depths.get(at)?);
        chunk.pages[place_below(depth, hash)].as_deref()
    }

    /// All SAs in no order.
    pub(super) fn states(&self) -> impl Iterator<Item = &Arc<Sa>> {
        let chunks = self.chunks.iter().enumerate();
        let each =
            chunks.filter_map(|(at, chunk)| chunk.as_ref().filter(|chunk| at < 1 << chunk.depth));
        each.flat_map(|chunk| chunk.own_pages()).flat_map(Page::all_states)
    }

    /// Inserts an SA under a hash.
    pub(super) fn add(&mut self, hash: u64, sa: &Arc<Sa>, hash_source: &dyn HashSource) {
        if self.chunks.is_empty() {
            self.chunks.push(Some(Arc::default()));
            self.depths.push(0);
        }
        let new = Addition { hash, sa, hash_source };
        loop {
            let Some(mut chunk) = self.take_out(hash) else { return };
            let is_in = Arc::make_mut(&mut chunk).add(&new);
            if is_in {
                return self.put(hash, chunk);
            }
            if 1 << chunk.depth == self.chunks.len() {
                self.chunks.extend_from_within(..);
                self.depths.extend_from_within(..);
            }
            let (even, odd) = chunk.split();
            let odd_one = 1 << chunk.depth;
            self.put(hash & !odd_one, Arc::new(even));
            self.put(hash | odd_one, Arc::new(odd));
        }
    }

    /// Changes the page of a hash, if any, and joins small pages.
    pub(super) fn change(
        &mut self,
        hash: u64,
        hash_source: &dyn HashSource,
        change: &mut dyn FnMut(&mut Page),
    ) {
        let Some(mut chunk) = self.take_out(hash) else { return };
        Arc::make_mut(&mut chunk).change(hash, hash_source, change);
        self.put(hash, chunk);
    }

    /// Copies from `newer` what an SA with this hash changed.
    pub(super) fn follow(&mut self, newer: &Self, hash: u64) {
        if self.chunks.len() != newer.chunks.len() {
            return self.clone_from(newer);
        }
        let Some(new) = newer.chunks.get(newer.place(hash)).and_then(Option::as_ref) else {
            return;
        };
        match self.take_out(hash) {
            Some(mut own) if own.depth == new.depth => {
                match Arc::get_mut(&mut own) {
                    Some(own) => own.follow(new, hash),
                    // A shared chunk would have to be copied first.
                    None => own.clone_from(new),
                }
                self.put(hash, own);
            }
            None => {}
            Some(own) => {
                let both = own.depth.min(new.depth);
                for at in
                    (self.place(hash) & ((1 << both) - 1)..self.chunks.len()).step_by(1 << both)
                {
                    self.chunks[at].clone_from(&newer.chunks[at]);
                    self.depths[at] = newer.depths[at];
                }
            }
        }
    }

    /// Takes a chunk out of all its indexes, so that it does not share itself.
    fn take_out(&mut self, hash: u64) -> Option<Arc<Chunk>> {
        let at = self.place(hash);
        let depth = self.chunks.get(at)?.as_ref()?.depth;
        let all = self.chunks[low(at, depth)..].iter_mut().step_by(1 << depth);
        all.fold(None, |_, chunk| chunk.take())
    }

    fn put(&mut self, hash: u64, chunk: Arc<Chunk>) {
        let low = low(self.place(hash), chunk.depth);
        for at in (low..self.chunks.len()).step_by(1 << chunk.depth) {
            self.chunks[at] = Some(Arc::clone(&chunk));
            self.depths[at] = chunk.depth;
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits count")]
    const fn place(&self, hash: u64) -> usize {
        hash as usize & self.chunks.len().wrapping_sub(1)
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self { depth: 0, depths: [0; PLACES], pages: [const { None }; PLACES] }
    }
}

/// Reference counting writes to scattered pages: all are prefetched first.
impl Clone for Chunk {
    fn clone(&self) -> Self {
        self.pages.iter().flatten().for_each(|page| prefetch_far(&**page));
        Self { depth: self.depth, depths: self.depths, pages: self.pages.clone() }
    }
}

impl Chunk {
    /// Its pages, each once.
    fn own_pages(&self) -> impl Iterator<Item = &Page> {
        let first = |at: &usize| *at < 1 << self.depths[*at];
        (0..PLACES).filter(first).filter_map(|at| self.pages[at].as_deref())
    }

    /// Inserts an SA; false if the chunk must split first.
    fn add(&mut self, new: &Addition<'_>) -> bool {
        let at = self.place(new.hash);
        loop {
            let depth = self.depths[at];
            let used = u32::from(self.depth + depth);
            let mut page = self.take_out(at);
            let is_full = page.as_ref().is_some_and(|page| !page.has_room(new.hash));
            if !is_full || used >= MAX_HASH_BITS {
                let page = page.get_or_insert_default();
                Arc::make_mut(page).add(new.hash, new.sa, new.hash_source);
                self.put(at, depth, Some(Arc::clone(page)));
                return true;
            }
            if depth == BITS {
                self.put(at, depth, page);
                return false;
            }
            if let Some(page) = page {
                let (lower, upper) = page.split(used, new.hash_source);
                let low = low(at, depth);
                self.put(low, depth + 1, page_of(lower));
                self.put(low | 1 << depth, depth + 1, page_of(upper));
            }
        }
    }

    /// Splits by the next hash bit: clear, set. No page may have depth 0.
    fn split(&self) -> (Self, Self) {
        let half = |odd: usize| {
            let from = |at: usize| (at << 1 | odd) % PLACES;
            Self {
                depth: self.depth + 1,
                depths: std::array::from_fn(|at| self.depths[from(at)] - 1),
                pages: std::array::from_fn(|at| self.pages[from(at)].clone()),
            }
        };
        (half(0), half(1))
    }

    fn change(
        &mut self,
        hash: u64,
        hash_source: &dyn HashSource,
        change: &mut dyn FnMut(&mut Page),
    ) {
        let at = self.place(hash);
        let mut page = self.take_out(at);
        if let Some(page) = &mut page {
            change(Arc::make_mut(page));
        }
        self.put(at, self.depths[at], page.filter(|page| !page.is_empty()));
        self.join(at, hash_source);
    }

    fn follow(&mut self, newer: &Self, hash: u64) {
        let at = self.place(hash);
        if self.depths[at] == newer.depths[at] {
            self.put(at, self.depths[at], newer.pages[at].clone());
        } else {
            self.clone_from(newer);
        }
    }

    /// Joins the page at an index with its other half, repeatedly, while they are small.
    fn join(&mut self, at: usize, hash_source: &dyn HashSource) {
        loop {
            let depth = self.depths[at];
            let Some(upper) = depth.checked_sub(1) else { return };
            let other = at ^ 1 << upper;
            if self.depths[other] != depth || self.items(at) + self.items(other) > Page::JOIN_MAX {
                return;
            }
            let joined = match (self.take_out(at), self.take_out(other)) {
                (Some(mut left), Some(right)) => {
                    Arc::make_mut(&mut left).join(&right, hash_source);
                    Some(left)
                }
                (left, right) => left.or(right),
            };
            self.put(at, upper, joined);
        }
    }

    fn items(&self, at: usize) -> usize {
        self.pages[at].as_ref().map_or(0, |page| page.len())
    }

    /// Takes a page out of all its indexes, so that it does not share itself.
    fn take_out(&mut self, at: usize) -> Option<Arc<Page>> {
        let depth = self.depths[at];
        let all = self.pages[low(at, depth)..].iter_mut().step_by(1 << depth);
        all.fold(None, |_, page| page.take())
    }

    /// Stores a page at all its indexes.
    fn put(&mut self, at: usize, depth: u8, page: Option<Arc<Page>>) {
        for place in (low(at, depth)..PLACES).step_by(1 << depth) {
            self.depths[place] = depth;
            self.pages[place].clone_from(&page);
        }
    }

    fn place(&self, hash: u64) -> usize {
        place_below(self.depth, hash)
    }
}

/// Index of a hash's page in a chunk of this depth.
#[inline]
fn place_below(depth: u8, hash: u64) -> usize {
    usize::from((hash >> depth).to_le_bytes()[0]) % PLACES
}

/// First index of the item at `at`.
const fn low(at: usize, depth: u8) -> usize {
    at & ((1 << depth) - 1)
}

fn page_of(page: Page) -> Option<Arc<Page>> {
    (!page.is_empty()).then(|| Arc::new(page))
}
