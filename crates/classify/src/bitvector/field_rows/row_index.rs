//! The row of a field's value: a table for bytes, pages for up to 16 bits, a search among interval
//! ends for up to 32, and a [trie](super::patricia) for two words.

use std::collections::HashMap;

use super::FieldLocation;
use super::patricia::PatriciaTrie;

/// Maps the values of one field to rows.
#[derive(Clone, Debug)]
pub(super) enum RowIndex {
    /// Up to 8 bits.
    Direct(DirectIndex),
    /// Up to 16 bits.
    Paged(Paged),
    /// Up to 32 bits.
    Sorted(SortedIndex),
    /// Two words.
    Trie(PatriciaTrie),
}

/// A row for each value.
#[derive(Clone, Debug)]
pub(super) struct DirectIndex {
    pub(super) bits: Bits,
    pub(super) numbers: Box<[u16; 256]>,
}

/// Pages of values that share their upper bits, with a row for each value.
#[derive(Clone, Debug)]
pub(super) struct Paged {
    pub(super) bits: Bits,
    /// Page number by upper bits; equal pages are stored once.
    pub(super) pages: Box<[u16]>,
    pub(super) numbers: Box<[u16]>,
}

/// Intervals in ascending order.
#[derive(Clone, Debug)]
pub(super) struct SortedIndex {
    pub(super) bits: Bits,
    pub(super) levels: SearchTree,
    pub(super) numbers: Box<[u16]>,
}

/// A range of bits in one word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits {
    pub(super) word: usize,
    shift: u32,
    mask: u32,
}

/// A B-tree of interval ends with [`FANOUT`] values per node. A search reads one node per level.
#[derive(Clone, Debug)]
pub(super) struct SearchTree {
    pub(super) nodes: Box<[SearchNode]>,
    /// Index of the first node of each level, from the root down.
    pub(super) starts: Box<[usize]>,
}

/// Ascending values.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct SearchNode([u32; FANOUT]);

/// Log2 of a page's values. Small pages have many duplicates, and those that differ stay in the CPU
/// cache.
pub(super) const PAGE: u32 = 4;
const VALUES: usize = 1 << PAGE;
/// Values compared together.
pub(super) const FANOUT: usize = 16;
/// Upper limit of levels: more values have more rows than 16 bits can number.
pub(super) const MAX_LEVELS: usize = 4;

impl RowIndex {
    /// `None` if a row has no number, the ends are not ascending up to the highest value, or there
    /// are too many.
    pub(super) fn of(
        place: FieldLocation,
        ends: &[(u128, usize)],
        number: impl Fn(usize) -> Option<u16>,
    ) -> Option<Self> {
        let numbered = ends.iter().map(|(end, row)| Some((*end, number(*row)?)));
        let ends: Vec<_> = numbered.collect::<Option<_>>()?;
        let is_whole = ends.last().is_some_and(|(end, _)| *end == place.highest());
        if !is_whole || !ends.is_sorted_by(|one, other| one.0 < other.0) {
            return None;
        }
        match place {
            FieldLocation::Bits { word, shift, bits } => {
                let bits = Bits { word, shift, mask: u32::MAX.checked_shr(32 - bits).unwrap_or(0) };
                match bits.mask {
                    ..0x100 => Some(Self::Direct(DirectIndex::of(bits, &ends))),
                    0x100..0x1_0000 => Some(Self::Paged(Paged::of(bits, &ends))),
                    _ => SortedIndex::of(bits, &ends).map(Self::Sorted),
                }
            }
            FieldLocation::Words(word) => PatriciaTrie::of(word, &ends).map(Self::Trie),
        }
    }

    /// The row selected by a key.
    pub(super) fn number(&self, key: &[u64]) -> u16 {
        match self {
            Self::Direct(byte) => byte.number(key),
            Self::Paged(paged) => paged.number(key),
            Self::Sorted(narrow) => narrow.number(key),
            Self::Trie(wide) => wide.number(key),
        }
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Direct(DirectIndex { numbers, .. }) => size_of_val(&**numbers),
            Self::Paged(Paged { pages, numbers, .. }) => {
                size_of_val(&**pages) + size_of_val(&**numbers)
            }
            Self::Sorted(SortedIndex { levels, numbers, .. }) => {
                levels.memory() + size_of_val(&**numbers)
            }
            Self::Trie(patricia) => patricia.memory(),
        }
    }
}

/// Maps ascending values to rows, given the interval ends.
fn rows_in_order(ends: &[(u128, u16)]) -> impl FnMut(usize) -> u16 {
    let mut rest = ends.iter().peekable();
    move |value| {
        while rest.next_if(|(end, _)| *end < value as u128).is_some() {}
        rest.peek().map_or(0, |(_, number)| *number)
    }
}

impl DirectIndex {
    fn of(bits: Bits, ends: &[(u128, u16)]) -> Self {
        Self { bits, numbers: Box::new(std::array::from_fn(rows_in_order(ends))) }
    }

    #[inline]
    fn number(&self, key: &[u64]) -> u16 {
        self.numbers[self.bits.of(key) as usize % self.numbers.len()]
    }
}

impl Paged {
    fn of(bits: Bits, ends: &[(u128, u16)]) -> Self {
        let mut number = rows_in_order(ends);
        let (mut known, mut numbers) = (HashMap::new(), Vec::new());
        let mut page = |at: usize| {
            let page: [u16; VALUES] = std::array::from_fn(|low| number(at * VALUES + low));
            let number = known.entry(page).or_insert_with(|| {
                numbers.extend(page);
                numbers.len() / VALUES - 1
            });
            // There are fewer pages than values.
            u16::try_from(*number).unwrap_or(0)
        };
        let pages = (0..=bits.mask as usize >> PAGE).map(&mut page).collect();
        Self { bits, pages, numbers: numbers.into() }
    }

    fn number(&self, key: &[u64]) -> u16 {
        let value = self.bits.of(key) as usize;
        let page = self.pages.get(value >> PAGE).map_or(0, |page| usize::from(*page));
        self.numbers.get(page * VALUES + value % VALUES).copied().unwrap_or(0)
    }
}

impl SortedIndex {
    fn of(bits: Bits, ends: &[(u128, u16)]) -> Option<Self> {
        let value = |end: u128| u32::try_from(end).unwrap_or(u32::MAX);
        let mut values: Vec<_> = ends.iter().map(|(end, _)| value(*end)).collect();
        *values.last_mut()? = u32::MAX;
        let levels = SearchTree::of(values)?;
        Some(Self { bits, levels, numbers: ends.iter().map(|(_, number)| *number).collect() })
    }

    fn number(&self, key: &[u64]) -> u16 {
        self.numbers.get(self.levels.find(self.bits.of(key))).copied().unwrap_or(0)
    }
}

impl Bits {
    /// The field's value in a key; missing words are 0.
    pub(super) fn of(self, key: &[u64]) -> u32 {
        self.inside(key.get(self.word).copied().unwrap_or(0))
    }

    /// The field's value in a word.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "of what is left no more counts")]
    pub(super) const fn inside(self, word: u64) -> u32 {
        (word >> self.shift) as u32 & self.mask
    }
}

impl SearchTree {
    /// Builds the tree of ascending values, the last of which is the highest; `None` if they are
    /// too many.
    fn of(mut values: Vec<u32>) -> Option<Self> {
        let mut levels: Vec<Vec<SearchNode>> = Vec::with_capacity(MAX_LEVELS);
        while levels.last().is_none_or(|level| level.len() > 1) {
            let at = |part: &[u32], at: usize| part.get(at).copied().unwrap_or(u32::MAX);
            let node = |part: &[u32]| SearchNode(std::array::from_fn(|value| at(part, value)));
            let level: Vec<_> = values.chunks(FANOUT).map(node).collect();
            values = level.iter().map(|node| node.0[FANOUT - 1]).collect();
            levels.push(level);
        }
        if levels.len() > MAX_LEVELS {
            return None;
        }
        levels.reverse();
        let starts = levels.iter().scan(0, |start, level| {
            *start += level.len();
            Some(*start - level.len())
        });
        Some(Self { starts: starts.collect(), nodes: levels.concat().into() })
    }

    /// Number of values below `value`.
    fn find(&self, value: u32) -> usize {
        self.starts.iter().fold(0, |found, start| {
            let below = |node: &SearchNode| node.0.iter().filter(|end| **end < value).count();
            found * FANOUT + self.nodes.get(start + found).map_or(0, below)
        })
    }

    fn memory(&self) -> usize {
        size_of_val(&*self.nodes) + size_of_val(&*self.starts)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
pub(super) const fn halves(value: u128) -> [u64; 2] {
    [(value >> 64) as u64, value as u64]
}
