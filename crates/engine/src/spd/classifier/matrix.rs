//! Policies that no cut tells apart, all compared at once: which of them each half byte of a packet fits, as words of bits.
//!
//! A selector asks something of every half byte on its own, so the policies that fit a packet are those that fit all of its half
//! bytes: one row of bits for each, and their intersection. The bits are in order, so the first one set is the answer.

use std::marker::PhantomData;
use std::sync::Arc;

use arrayvec::ArrayVec;

use super::rule::{Best, Rank, Rule, fits_more};
use super::ternary::{Key, Words};
use crate::PolicyEntry;

/// Policies in their order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct Matrix<W: Words> {
    /// Of each field and value one row of so many words.
    rows: Vec<u64>,
    width: usize,
    policies: Vec<Column>,
    /// Fields of which some policy asks anything, and how many do of each.
    asked: ArrayVec<u8, MOST_FIELDS>,
    asking: ArrayVec<u32, MOST_FIELDS>,
    /// How many policies there were when it was decided that this is the way to compare them.
    pub(crate) planned: usize,
    words: PhantomData<W>,
}

#[derive(Clone, Debug)]
struct Column {
    rank: Rank,
    asks_more: bool,
    entry: Arc<PolicyEntry>,
}

const MOST_FIELDS: usize = 74;
const VALUES: usize = 16;
/// Words that are compared together in long rows.
const BLOCK: usize = 8;

/// Half bytes that count; the last six of the last word are nothing.
pub(crate) const fn fields<W: Words>() -> usize {
    W::COUNT * 16 - 6
}

/// Words in a row of so many bits.
pub(crate) const fn width(policies: usize) -> usize {
    let words = policies.div_ceil(64);
    if words <= BLOCK { words.next_power_of_two() } else { words.next_multiple_of(BLOCK) }
}

impl<W: Words> Matrix<W> {
    /// Of rules in their order.
    pub(crate) fn of(rules: &[Rule<W>]) -> Self {
        let width = width(rules.len());
        let mut matrix = Self {
            rows: vec![0; fields::<W>() * VALUES * width],
            width,
            policies: Vec::with_capacity(rules.len()),
            asked: ArrayVec::new(),
            asking: std::iter::repeat_n(0, fields::<W>()).collect(),
            planned: rules.len(),
            words: PhantomData,
        };
        for rule in rules {
            matrix.put(matrix.policies.len(), rule);
        }
        matrix.list_asked();
        matrix
    }

    pub(crate) fn len(&self) -> usize {
        self.policies.len()
    }

    /// The first that fits.
    #[inline]
    pub(crate) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        let mut rows = ArrayVec::<usize, MOST_FIELDS>::new();
        for field in &self.asked {
            let field = usize::from(*field);
            // No more are asked than there are.
            let _ = rows.try_push((field * VALUES + half_byte(&key.words, field)) * self.width);
        }
        match self.width {
            1 => self.meet::<1>(&rows, key, best),
            2 => self.meet::<2>(&rows, key, best),
            4 => self.meet::<4>(&rows, key, best),
            _ => self.meet::<BLOCK>(&rows, key, best),
        }
    }

    /// Intersects rows, `N` words at a time, up to the first policy.
    #[inline]
    fn meet<'a, const N: usize>(&'a self, rows: &[usize], key: &Key<W>, best: &mut Best<'a>) {
        for block in (0..self.width).step_by(N) {
            let mut all = [u64::MAX; N];
            for row in rows {
                if let Some(words) = self.rows[row + block..].first_chunk::<N>() {
                    for (all, word) in all.iter_mut().zip(words) {
                        *all &= word;
                    }
                }
            }
            for (at, bits) in all.into_iter().enumerate() {
                if bits != 0 && self.settle((block + at) * 64, bits, key, best) {
                    return;
                }
            }
        }
    }

    /// Takes the first of these that has the mark and the interface as well; true when there is one.
    #[inline]
    fn settle<'a>(&'a self, from: usize, mut bits: u64, key: &Key<W>, best: &mut Best<'a>) -> bool {
        while bits != 0 {
            // Without anything asked, there are bits beyond the last policy.
            let Some(policy) = self.policies.get(from + bits.trailing_zeros() as usize) else {
                return true;
            };
            if !policy.asks_more || fits_more(&policy.entry, key) {
                best.consider(policy.rank, &policy.entry);
                return true;
            }
            bits &= bits - 1;
        }
        false
    }

    pub(crate) fn insert(&mut self, rule: &Rule<W>) {
        if self.policies.len() == self.width * 64 {
            self.widen();
        }
        let place = rule.entry.place();
        self.put(self.policies.partition_point(|policy| policy.entry.place() < place), rule);
        self.list_asked();
    }

    /// Takes a policy out; one that is not in is no error.
    pub(crate) fn remove(&mut self, rule: &Rule<W>) {
        let place = rule.entry.place();
        let Ok(at) = self.policies.binary_search_by_key(&place, |policy| policy.entry.place())
        else {
            return;
        };
        self.policies.remove(at);
        self.rows.chunks_mut(self.width).for_each(|row| close(row, at));
        for (field, asking) in self.asking.iter_mut().enumerate() {
            *asking -= u32::from(half_byte(&rule.mask, field) != 0);
        }
        self.list_asked();
    }

    /// Shows each policy in order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        self.policies.iter().for_each(|policy| visit(&policy.entry));
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.rows.capacity() * size_of::<u64>()
            + self.policies.capacity() * size_of::<Column>()
    }

    /// The policy at a place, all others from there on one further.
    fn put(&mut self, at: usize, rule: &Rule<W>) {
        for field in 0..fields::<W>() {
            let (value, mask) = (half_byte(&rule.value, field), half_byte(&rule.mask, field));
            self.asking[field] += u32::from(mask != 0);
            for (seen, row) in
                self.rows.chunks_mut(self.width).skip(field * VALUES).take(VALUES).enumerate()
            {
                open(row, at, (seen ^ value) & mask == 0);
            }
        }
        let (rank, asks_more) = (rule.rank, rule.asks_more());
        self.policies.insert(at, Column { rank, asks_more, entry: Arc::clone(&rule.entry) });
    }

    fn widen(&mut self) {
        let width = width(self.width * 64 + 1);
        let mut rows = vec![0; fields::<W>() * VALUES * width];
        for (new, old) in rows.chunks_mut(width).zip(self.rows.chunks(self.width)) {
            new[..old.len()].copy_from_slice(old);
        }
        (self.rows, self.width) = (rows, width);
    }

    fn list_asked(&mut self) {
        let asked = (0_u8..).zip(&self.asking).filter(|(_, asking)| **asking != 0);
        self.asked = asked.map(|(field, _)| field).collect();
    }
}

/// A field of a packet, a value or a mask.
#[inline]
fn half_byte<W: Words>(words: &W, field: usize) -> usize {
    (words.word(field / 16) >> (60 - field % 16 * 4)) as usize % VALUES
}

/// Makes room for a bit and sets it.
fn open(row: &mut [u64], at: usize, bit: bool) {
    let (word, below) = (at / 64, (1 << (at % 64)) - 1);
    for later in (word + 1..row.len()).rev() {
        row[later] = row[later] << 1 | row[later - 1] >> 63;
    }
    let (low, high) = (row[word] & below, row[word] & !below);
    row[word] = low | u64::from(bit) << (at % 64) | high << 1;
}

/// Takes a bit out and closes the gap.
fn close(row: &mut [u64], at: usize) {
    let (word, below) = (at / 64, (1 << (at % 64)) - 1);
    row[word] = row[word] & below | row[word] >> 1 & !below;
    for later in word + 1..row.len() {
        row[later - 1] |= row[later] << 63;
        row[later] >>= 1;
    }
}
