//! Builds a binary trie of intervals, and chooses which of its bits are tested together.

/// A binary trie.
#[derive(Debug)]
pub(super) enum BinaryTrie {
    /// A value, and the row for each common prefix length from which on it applies.
    Leaf(u128, Vec<(u32, u16)>),
    Fork {
        /// Bit index from the most significant bit.
        bit: u32,
        leaves: usize,
        /// Subtrees for 0 and 1.
        halves: Box<[Self; 2]>,
    },
}

/// A set of bits of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bits(pub(super) u64);

/// A block of values with a common prefix.
#[derive(Clone, Copy)]
struct PrefixBlock {
    first: u128,
    /// Prefix length.
    length: u32,
    /// Interval boundaries inside.
    from: usize,
    to: usize,
}

/// Start of each interval but the first, and the rows of all.
struct Intervals {
    starts: Vec<u128>,
    rows: Vec<u16>,
}

/// Builds the trie of ascending intervals, given their last values; `None` if there is no interval.
pub(super) fn build_trie(ends: &[(u128, u16)]) -> Option<BinaryTrie> {
    let (_, first) = ends.first()?;
    let mut intervals = Intervals { starts: Vec::new(), rows: vec![*first] };
    for pair in ends.windows(2) {
        let [(before, row), (_, next)] = pair else { continue };
        // Merges neighbours with equal rows.
        if row != next {
            intervals.starts.push(before + 1);
            intervals.rows.push(*next);
        }
    }
    let whole = PrefixBlock { first: 0, length: 0, from: 0, to: intervals.starts.len() };
    Some(intervals.grow(whole, Vec::new()))
}

impl Intervals {
    /// Builds the subtree of a block; values that diverge earlier have these rows.
    fn grow(&self, mut block: PrefixBlock, mut rows: Vec<(u32, u16)>) -> BinaryTrie {
        if block.from == block.to {
            return BinaryTrie::Leaf(block.first, vec![(0, self.rows[block.from])]);
        }
        loop {
            let [low, high] = self.halves(block);
            let row = |half: PrefixBlock| self.rows[half.from];
            let length = block.length;
            block = match (low.is_uniform(), high.is_uniform()) {
                (true, true) => {
                    // The leaf takes the half whose row differs from the shorter prefixes' row,
                    // which saves a step.
                    let is_low = rows.last().is_some_and(|(_, last)| *last == row(high));
                    let (here, other) = if is_low { (low, high) } else { (high, low) };
                    push_row(&mut rows, length, row(other));
                    push_row(&mut rows, length + 1, row(here));
                    return BinaryTrie::Leaf(here.first, rows);
                }
                (true, false) => {
                    push_row(&mut rows, length, row(low));
                    high
                }
                (false, true) => {
                    push_row(&mut rows, length, row(high));
                    low
                }
                (false, false) => {
                    let halves = [self.grow(low, rows.clone()), self.grow(high, rows)];
                    let leaves = halves.iter().map(BinaryTrie::leaves).sum();
                    return BinaryTrie::Fork { bit: length, leaves, halves: Box::new(halves) };
                }
            };
        }
    }

    fn halves(&self, PrefixBlock { first, length, from, to }: PrefixBlock) -> [PrefixBlock; 2] {
        let middle = first | 1 << (127 - length);
        let at = from + self.starts[from..to].partition_point(|start| *start < middle);
        let behind = at + usize::from(at < to && self.starts[at] == middle);
        let length = length + 1;
        [
            PrefixBlock { first, length, from, to: at },
            PrefixBlock { first: middle, length, from: behind, to },
        ]
    }
}

/// Appends a row that applies from a common prefix length on.
fn push_row(rows: &mut Vec<(u32, u16)>, length: u32, row: u16) {
    if rows.last().is_none_or(|(_, last)| *last != row) {
        rows.push((length, row));
    }
}

impl PrefixBlock {
    /// Whether the whole block lies in one interval.
    const fn is_uniform(self) -> bool {
        self.from == self.to
    }
}

impl BinaryTrie {
    pub(super) fn leaves(&self) -> usize {
        match self {
            Self::Leaf(..) => 1,
            Self::Fork { leaves, .. } => *leaves,
        }
    }

    /// Chooses up to `most` bits of one word to test first, each time the one that separates most
    /// leaves.
    pub(super) fn choose_bits(&self, most: u32) -> (u32, Bits) {
        let Self::Fork { bit, leaves, .. } = self else { return (0, Bits(0)) };
        let most = most.min(leaves.next_power_of_two().ilog2() + super::CHILDREN_PER_LEAF);
        let (word, mut bits) = (bit / u64::BITS, Bits(0));
        while bits.0.count_ones() < most {
            let mut parted = [0; u64::BITS as usize];
            self.visit_ends(word, bits, &mut |tree| {
                if let Self::Fork { bit, leaves, .. } = tree
                    && bit / u64::BITS == word
                {
                    parted[*bit as usize % parted.len()] += leaves;
                }
            });
            let Some((bit, _)) = (0..)
                .zip(parted)
                .filter(|(_, leaves)| *leaves > 0)
                .max_by_key(|(_, leaves)| *leaves)
            else {
                break;
            };
            bits.0 |= Bits::at(bit).0;
        }
        (word, bits)
    }

    /// Visits the subtrees that are reached by testing some bits of a word, low halves first.
    fn visit_ends<'a>(&'a self, word: u32, bits: Bits, visit: &mut impl FnMut(&'a Self)) {
        match self {
            Self::Fork { bit, halves, .. } if bits.has(word, *bit) => {
                halves.iter().for_each(|half| half.visit_ends(word, bits, visit));
            }
            Self::Leaf(..) | Self::Fork { .. } => visit(self),
        }
    }

    /// For each value of the tested bits, the index of the subtree reached; and these subtrees.
    pub(super) fn children(&self, word: u32, bits: Bits) -> (Vec<usize>, Vec<&Self>) {
        let values = 1 << bits.0.count_ones();
        let (mut children, mut ends) = (vec![0; values], Vec::new());
        let all = (0..).take(values).map(|value| bits.deposit(value)).enumerate().collect();
        self.distribute(word, bits, all, &mut |values, end| {
            values.into_iter().for_each(|(value, _)| children[value] = ends.len());
            ends.push(end);
        });
        (children, ends)
    }

    /// Passes each group of values with the subtree that they reach to `visit`.
    fn distribute<'a>(
        &'a self,
        word: u32,
        bits: Bits,
        values: Vec<(usize, u64)>,
        visit: &mut impl FnMut(Vec<(usize, u64)>, &'a Self),
    ) {
        match self {
            Self::Fork { bit, halves, .. } if bits.has(word, *bit) => {
                let is_high = |(_, value): &(usize, u64)| value & Bits::at(*bit).0 != 0;
                let (high, low) = values.into_iter().partition(is_high);
                for (half, values) in halves.iter().zip([low, high]) {
                    half.distribute(word, bits, values, visit);
                }
            }
            Self::Leaf(..) | Self::Fork { .. } => visit(values, self),
        }
    }
}

impl Bits {
    /// A single bit, counted from the most significant.
    const fn at(bit: u32) -> Self {
        Self(1 << (u64::BITS - 1 - bit % u64::BITS))
    }

    /// Whether this set of bits of `word` contains a bit of the two-word value.
    const fn has(self, word: u32, bit: u32) -> bool {
        bit / u64::BITS == word && self.0 & Self::at(bit).0 != 0
    }

    /// Extracts the bits (as `pext` does).
    pub(super) fn of(self, word: u64) -> usize {
        let (mut left, mut found) = (self.0, 0);
        while left != 0 {
            found = found << 1 | usize::from(word & Self::highest(left) != 0);
            left &= !Self::highest(left);
        }
        found
    }

    /// Deposits a value into the bits (as `pdep` does).
    fn deposit(self, mut value: u64) -> u64 {
        let (mut left, mut word) = (self.0, 0);
        while left != 0 {
            let lowest = left & left.wrapping_neg();
            word |= if value & 1 == 0 { 0 } else { lowest };
            (left, value) = (left & !lowest, value >> 1);
        }
        word
    }

    const fn highest(bits: u64) -> u64 {
        1 << bits.ilog2()
    }
}
