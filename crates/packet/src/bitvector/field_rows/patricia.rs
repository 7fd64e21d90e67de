//! Which row a value of two words stands for, by a Patricia trie: it looks at those bits alone that part stretches, many at a time, and comes to a leaf
//! which no other resembles more. How many of its highest bits a value has in common with the leaf's tells the row.

mod grow;

use grow::{BinaryTrie, Bits, build_trie};

/// A trie.
#[derive(Clone, Debug)]
pub(super) struct PatriciaTrie {
    /// Where the first word stands in keys.
    pub(super) word: usize,
    /// The root first.
    pub(super) forks: Box<[Fork]>,
    /// For each fork, one for each value of its bits: the number of a leaf, or of another fork counted from the last leaf on.
    pub(super) children: Box<[u16]>,
    pub(super) leaves: Box<[Leaf]>,
}

/// Some bits of a word; none if there is but one leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fork {
    pub(super) mask: u64,
    /// Where its ways begin.
    pub(super) first: u32,
    /// 0 or 1.
    pub(super) word: u32,
}

/// A value, and the rows of all that resemble it more than other leaves' values.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Leaf {
    pub(super) value: [u64; 2],
    /// From how many equal bits on the next row is that of a value, in order.
    pub(super) lengths: [u8; LEAF_ROWS],
    pub(super) rows: [u16; LEAF_ROWS],
}

/// Rows of a leaf at the most.
const LEAF_ROWS: usize = 16;
/// No value has so many bits.
const NEVER: u8 = u8::MAX;
/// Bits of a root, and of another fork, at the most: more take more memory than ways that are shorter are worth.
const ROOT_BITS: u32 = 14;
const INNER_BITS: u32 = 10;
/// So many ways, as a power of two, for each leaf.
const CHILDREN_PER_LEAF: u32 = 5;

/// A trie in the making.
#[derive(Default)]
struct TrieBuilder {
    forks: Vec<Fork>,
    children: Vec<u16>,
    leaves: Vec<Leaf>,
}

impl PatriciaTrie {
    /// Of stretches in order, each with its last value and its number, of which the last is up to the highest value; none if they are too many, or
    /// too many of them are inside each other.
    pub(super) fn of(word: usize, ends: &[(u128, u16)]) -> Option<Self> {
        let tree = build_trie(ends)?;
        // The root's number, which is that behind the last leaf.
        u16::try_from(tree.leaves()).ok()?;
        let mut builder = TrieBuilder::default();
        builder.fork(&tree, tree.leaves(), ROOT_BITS)?;
        let TrieBuilder { forks, children, leaves } = builder;
        Some(Self { word, forks: forks.into(), children: children.into(), leaves: leaves.into() })
    }

    /// What stands in a key; in a word that it does not have, zeros.
    fn words_of(&self, key: &[u64]) -> [u64; 2] {
        [self.word, self.word + 1].map(|at| key.get(at).copied().unwrap_or(0))
    }

    /// The row that a key stands for.
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
    /// With rows, each from so many equal bits on; none if they are too many.
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
    /// The number of what stands for a tree, where there are so many leaves in all.
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

    /// A fork of up to so many bits; its number among forks.
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
