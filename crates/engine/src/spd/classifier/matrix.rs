//! Policies that no cut tells apart, all compared at once: which of them each half byte of a packet fits, as words of bits.
//!
//! A selector asks something of every half byte on its own, so the policies that fit a packet are those that fit all of its half
//! bytes: one row of bits for each, and their intersection. The bits are in order, so the first one set is the answer.

use std::marker::PhantomData;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::rule::{Best, Rank, Rule, fits_more};
use super::ternary::{Key, Words};
use crate::PolicyEntry;

/// Policies in their order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct Matrix<W: Words> {
    /// Of each field and value one row of so many words.
    lines: Vec<Line>,
    width: usize,
    policies: Vec<Column>,
    /// How many policies there were when it was decided that this is the way to compare them.
    pub(crate) planned: usize,
    words: PhantomData<W>,
}

/// A cache line of rows: reading one never takes two.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
struct Line([u64; 8]);

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
    if words <= BLOCK { words.next_power_of_two() } else { words.next_multiple_of(2 * BLOCK) }
}

impl<W: Words> Matrix<W> {
    /// Of rules in their order.
    pub(crate) fn of(rules: &[Rule<W>]) -> Self {
        let width = width(rules.len());
        let mut matrix = Self {
            lines: lines::<W>(width),
            width,
            policies: Vec::with_capacity(rules.len()),
            planned: rules.len(),
            words: PhantomData,
        };
        for rule in rules {
            matrix.put(matrix.policies.len(), rule);
        }
        matrix
    }

    pub(crate) fn len(&self) -> usize {
        self.policies.len()
    }

    /// The first that fits.
    pub(crate) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        let mut numbers = [0; MOST_FIELDS];
        for (at, numbers) in numbers[..fields::<W>()].chunks_mut(16).enumerate() {
            for (numbers, byte) in numbers.chunks_exact_mut(2).zip(key.words.word(at).to_be_bytes())
            {
                numbers.copy_from_slice(&[u16::from(byte >> 4), u16::from(byte & 15)]);
            }
        }
        for (first, number) in (0..).step_by(VALUES).zip(&mut numbers) {
            *number += first;
        }
        let numbers = &numbers[..fields::<W>()];
        let rows = words(&self.lines);
        let mut from = 0;
        while let Some(at) = uxfrm_packet::first_common(rows, numbers, self.width, from)
            && let Some(policy) = self.policies.get(at)
        {
            if !policy.asks_more || fits_more(&policy.entry, key) {
                return best.consider(policy.rank, &policy.entry);
            }
            from = at + 1;
        }
    }

    pub(crate) fn insert(&mut self, rule: &Rule<W>) {
        if self.policies.len() == self.width * 64 {
            self.widen();
        }
        let place = rule.entry.place();
        self.put(self.policies.partition_point(|policy| policy.entry.place() < place), rule);
    }

    /// Takes a policy out; one that is not in is no error.
    pub(crate) fn remove(&mut self, rule: &Rule<W>) {
        let place = rule.entry.place();
        let Ok(at) = self.policies.binary_search_by_key(&place, |policy| policy.entry.place())
        else {
            return;
        };
        self.policies.remove(at);
        words_mut(&mut self.lines).chunks_mut(self.width).for_each(|row| close(row, at));
    }

    /// Shows each policy in order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        self.policies.iter().for_each(|policy| visit(&policy.entry));
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.lines.capacity() * size_of::<Line>()
            + self.policies.capacity() * size_of::<Column>()
    }

    /// The policy at a place, all others from there on one further.
    fn put(&mut self, at: usize, rule: &Rule<W>) {
        for field in 0..fields::<W>() {
            let (value, mask) = (half_byte(&rule.value, field), half_byte(&rule.mask, field));
            let rows = words_mut(&mut self.lines).chunks_mut(self.width);
            for (seen, row) in rows.skip(field * VALUES).take(VALUES).enumerate() {
                open(row, at, (seen ^ value) & mask == 0);
            }
        }
        let (rank, asks_more) = (rule.rank, rule.asks_more());
        self.policies.insert(at, Column { rank, asks_more, entry: Arc::clone(&rule.entry) });
    }

    fn widen(&mut self) {
        let width = width(self.width * 64 + 1);
        let mut wider = lines::<W>(width);
        let old = words(&self.lines).chunks(self.width);
        for (new, old) in words_mut(&mut wider).chunks_mut(width).zip(old) {
            new[..old.len()].copy_from_slice(old);
        }
        (self.lines, self.width) = (wider, width);
    }
}

/// Empty rows of a width.
fn lines<W: Words>(width: usize) -> Vec<Line> {
    vec![Line::default(); (fields::<W>() * VALUES * width).div_ceil(8)]
}

/// Lines are nothing but words.
#[inline]
fn words(lines: &[Line]) -> &[u64] {
    <[u64]>::ref_from_bytes(lines.as_bytes()).unwrap_or_default()
}

fn words_mut(lines: &mut [Line]) -> &mut [u64] {
    <[u64]>::mut_from_bytes(lines.as_mut_bytes()).unwrap_or_default()
}

/// A field of a packet, a value or a mask.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "four bits are used")]
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
