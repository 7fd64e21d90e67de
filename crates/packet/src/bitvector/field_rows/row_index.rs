//! Which row a field's value stands for: looked up at once where the field is a byte, in pages where it is short, and otherwise searched for among the last values of each
//! row's stretches, or of two words found by a [trie](super::patricia).

use std::collections::HashMap;

use super::FieldLocation;
use super::patricia::PatriciaTrie;

/// The rows of a field's values.
#[derive(Clone, Debug)]
pub(super) enum RowIndex {
    /// Of up to eight bits.
    Direct(DirectIndex),
    /// Of up to 16.
    Paged(Paged),
    /// Of up to 32.
    Sorted(SortedIndex),
    /// Of two words.
    Trie(PatriciaTrie),
}

/// A row for each value.
#[derive(Clone, Debug)]
pub(super) struct DirectIndex {
    pub(super) bits: Bits,
    pub(super) numbers: Box<[u16; 256]>,
}

/// A page for all values that differ in their lowest bits only, with a row for each.
#[derive(Clone, Debug)]
pub(super) struct Paged {
    pub(super) bits: Bits,
    /// Which page, of all that are different.
    pub(super) pages: Box<[u16]>,
    pub(super) numbers: Box<[u16]>,
}

/// Stretches in order.
#[derive(Clone, Debug)]
pub(super) struct SortedIndex {
    pub(super) bits: Bits,
    pub(super) levels: SearchTree,
    pub(super) numbers: Box<[u16]>,
}

/// Some bits of a word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits {
    pub(super) word: usize,
    shift: u32,
    mask: u32,
}

/// Values in order, [`FANOUT`] side by side, and above them the last value of each. A search goes down one node for each level.
#[derive(Clone, Debug)]
pub(super) struct SearchTree {
    pub(super) nodes: Box<[SearchNode]>,
    /// Where the nodes of each level begin, from the top on.
    pub(super) starts: Box<[usize]>,
}

/// Values in order.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct SearchNode([u32; FANOUT]);

/// Values of a page, as a power of two: pages of few values are few different ones, which stay near the processor.
pub(super) const PAGE: u32 = 4;
const VALUES: usize = 1 << PAGE;
/// Values that are compared together.
pub(super) const FANOUT: usize = 16;
/// Levels at the most; more values have more rows than can be numbered.
pub(super) const MAX_LEVELS: usize = 4;

impl RowIndex {
    /// None if `number` has none for a row, ends are not in order up to the highest value, or there are too many.
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

    /// The row that a key stands for.
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

/// The rows of values that come in order, of stretches that end there.
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
    /// What stands in a key; in a word that it does not have, zeros.
    pub(super) fn of(self, key: &[u64]) -> u32 {
        self.inside(key.get(self.word).copied().unwrap_or(0))
    }

    /// What stands in the word.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "of what is left no more counts")]
    pub(super) const fn inside(self, word: u64) -> u32 {
        (word >> self.shift) as u32 & self.mask
    }
}

impl SearchTree {
    /// Of values in order, of which the last is the highest; none if they are too many.
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

    /// How many values are below one.
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
