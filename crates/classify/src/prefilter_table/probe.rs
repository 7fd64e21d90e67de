//! Probes several prefilter tables for a batch of keys, and lists which table each key must visit.

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::mem::MaybeUninit;

use super::{NO_RANK, PrefilterTable, rank_in};

/// Keys of a batch.
pub(crate) const PROBE_KEYS: usize = 32;
/// Upper limit of tables.
pub(crate) const MAX_TABLES: usize = 16;
/// 32-bit lanes of a vector.
const LANES: usize = 16;

/// Ranks of up to [`PROBE_KEYS`] keys, table by table.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct PrefilterProbe {
    tables: usize,
    is_fast: bool,
    /// For each key the lowest rank, with its table in the lowest eight bits.
    best: KeyRow,
    /// By table that was queried.
    ranks: [MaybeUninit<KeyRow>; MAX_TABLES],
    slots: [MaybeUninit<KeyRow>; MAX_TABLES],
}

/// One value for each key.
type KeyRow = [u32; PROBE_KEYS];

/// Pairs of table and key to visit: the key in the lowest eight bits, the table above.
#[derive(Debug)]
pub(crate) struct ProbeTargets {
    count: usize,
    /// The first `count` are initialized.
    targets: [MaybeUninit<u32>; CAPACITY],
}

/// Room for all pairs, and for what the last vector store writes beyond.
const CAPACITY: usize = PROBE_KEYS * MAX_TABLES + LANES;

impl Default for PrefilterProbe {
    #[inline]
    fn default() -> Self {
        Self {
            tables: 0,
            is_fast: has_avx512(),
            best: [u32::MAX; PROBE_KEYS],
            ranks: [const { MaybeUninit::uninit() }; MAX_TABLES],
            slots: [const { MaybeUninit::uninit() }; MAX_TABLES],
        }
    }
}

impl Default for ProbeTargets {
    #[inline]
    fn default() -> Self {
        Self { count: 0, targets: [const { MaybeUninit::uninit() }; CAPACITY] }
    }
}

impl ProbeTargets {
    /// Pairs of table and key.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        #[expect(unsafe_code, reason = "who notes more than a vector has no room for all")]
        // SAFETY: so many are known.
        let targets =
            self.targets[..self.count].iter().map(|target| unsafe { target.assume_init() });
        targets.map(|target| ((target >> 8) as usize, (target & 0xff) as usize))
    }

    /// Writes the next pair; the caller counts it only if it is needed, which saves a branch.
    #[inline]
    fn write(&mut self, table: u32, key: u32) {
        self.targets[self.count % CAPACITY].write(table << 8 | key);
    }
}

impl PrefilterProbe {
    /// Queries one more table, of at most [`MAX_TABLES`], for all keys, given word by word.
    #[inline]
    pub(crate) fn query(&mut self, table: &PrefilterTable, keys: &[WordColumn]) {
        if self.tables == MAX_TABLES {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if self.is_fast {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected.
            return unsafe { self.query_avx512(table, keys) };
        }
        self.query_portable(table, keys);
    }

    fn query_portable(&mut self, table: &PrefilterTable, keys: &[WordColumn]) {
        let (mut ranks, mut slots) = ([NO_RANK; PROBE_KEYS], [0; PROBE_KEYS]);
        for at in 0..PROBE_KEYS {
            let hash = table.hash_of(keys.iter().map(|word| word[at]));
            let slot = table.slot(hash);
            ranks[at] = rank_in(table.slots[slot], hash);
            slots[at] = number(slot);
            self.best[at] = self.best[at].min(ranks[at] << 8 | number(self.tables));
        }
        self.ranks[self.tables].write(ranks);
        self.slots[self.tables].write(slots);
        self.tables += 1;
    }

    /// The slot of a key in a queried table.
    #[inline]
    pub(crate) fn slot(&self, table: usize, key: usize) -> usize {
        self.rows(&self.slots).get(table).map_or(0, |row| row[key % PROBE_KEYS] as usize)
    }

    /// For each of the first `count` keys, lists the table with the lowest rank, unless that is
    /// above the key's own limit.
    #[inline]
    pub(crate) fn best_targets(&self, count: usize, own: &KeyRow, targets: &mut ProbeTargets) {
        targets.count = 0;
        #[cfg(target_arch = "x86_64")]
        if self.is_fast {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected.
            return unsafe { self.best_targets_avx512(count, own, targets) };
        }
        for (key, (first, own)) in (0..).zip(self.best.iter().zip(own)).take(count) {
            targets.write(first & 0xff, key);
            targets.count += usize::from(first >> 8 <= *own);
        }
    }

    /// For each of the first `count` keys, lists all other tables whose rank is not above the key's
    /// own limit.
    #[inline]
    pub(crate) fn other_targets(&self, count: usize, own: &KeyRow, targets: &mut ProbeTargets) {
        targets.count = 0;
        #[cfg(target_arch = "x86_64")]
        if self.is_fast {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected.
            return unsafe { self.other_targets_avx512(count, own, targets) };
        }
        for (table, ranks) in (0..).zip(self.rows(&self.ranks)) {
            let keys = (0..).zip(ranks.iter().zip(own).zip(&self.best)).take(count);
            for (key, ((rank, own), first)) in keys {
                targets.write(table, key);
                targets.count += usize::from((rank <= own) & (first & 0xff != table));
            }
        }
    }

    /// Rows of the queried tables.
    #[inline]
    fn rows<'a>(&self, rows: &'a [MaybeUninit<KeyRow>; MAX_TABLES]) -> &'a [KeyRow] {
        let rows = &rows[..self.tables.min(MAX_TABLES)];
        #[expect(unsafe_code, reason = "a cast of a pointer")]
        // SAFETY: who asks a table writes its rows before it is counted.
        unsafe {
            std::slice::from_raw_parts(rows.as_ptr().cast(), rows.len())
        }
    }
}

/// One word of all keys.
type WordColumn = [u64; PROBE_KEYS];

#[cfg(target_arch = "x86_64")]
use avx512::has_avx512;

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx512() -> bool {
    false
}

/// Slots, keys and tables have 32-bit numbers.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "there are no more")]
const fn number(at: usize) -> u32 {
    at as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> impl FnMut() -> u64 {
        let mut seed = 1_u64;
        move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed ^ seed >> 29
        }
    }

    /// Tables with few hashes, so that keys hit their own entries, others' and none.
    fn table(next: &mut impl FnMut() -> u64) -> PrefilterTable {
        let masks = [0, 0b11, u64::MAX << 62, 0b101];
        let mut mask = || masks[usize::try_from(next() % 4).unwrap()];
        let mut slots =
            PrefilterTable::of(&[mask(), mask()], u32::try_from(1 + next() % 6).unwrap());
        for _ in 0..next() % 9 {
            let hash = slots.hash(&[next() % 8, next()]);
            slots.insert(hash, u32::try_from(next() % 5).unwrap());
        }
        slots
    }

    /// Both the CPU's vector form and the portable form.
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn prefilter_probe_agrees_with_single_tables() {
        let mut next = numbers();
        for count in (0..=PROBE_KEYS).cycle().take(300) {
            let tables: Vec<_> = (0..next() % 18).map(|_| table(&mut next)).collect();
            let words = [0; 2].map(|_| std::array::from_fn(|_| (next() % 8) | (next() << 62)));
            let own = std::array::from_fn(|_| u32::try_from(next() % 6).unwrap());
            for is_fast in [false, has_avx512()] {
                let mut probe = PrefilterProbe { is_fast, ..PrefilterProbe::default() };
                tables.iter().for_each(|table| probe.query(table, &words));
                let asked = &tables[..tables.len().min(MAX_TABLES)];
                let hash = |table: &PrefilterTable, key: usize| {
                    table.hash(&[words[0][key], words[1][key]])
                };
                let rank = |table: usize, key: usize| asked[table].rank(hash(&asked[table], key));
                let first =
                    |key: usize| (0..asked.len()).min_by_key(|table| (rank(*table, key), *table));
                let (mut best, mut others) = (Vec::new(), Vec::new());
                for (key, own) in own.iter().enumerate().take(count) {
                    for (at, table) in asked.iter().enumerate() {
                        assert_eq!(probe.slot(at, key), table.slot(hash(table, key)));
                        if rank(at, key) <= *own {
                            let list = if first(key) == Some(at) { &mut best } else { &mut others };
                            list.push((at, key));
                        }
                    }
                }
                let mut targets = ProbeTargets::default();
                probe.best_targets(count, &own, &mut targets);
                assert_eq!(sorted(&targets), {
                    best.sort_unstable();
                    best
                });
                probe.other_targets(count, &own, &mut targets);
                assert_eq!(sorted(&targets), {
                    others.sort_unstable();
                    others
                });
            }
        }
    }

    fn sorted(targets: &ProbeTargets) -> Vec<(usize, usize)> {
        let mut targets: Vec<_> = targets.iter().collect();
        targets.sort_unstable();
        targets
    }
}
