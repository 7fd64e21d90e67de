//! What many keys are told by some tables, and where each goes.

#[cfg(target_arch = "x86_64")]
mod avx512;

use std::mem::MaybeUninit;

use super::{NO_LEVEL, Slots, level_in};

/// Keys that are looked up together.
pub const KEYS: usize = 32;
/// Tables that may be asked.
pub const TABLES: usize = 16;
/// Lanes of a vector.
const LANES: usize = 16;

/// Levels that up to [`KEYS`] keys were told, table by table.
#[derive(Debug)]
#[repr(align(64))]
pub struct Told {
    tables: usize,
    is_fast: bool,
    /// For each key the lowest level, and in the lowest eight bits the table that told it.
    firsts: Row,
    /// Of each table that was asked.
    levels: [MaybeUninit<Row>; TABLES],
    slots: [MaybeUninit<Row>; TABLES],
}

/// What one table told all keys.
type Row = [u32; KEYS];

/// Tables that keys go to: a key's number in the lowest eight bits, the table's above.
#[derive(Debug)]
pub struct Steps {
    count: usize,
    /// As many as `count` are known.
    steps: [MaybeUninit<u32>; ROOM],
}

/// Steps of all keys to all tables, and what the last store writes beyond.
const ROOM: usize = KEYS * TABLES + LANES;

impl Default for Told {
    #[inline]
    fn default() -> Self {
        Self {
            tables: 0,
            is_fast: has_avx512(),
            firsts: [u32::MAX; KEYS],
            levels: [const { MaybeUninit::uninit() }; TABLES],
            slots: [const { MaybeUninit::uninit() }; TABLES],
        }
    }
}

impl Default for Steps {
    #[inline]
    fn default() -> Self {
        Self { count: 0, steps: [const { MaybeUninit::uninit() }; ROOM] }
    }
}

impl Steps {
    /// Table and key of each.
    #[inline]
    pub fn each(&self) -> impl Iterator<Item = (usize, usize)> {
        #[expect(unsafe_code, reason = "who notes more than a vector has no room for all")]
        // SAFETY: so many are known.
        let steps = self.steps[..self.count].iter().map(|step| unsafe { step.assume_init() });
        steps.map(|step| ((step >> 8) as usize, (step & 0xff) as usize))
    }

    /// Writes the next step, which is not noted before it is counted: whether it is to be taken is no branch.
    #[inline]
    fn write(&mut self, table: u32, key: u32) {
        self.steps[self.count % ROOM].write(table << 8 | key);
    }
}

impl Told {
    /// Asks one more table, of which there are [`TABLES`] at the most, for all keys, which stand word by word.
    #[inline]
    pub fn ask(&mut self, table: &Slots, keys: &[Columns]) {
        if self.tables == TABLES {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if self.is_fast {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected.
            return unsafe { self.ask_avx512(table, keys) };
        }
        self.ask_anywhere(table, keys);
    }

    fn ask_anywhere(&mut self, table: &Slots, keys: &[Columns]) {
        let (mut levels, mut slots) = ([NO_LEVEL; KEYS], [0; KEYS]);
        for at in 0..KEYS {
            let hash = table.hash_of(keys.iter().map(|word| word[at]));
            let slot = table.slot(hash);
            levels[at] = level_in(table.slots[slot], hash);
            slots[at] = number(slot);
            self.firsts[at] = self.firsts[at].min(levels[at] << 8 | number(self.tables));
        }
        self.levels[self.tables].write(levels);
        self.slots[self.tables].write(slots);
        self.tables += 1;
    }

    /// The slot that a table, if it was asked, has for a key.
    #[must_use]
    #[inline]
    pub fn slot(&self, table: usize, key: usize) -> usize {
        self.rows(&self.slots).get(table).map_or(0, |row| row[key % KEYS] as usize)
    }

    /// For each of the first so many keys the table that told the lowest level, unless that is above the key's own.
    #[inline]
    pub fn firsts(&self, count: usize, own: &Row, steps: &mut Steps) {
        steps.count = 0;
        #[cfg(target_arch = "x86_64")]
        if self.is_fast {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected.
            return unsafe { self.firsts_avx512(count, own, steps) };
        }
        for (key, (first, own)) in (0..).zip(self.firsts.iter().zip(own)).take(count) {
            steps.write(first & 0xff, key);
            steps.count += usize::from(first >> 8 <= *own);
        }
    }

    /// For each of the first so many keys all other tables that told no level above the key's own.
    #[inline]
    pub fn others(&self, count: usize, own: &Row, steps: &mut Steps) {
        steps.count = 0;
        #[cfg(target_arch = "x86_64")]
        if self.is_fast {
            #[expect(
                unsafe_code,
                reason = "calling a function compiled for more than every x86-64 has"
            )]
            // SAFETY: all that the function is compiled for was detected.
            return unsafe { self.others_avx512(count, own, steps) };
        }
        for (table, levels) in (0..).zip(self.rows(&self.levels)) {
            let keys = (0..).zip(levels.iter().zip(own).zip(&self.firsts)).take(count);
            for (key, ((level, own), first)) in keys {
                steps.write(table, key);
                steps.count += usize::from((level <= own) & (first & 0xff != table));
            }
        }
    }

    /// Those of the tables that were asked.
    #[inline]
    fn rows<'a>(&self, rows: &'a [MaybeUninit<Row>; TABLES]) -> &'a [Row] {
        let rows = &rows[..self.tables.min(TABLES)];
        #[expect(unsafe_code, reason = "a cast of a pointer")]
        // SAFETY: who asks a table writes its rows before it is counted.
        unsafe {
            std::slice::from_raw_parts(rows.as_ptr().cast(), rows.len())
        }
    }
}

/// A word of all keys.
type Columns = [u64; KEYS];

#[cfg(target_arch = "x86_64")]
use avx512::has_avx512;

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx512() -> bool {
    false
}

/// No slot, key or table has a number beyond 32 bits.
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

    /// Tables of few hashes, so that keys find their own, others' and none.
    fn table(next: &mut impl FnMut() -> u64) -> Slots {
        let masks = [0, 0b11, u64::MAX << 62, 0b101];
        let mut mask = || masks[usize::try_from(next() % 4).unwrap()];
        let mut slots = Slots::of(&[mask(), mask()], u32::try_from(1 + next() % 6).unwrap());
        for _ in 0..next() % 9 {
            let hash = slots.hash(&[next() % 8, next()]);
            slots.note(hash, u32::try_from(next() % 5).unwrap());
        }
        slots
    }

    /// What the processor has, and the form for those that have less.
    #[test]
    #[cfg_attr(miri, ignore = "minutes there")]
    fn keys_go_where_each_table_alone_sends_them() {
        let mut next = numbers();
        for count in (0..=KEYS).cycle().take(300) {
            let tables: Vec<_> = (0..next() % 18).map(|_| table(&mut next)).collect();
            let words = [0; 2].map(|_| std::array::from_fn(|_| (next() % 8) | (next() << 62)));
            let own = std::array::from_fn(|_| u32::try_from(next() % 6).unwrap());
            for is_fast in [false, has_avx512()] {
                let mut told = Told { is_fast, ..Told::default() };
                tables.iter().for_each(|table| told.ask(table, &words));
                let asked = &tables[..tables.len().min(TABLES)];
                let hash = |table: &Slots, key: usize| table.hash(&[words[0][key], words[1][key]]);
                let level = |table: usize, key: usize| asked[table].level(hash(&asked[table], key));
                let first =
                    |key: usize| (0..asked.len()).min_by_key(|table| (level(*table, key), *table));
                let (mut firsts, mut others) = (Vec::new(), Vec::new());
                for (key, own) in own.iter().enumerate().take(count) {
                    for (at, table) in asked.iter().enumerate() {
                        assert_eq!(told.slot(at, key), table.slot(hash(table, key)));
                        if level(at, key) <= *own {
                            let list =
                                if first(key) == Some(at) { &mut firsts } else { &mut others };
                            list.push((at, key));
                        }
                    }
                }
                let mut steps = Steps::default();
                told.firsts(count, &own, &mut steps);
                assert_eq!(sorted(&steps), {
                    firsts.sort_unstable();
                    firsts
                });
                told.others(count, &own, &mut steps);
                assert_eq!(sorted(&steps), {
                    others.sort_unstable();
                    others
                });
            }
        }
    }

    fn sorted(steps: &Steps) -> Vec<(usize, usize)> {
        let mut steps: Vec<_> = steps.each().collect();
        steps.sort_unstable();
        steps
    }
}
