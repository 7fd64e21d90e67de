//! What policies ask of a packet's fields: stretches of values that no policy tells apart, each with a row of bits, one for each group of policies that
//! fits.

use uxfrm_packet::{Axis, Place};

use super::rule_group::Group;
use crate::spd::classifier::rule::Rule;
use crate::spd::classifier::ternary::Words;

/// A field of so many bits in the words that a selector has.
#[derive(Clone, Copy)]
struct Field {
    place: Place,
    bits: u32,
}

/// Values from the first to the last, for which some group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    first: u128,
    last: u128,
    group: usize,
}

/// The axes of rules whose groups have rows of so many words. Where a field's mask has gaps, what is behind the first of them is left open; and whether
/// none has.
pub(super) fn axes<W: Words>(
    rules: &[&Rule<W>],
    groups: &[Group],
    words: usize,
) -> (Vec<Axis>, bool) {
    let axis = |field: Field| {
        let mut stretches = Vec::with_capacity(rules.len());
        for (at, group) in groups.iter().enumerate() {
            let of = |rule: &&Rule<W>| field.stretch(&rule.value, &rule.mask, at);
            stretches.extend(group.of_all(rules).iter().map(of));
        }
        let is_asked = stretches.iter().any(|stretch| *stretch != field.all(stretch.group));
        is_asked.then(|| field.axis(stretches, words))
    };
    let whole = |field: &Field| rules.iter().all(|rule| field.is_whole(&rule.mask));
    let is_plain = fields::<W>().iter().all(whole);
    (fields::<W>().into_iter().filter_map(axis).collect(), is_plain)
}

/// Addresses, ports and protocol.
fn fields<W: Words>() -> [Field; 5] {
    let last = W::COUNT - 1;
    let field = |word, shift, bits| Field { place: Place::Bits { word, shift, bits }, bits };
    let upper = [field(last, 48, 16), field(last, 32, 16), field(last, 24, 8)];
    let ends = match W::BITS {
        32 => [field(0, 32, 32), field(0, 0, 32)],
        _ => [0, 2].map(|word| Field { place: Place::Words(word), bits: 128 }),
    };
    [ends[0], ends[1], upper[0], upper[1], upper[2]]
}

impl Field {
    /// What stands in it.
    fn of<W: Words>(self, words: &W) -> u128 {
        match self.place {
            Place::Bits { word, shift, .. } => {
                u128::from(words.word(word) >> shift) & self.highest()
            }
            Place::Words(word) => {
                u128::from(words.word(word)) << 64 | u128::from(words.word(word + 1))
            }
        }
    }

    const fn highest(self) -> u128 {
        u128::MAX >> (128 - self.bits)
    }

    /// Whether a mask has no gaps in it.
    fn is_whole<W: Words>(self, mask: &W) -> bool {
        let mask = self.of(mask) << (128 - self.bits);
        mask.leading_ones() == mask.count_ones()
    }

    /// The values that a selector fits, as far as the highest bits of its mask tell.
    fn stretch<W: Words>(self, value: &W, mask: &W, group: usize) -> Stretch {
        let asked = (self.of(mask) << (128 - self.bits)).leading_ones().min(self.bits);
        let open = self.highest().checked_shr(asked).unwrap_or(0);
        let first = self.of(value) & !open;
        Stretch { first, last: first | open, group }
    }

    /// All values.
    const fn all(self, group: usize) -> Stretch {
        Stretch { first: 0, last: self.highest(), group }
    }

    /// Of two stretches one is inside the other, or they are apart.
    fn axis(self, mut stretches: Vec<Stretch>, words: usize) -> Axis {
        stretches.sort_unstable_by_key(|stretch| (stretch.first, std::cmp::Reverse(stretch.last)));
        let mut axis = Axis { place: self.place, ends: Vec::new(), rows: vec![0; words] };
        // The last values and the rows of those that the next one may be in.
        let mut around = vec![(self.highest(), 0)];
        for alike in
            stretches.chunk_by(|one, other| (one.first, one.last) == (other.first, other.last))
        {
            let Stretch { first, last, .. } = alike[0];
            while let Some((before, row)) = around.pop_if(|(last, _)| *last < first) {
                end(&mut axis.ends, before, row);
            }
            let outer = around.last().map_or(0, |(_, row)| *row);
            if (first, last) != (0, self.highest()) {
                if let Some(before) = first.checked_sub(1) {
                    end(&mut axis.ends, before, outer);
                }
                around.push((last, axis.rows.len() / words));
                axis.rows.extend_from_within(outer * words..(outer + 1) * words);
            }
            let row = around.last().map_or(0, |(_, row)| *row) * words;
            alike
                .iter()
                .for_each(|Stretch { group, .. }| axis.rows[row + group / 64] |= 1 << (group % 64));
        }
        around.into_iter().rev().for_each(|(last, row)| end(&mut axis.ends, last, row));
        axis
    }
}

/// Values up to there stand for a row, if they stand for none yet.
fn end(ends: &mut Vec<(u128, usize)>, end: u128, row: usize) {
    if ends.last().is_none_or(|(last, _)| *last < end) {
        ends.push((end, row));
    }
}
