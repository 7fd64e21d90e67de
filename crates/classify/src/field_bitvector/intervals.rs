//! Splits a key's fields into intervals that no rule separates, each with a row with one bit
//! per matching group.

use super::rule_group::RuleGroup;
use crate::bitvector::{FieldLocation, KeyField};
use crate::entry::Entry;
use crate::key::Words;
use crate::rule::Rule;

/// A field of a rule.
#[derive(Clone, Copy)]
struct FieldSpec {
    place: FieldLocation,
    bits: u32,
}

/// Values that a group matches, from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    first: u128,
    last: u128,
    group: usize,
}

/// The fields of some rules, with rows of `words` words, and whether no mask has gaps. Bits behind
/// a gap are ignored here.
pub(super) fn key_fields<W: Words, E: Entry>(
    rules: &[&Rule<W, E>],
    groups: &[RuleGroup],
    words: usize,
) -> (Vec<KeyField>, bool) {
    let key_field = |field: FieldSpec| {
        let mut intervals = Vec::with_capacity(rules.len());
        for (at, group) in groups.iter().enumerate() {
            let of = |rule: &&Rule<W, E>| field.interval(&rule.value, &rule.mask, at);
            intervals.extend(group.rules_of(rules).iter().map(of));
        }
        let is_asked = intervals.iter().any(|interval| *interval != field.all(interval.group));
        is_asked.then(|| field.key_field(intervals, words))
    };
    let whole = |field: &FieldSpec| rules.iter().all(|rule| field.is_whole(&rule.mask));
    let is_plain = fields::<W>().iter().all(whole);
    (fields::<W>().into_iter().filter_map(key_field).collect(), is_plain)
}

/// Addresses, ports and protocol.
fn fields<W: Words>() -> [FieldSpec; 5] {
    let last = W::COUNT - 1;
    let field =
        |word, shift, bits| FieldSpec { place: FieldLocation::Bits { word, shift, bits }, bits };
    let upper = [field(last, 48, 16), field(last, 32, 16), field(last, 24, 8)];
    let ends = match W::ADDRESS_BITS {
        32 => [field(0, 32, 32), field(0, 0, 32)],
        _ => [0, 2].map(|word| FieldSpec { place: FieldLocation::Words(word), bits: 128 }),
    };
    [ends[0], ends[1], upper[0], upper[1], upper[2]]
}

impl FieldSpec {
    /// The field's value.
    fn of<W: Words>(self, words: &W) -> u128 {
        match self.place {
            FieldLocation::Bits { word, shift, .. } => {
                u128::from(words.word(word) >> shift) & self.highest()
            }
            FieldLocation::Words(word) => {
                u128::from(words.word(word)) << 64 | u128::from(words.word(word + 1))
            }
        }
    }

    const fn highest(self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    /// Whether a mask is a prefix mask.
    fn is_whole<W: Words>(self, mask: &W) -> bool {
        let mask = self.of(mask) << (128 - self.bits);
        mask.leading_ones() == mask.count_ones()
    }

    /// The interval that a rule matches, by the leading ones of its mask.
    fn interval<W: Words>(self, value: &W, mask: &W, group: usize) -> Interval {
        let asked = (self.of(mask) << (128 - self.bits)).leading_ones().min(self.bits);
        let open = self.highest().checked_shr(asked).unwrap_or(0);
        let first = self.of(value) & !open;
        Interval { first, last: first | open, group }
    }

    /// All values.
    const fn all(self, group: usize) -> Interval {
        Interval { first: 0, last: self.highest(), group }
    }

    /// Builds the field. Two intervals are nested or disjoint.
    fn key_field(self, mut intervals: Vec<Interval>, words: usize) -> KeyField {
        intervals
            .sort_unstable_by_key(|interval| (interval.first, std::cmp::Reverse(interval.last)));
        let mut key_field = KeyField { place: self.place, ends: Vec::new(), rows: vec![0; words] };
        // Last value and row of each enclosing interval.
        let mut enclosing = vec![(self.highest(), 0)];
        for alike in
            intervals.chunk_by(|one, other| (one.first, one.last) == (other.first, other.last))
        {
            let Interval { first, last, .. } = alike[0];
            while let Some((before, row)) = enclosing.pop_if(|(last, _)| *last < first) {
                end(&mut key_field.ends, before, row);
            }
            let outer = enclosing.last().map_or(0, |(_, row)| *row);
            if (first, last) != (0, self.highest()) {
                if let Some(before) = first.checked_sub(1) {
                    end(&mut key_field.ends, before, outer);
                }
                enclosing.push((last, key_field.rows.len() / words));
                key_field.rows.extend_from_within(outer * words..(outer + 1) * words);
            }
            let row = enclosing.last().map_or(0, |(_, row)| *row) * words;
            alike.iter().for_each(|Interval { group, .. }| {
                key_field.rows[row + group / 64] |= 1 << (group % 64)
            });
        }
        enclosing.into_iter().rev().for_each(|(last, row)| end(&mut key_field.ends, last, row));
        key_field
    }
}

/// Appends an interval end, unless its values have a row already.
fn end(ends: &mut Vec<(u128, usize)>, end: u128, row: usize) {
    if ends.last().is_none_or(|(last, _)| *last < end) {
        ends.push((end, row));
    }
}
