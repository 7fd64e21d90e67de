//! Maps two-word values to rows with a Patricia trie. Forks test only bits that separate intervals,
//! many at a time, and lead to the most similar leaf. The length of the common prefix with the
//! leaf's value selects the row.

mod grow;

use grow::{BinaryTrie, Bits, build_trie};

/// A Patricia trie.
#[derive(Clone, Debug)]
pub(super) struct PatriciaTrie {
    /// Index of the first word in keys.
    pub(super) word: usize,
    /// Root first.
    pub(super) forks: Box<[Fork]>,
    /// For each fork, one child per value of its bits: a leaf number, or a fork number offset by
    /// the number of leaves.
    pub(super) children: Box<[u16]>,
    pub(super) leaves: Box<[Leaf]>,
}

/// Bits of one word; none if there is only one leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fork {
    pub(super) mask: u64,
    /// Index of its first child.
    pub(super) first: u32,
    /// 0 or 1.
    pub(super) word: u32,
}

/// A value, and the rows of all values that are closest to it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Leaf {
    pub(super) value: [u64; 2],
    /// Common prefix lengths from which on the next row applies, ascending.
    pub(super) lengths: [u8; LEAF_ROWS],
    pub(super) rows: [u16; LEAF_ROWS],
}

/// Upper limit of rows in a leaf.
const LEAF_ROWS: usize = 16;
/// Longer than any common prefix.
const NEVER: u8 = u8::MAX;
/// Upper limit of bits tested by the root and by other forks: wider forks cost more memory than
/// shorter paths are worth.
const ROOT_BITS: u32 = 14;
const INNER_BITS: u32 = 10;
/// Log2 of the children allowed per leaf.
const CHILDREN_PER_LEAF: u32 = 5;

/// Builds a trie.
#[derive(Default)]
struct TrieBuilder {
    forks: Vec<Fork>,
    children: Vec<u16>,
    leaves: Vec<Leaf>,
}

impl PatriciaTrie {
    /// Builds the trie of ascending intervals, each with its last value and row, up to the highest
    /// value. `None` if they are too many or nest too deeply.
    pub(super) fn of(word: usize, ends: &[(u128, u16)]) -> Option<Self> {
        let tree = build_trie(ends)?;
        // The root's number follows the last leaf's.
        u16::try_from(tree.leaves()).ok()?;
        let mut builder = TrieBuilder::default();
        builder.fork(&tree, tree.leaves(), ROOT_BITS)?;
        let TrieBuilder { forks, children, leaves } = builder;
        Some(Self { word, forks: forks.into(), children: children.into(), leaves: leaves.into() })
    }

    /// The field's words in a key; missing words are 0.
    fn words_of(&self, key: &[u64]) -> [u64; 2] {
        [self.word, self.word + 1].map(|at| key.get(at).copied().unwrap_or(0))
    }

    /// The row selected by a key.
    pub(super) fn number(&self, key: &[u64]) -> u16 {
        let words = self.words_of(key);
        let mut at = self.leaves.len();
        while let Some(fork) = at.checked_sub(self.leaves.len()) {
            let Some(fork) = self.forks.get(fork) else { return 0 };
            let bits = Bits(fork.mask).of(words[fork.word as usize % 2]);
            at = self.children.get(fork.first as usize + bits).copied().unwrap_or(0).into();
        }
        self.leaves.get(at).map_or(0, |leaf| leaf.number(words))
    }

    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.forks) + size_of_val(&*self.children) + size_of_val(&*self.leaves)
    }
}

impl Leaf {
    /// Builds a leaf; each row applies from a common prefix length on. `None` if there are too many
    /// rows.
    fn of(value: u128, rows: &[(u32, u16)]) -> Option<Self> {
        if rows.len() > LEAF_ROWS {
            return None;
        }
        let length =
            |at: usize| rows.get(at + 1).and_then(|(length, _)| u8::try_from(*length).ok());
        Some(Self {
            value: super::row_index::halves(value),
            lengths: std::array::from_fn(|at| length(at).unwrap_or(NEVER)),
            rows: std::array::from_fn(|at| rows.get(at).map_or(0, |(_, row)| *row)),
        })
    }

    fn number(&self, words: [u64; 2]) -> u16 {
        let equal = match words[0] ^ self.value[0] {
            0 => u64::BITS + (words[1] ^ self.value[1]).leading_zeros(),
            high => high.leading_zeros(),
        };
        let passed = self.lengths.iter().filter(|length| u32::from(**length) <= equal).count();
        self.rows.get(passed).copied().unwrap_or(0)
    }
}

impl TrieBuilder {
    /// Adds a subtree and returns its number; `leaves` is the number of all leaves.
    fn add(&mut self, tree: &BinaryTrie, leaves: usize) -> Option<u16> {
        let number = match tree {
            BinaryTrie::Fork { .. } => leaves + self.fork(tree, leaves, INNER_BITS)?,
            BinaryTrie::Leaf(value, rows) => {
                self.leaves.push(Leaf::of(*value, rows)?);
                self.leaves.len() - 1
            }
        };
        u16::try_from(number).ok()
    }

    /// Adds a fork that tests up to `most` bits and returns its number among forks.
    fn fork(&mut self, tree: &BinaryTrie, leaves: usize, most: u32) -> Option<usize> {
        let (word, bits) = tree.choose_bits(most);
        let (children, ends) = tree.children(word, bits);
        let (fork, first) = (self.forks.len(), self.children.len());
        self.forks.push(Fork { mask: bits.0, first: u32::try_from(first).ok()?, word });
        self.children.resize(first + children.len(), 0);
        let numbers = ends.into_iter().map(|end| self.add(end, leaves));
        let numbers: Vec<_> = numbers.collect::<Option<_>>()?;
        for (at, child) in (first..).zip(children) {
            self.children[at] = numbers[child];
        }
        Some(fork)
    }
}

#[cfg(test)]
mod tests;
