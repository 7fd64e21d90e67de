//! Which tuples may know an address: the union, as one word, of the tuples that have a prefix around it.
//!
//! A trie of one cache line per cell. A cell is a coarse prefix (of 8, 16 or 24 bits, say), found by hash; in it, each finer prefix
//! has one of eight words, by hash again. Reading an address costs one line per cell length in use. What shares a word only costs a
//! probe in vain. Taking a prefix out leaves its word as it is: whoever owns the sieve builds a new one before that matters.

use arrayvec::ArrayVec;

use super::ternary::{Words, halves, mix};
use super::tree::{Page, Tree};

/// Tuples by source or destination prefix.
#[derive(Clone, Debug)]
pub(crate) struct Sieve {
    /// Tuples that take any address.
    any: u64,
    groups: ArrayVec<Group, GROUPS>,
    tree: Tree<Cells>,
    /// Words made non-zero, and how many may be before it is time for a larger one.
    filled: usize,
    room: usize,
}

/// Prefix lengths that share their cells.
#[derive(Clone, Debug)]
struct Group {
    /// Bits of the address that name the cell.
    bits: u8,
    /// Prefix lengths in use.
    lens: Vec<Len>,
}

/// One prefix length.
#[derive(Clone, Copy, Debug)]
struct Len {
    mask: [u64; 2],
    len: u8,
    /// The tuples that have it.
    tuples: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Cell([u64; WORDS]);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cells([Cell; CELLS]);

const GROUPS: usize = 5;
const WORDS: usize = 8;
const CELLS: usize = 16;
/// Of a hundred words, how many are filled before a sieve is too small.
const FULL_PERCENT: usize = 50;
/// A sieve for fewer prefixes is warm enough.
const WARM: usize = 16_384;

impl Sieve {
    /// A sieve with room for `prefixes`.
    pub(crate) fn with_room(prefixes: usize) -> Self {
        let words = (prefixes * 100 / FULL_PERCENT).max(CELLS * WORDS).next_power_of_two();
        let pages = words / (CELLS * WORDS);
        Self {
            any: 0,
            groups: ArrayVec::new(),
            tree: Tree::spread(pages.trailing_zeros()),
            filled: 0,
            room: words * FULL_PERCENT / 100,
        }
    }

    /// Whether more has gone in than it had room for.
    pub(crate) fn is_full(&self) -> bool {
        self.filled > self.room
    }

    /// Makes a tuple known: its bit, and the length of its prefixes.
    pub(crate) fn admit<W: Words>(&mut self, tuple: u64, len: u8) {
        let len = coarse::<W>(len);
        if len == 0 {
            self.any |= tuple;
            return;
        }
        let bits = W::CELLS.iter().copied().filter(|bits| *bits <= len).max().unwrap_or(0);
        if !self.groups.iter().any(|group| group.bits == bits) {
            // A family has no more than this many cell lengths.
            let _ = self.groups.try_push(Group { bits, lens: Vec::new() });
        }
        let group = self.groups.iter_mut().find(|group| group.bits == bits);
        let Some(group) = group else { return };
        match group.lens.iter_mut().find(|other| other.len == len) {
            Some(known) => known.tuples |= tuple,
            None => group.lens.push(Len::new(len, tuple)),
        }
    }

    /// Forgets a tuple, so that its bit can be another's.
    pub(crate) fn dismiss(&mut self, tuple: u64) {
        self.any &= !tuple;
        for group in &mut self.groups {
            group.lens.iter_mut().for_each(|len| len.tuples &= !tuple);
            group.lens.retain(|len| len.tuples != 0);
        }
        self.groups.retain(|group| !group.lens.is_empty());
    }

    /// Notes that a tuple has the prefix of `len` bits in `address`.
    pub(crate) fn note<W: Words>(&mut self, tuple: u64, len: u8, address: [u64; 2]) {
        let len = coarse::<W>(len);
        if len == 0 {
            return;
        }
        let bits = W::CELLS.iter().copied().filter(|bits| *bits <= len).max().unwrap_or(0);
        let hash = cell(address, bits);
        let word = Len::new(len, tuple).word(address);
        let new = self.tree.add(hash, |cells| {
            let word = &mut cells.0[within(hash)].0[word];
            let new = *word == 0;
            *word |= tuple;
            new
        });
        self.filled += usize::from(new);
    }

    /// The tuples that may have a prefix around an address.
    #[inline]
    pub(crate) fn tuples(&self, address: [u64; 2]) -> u64 {
        let mut all = self.any;
        for group in &self.groups {
            let Some(cell) = self.cell(address, group) else { continue };
            for len in &group.lens {
                all |= cell.0[len.word(address)] & len.tuples;
            }
        }
        all
    }

    /// Fetches what [`Sieve::tuples`] will read.
    #[inline]
    pub(crate) fn prefetch(&self, address: [u64; 2]) {
        if self.room < WARM {
            return;
        }
        for group in self.groups.iter().filter(|group| group.bits > 8) {
            if let Some(cell) = self.cell(address, group) {
                uxfrm_packet::prefetch(cell);
            }
        }
    }

    pub(crate) fn memory(&self) -> usize {
        self.tree.memory()
    }

    #[inline]
    fn cell(&self, address: [u64; 2], group: &Group) -> Option<&Cell> {
        let hash = cell(address, group.bits);
        self.tree.page(hash).map(|cells| &cells.0[within(hash)])
    }
}

/// The number of pages is fixed.
impl Page for Cells {
    const FEW: usize = 0;

    fn is_full(&self) -> bool {
        false
    }

    fn len(&self) -> usize {
        CELLS
    }

    fn split(&mut self, _: u32) -> Self {
        *self
    }

    fn join(&mut self, _: &Self) {}
}

/// Prefix lengths are told apart in steps: reading fewer words is worth a probe in vain now and then.
const fn coarse<W: Words>(len: u8) -> u8 {
    let step = if W::BITS == 32 { 4 } else { 8 };
    len / step * step
}

/// The hash of an address's cell.
#[inline]
fn cell(address: [u64; 2], bits: u8) -> u64 {
    let coarse = address[0].checked_shr(64 - u32::from(bits)).unwrap_or(0);
    mix(coarse ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93 ^ u64::from(bits) << 32)
}

/// The cell in its page, by bits that the tree does not use.
#[inline]
fn within(hash: u64) -> usize {
    (hash >> 60) as usize % CELLS
}

impl Len {
    fn new(len: u8, tuples: u64) -> Self {
        let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
        Self { mask: halves(mask), len, tuples }
    }

    /// The word of this prefix of an address in its cell.
    #[inline]
    fn word(&self, address: [u64; 2]) -> usize {
        let (high, low) = (address[0] & self.mask[0], address[1] & self.mask[1]);
        let mixed =
            (high ^ low.rotate_left(27) ^ u64::from(self.len)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 61) as usize % WORDS
    }
}
