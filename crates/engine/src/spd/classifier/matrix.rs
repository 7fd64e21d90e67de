//! Policies that no cut tells apart, all compared at once: which of them each byte of a packet fits, as rows of bits.
//!
//! A selector asks something of every byte on its own, so the policies that fit a packet are those that fit all of its
//! bytes: one row of bits for each, and their intersection. The bits are in order, so the first one set is the answer. Values of a byte that
//! no policy tells apart share a row, and a byte that none asks for has no rows: what is read is little, and read without a branch.

use std::marker::PhantomData;
use std::sync::Arc;

use uxfrm_packet::{Line, Rows};
use zerocopy::{FromBytes, IntoBytes};

use super::rule::{Best, Brief, Rank, Rule, fits_more};
use super::ternary::{Key, Words};
use crate::PolicyEntry;

/// Policies in their order, by bits.
#[derive(Clone, Debug)]
pub(crate) struct Matrix<W: Words> {
    /// The bytes that some policy asks for, by their places in a key.
    fields: Vec<u8>,
    /// Of each of them how many policies ask for it.
    asking: Vec<usize>,
    /// Of each of them the rows of its values.
    numbers: Vec<[u16; VALUES]>,
    /// Rows of so many words; none takes a cache line more than it must.
    lines: Vec<Line>,
    width: usize,
    /// How many rows there are, at most one for each value of each field.
    rows: u16,
    /// Those that are out of use.
    free: Vec<u16>,
    policies: Vec<Column>,
    /// How many policies there were when it was decided that this is the way to compare them.
    pub(crate) planned: usize,
    words: PhantomData<W>,
}

#[derive(Clone, Debug)]
struct Column {
    rank: Rank,
    brief: Brief,
    entry: Arc<PolicyEntry>,
}

const VALUES: usize = 256;
/// No key has more bytes.
const MOST_BYTES: u8 = 64;
/// Words that are compared together in long rows.
const BLOCK: usize = 8;

/// Bytes that count; the last three of the last word are nothing.
pub(crate) const fn fields<W: Words>() -> usize {
    W::COUNT * 8 - 3
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
            fields: Vec::new(),
            asking: Vec::new(),
            numbers: Vec::new(),
            lines: Vec::new(),
            width,
            rows: 0,
            free: Vec::new(),
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

    /// As [`Matrix::find`] of each key.
    pub(crate) fn find_each<'a>(&'a self, keys: &[Key<W>], bests: &mut [Best<'a>]) {
        keys.iter().zip(bests).for_each(|(key, best)| self.find(key, best));
    }

    /// Considers the first that fits.
    #[inline]
    pub(crate) fn find<'a>(&'a self, key: &Key<W>, best: &mut Best<'a>) {
        let Self { lines, fields, numbers, width, .. } = self;
        let rows = Rows { lines, width: *width, places: fields, numbers };
        let bytes = key.words.as_bytes();
        let mut from = 0;
        while let Some(at) = rows.first_common(bytes, from)
            && let Some(policy) = self.policies.get(at)
        {
            if !policy.brief.asks_more() || fits_more(&policy.entry, key) {
                return best.consider(policy.rank, policy.brief, &policy.entry);
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
        words_mut(&mut self.lines).chunks_exact_mut(self.width).for_each(|row| close(row, at));
        for ((field, asking), numbers) in
            self.fields.iter().zip(&mut self.asking).zip(&self.numbers)
        {
            *asking -= usize::from(byte(&rule.mask, *field) != 0);
            if *asking == 0 {
                self.free.extend(numbers);
            }
        }
        let asked: Vec<bool> = self.asking.iter().map(|asking| *asking > 0).collect();
        keep(&mut self.numbers, &asked);
        keep(&mut self.fields, &asked);
        keep(&mut self.asking, &asked);
        self.free.sort_unstable();
        self.free.dedup();
    }

    /// Shows each policy in order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        self.policies.iter().for_each(|policy| visit(&policy.entry));
    }

    pub(crate) fn memory(&self) -> usize {
        size_of::<Self>()
            + self.fields.capacity()
            + self.asking.capacity() * size_of::<usize>()
            + self.numbers.capacity() * size_of::<[u16; VALUES]>()
            + self.lines.capacity() * size_of::<Line>()
            + self.policies.capacity() * size_of::<Column>()
    }

    /// The policy at a place, all others from there on one further.
    fn put(&mut self, at: usize, rule: &Rule<W>) {
        for place in (0..MOST_BYTES).filter(|place| byte(&rule.mask, *place) != 0) {
            let field = self.field(place);
            self.asking[field] += 1;
            self.tell_apart(field, byte(&rule.value, place), byte(&rule.mask, place));
        }
        let mut fits = vec![true; self.rows.into()];
        for (field, numbers) in self.fields.iter().zip(&self.numbers) {
            let (value, mask) = (byte(&rule.value, *field), byte(&rule.mask, *field));
            for (seen, row) in numbers.iter().enumerate() {
                fits[usize::from(*row)] = (seen ^ value) & mask == 0;
            }
        }
        let used = self.policies.len() / 64 + 1;
        let rows = words_mut(&mut self.lines).chunks_exact_mut(self.width);
        rows.zip(fits).for_each(|(row, fits)| open(&mut row[..used], at, fits));
        let (rank, brief) = (rule.rank(), rule.brief());
        self.policies.insert(at, Column { rank, brief, entry: Arc::clone(&rule.entry) });
    }

    /// Which of the fields is for a byte; a new one, of one row that fits all policies, if none was.
    fn field(&mut self, byte: u8) -> usize {
        if let Some(field) = self.fields.iter().position(|field| *field == byte) {
            return field;
        }
        let row = self.add_row();
        let policies = self.policies.len();
        for (word, first) in self.row_mut(row).iter_mut().zip((0..).step_by(64)) {
            let bits = policies.saturating_sub(first).min(64);
            *word = u64::MAX.checked_shr(64 - u32::try_from(bits).unwrap_or(64)).unwrap_or(0);
        }
        self.fields.push(byte);
        self.asking.push(0);
        self.numbers.push([row; VALUES]);
        self.fields.len() - 1
    }

    /// Gives values of a field that fit under a mask rows of their own, apart from those of values that do not.
    fn tell_apart(&mut self, field: usize, value: usize, mask: usize) {
        let mut shared = vec![false; self.rows.into()];
        for (seen, row) in self.numbers[field].iter().enumerate() {
            shared[usize::from(*row)] |= (seen ^ value) & mask != 0;
        }
        let mut own: Vec<(u16, u16)> = Vec::new();
        for seen in (0..VALUES).filter(|seen| (seen ^ value) & mask == 0) {
            let old = self.numbers[field][seen];
            if shared[usize::from(old)] {
                let known = own.iter().find(|(row, _)| *row == old).map(|(_, new)| *new);
                let new = known.unwrap_or_else(|| self.copy_row(old));
                own.push((old, new));
                self.numbers[field][seen] = new;
            }
        }
    }

    fn copy_row(&mut self, old: u16) -> u16 {
        let new = self.add_row();
        let row: Vec<u64> = self.row_mut(old).to_vec();
        self.row_mut(new).copy_from_slice(&row);
        new
    }

    /// A row with anything in it.
    fn add_row(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.rows += 1;
            let words = usize::from(self.rows) * self.width;
            self.lines.resize(words.div_ceil(8), Line::default());
            self.rows - 1
        })
    }

    fn row_mut(&mut self, row: u16) -> &mut [u64] {
        let from = usize::from(row) * self.width;
        &mut words_mut(&mut self.lines)[from..from + self.width]
    }

    fn widen(&mut self) {
        let width = width(self.width * 64 + 1);
        let mut wider = vec![Line::default(); (usize::from(self.rows) * width).div_ceil(8)];
        let old = words(&self.lines).chunks_exact(self.width);
        for (new, old) in words_mut(&mut wider).chunks_exact_mut(width).zip(old) {
            new[..old.len()].copy_from_slice(old);
        }
        (self.lines, self.width) = (wider, width);
    }
}

/// Lines are nothing but words.
fn words(lines: &[Line]) -> &[u64] {
    <[u64]>::ref_from_bytes(lines.as_bytes()).unwrap_or_default()
}

fn words_mut(lines: &mut [Line]) -> &mut [u64] {
    <[u64]>::mut_from_bytes(lines.as_mut_bytes()).unwrap_or_default()
}

/// A byte of a value or a mask; 0 where it is nothing in packets.
fn byte<W: Words>(words: &W, at: u8) -> usize {
    usize::from(words.under(&W::COUNTING).as_bytes().get(usize::from(at)).copied().unwrap_or(0))
}

/// Those of some things of which it is said so.
fn keep<T>(things: &mut Vec<T>, those: &[bool]) {
    let mut those = those.iter();
    things.retain(|_| those.next() == Some(&true));
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
