//! Value classes of a key's bytes: values that no rule separates form one class, and each
//! class has a row with one bit per matching rule.

use crate::bitvector::ByteField;
use crate::entry::Entry;
use crate::key::Words;
use crate::rule::Rule;

/// Number of values of a byte.
const VALUES: usize = 256;

/// The bytes that rules match, with rows of `width` words.
pub(crate) fn fields<W: Words, E: Entry>(rules: &[Rule<W, E>], width: usize) -> Vec<ByteField> {
    (0..W::COUNT * 8).filter_map(|place| field(rules, width, place)).collect()
}

/// `None` if no rule matches the byte.
fn field<W: Words, E: Entry>(
    rules: &[Rule<W, E>],
    width: usize,
    place: usize,
) -> Option<ByteField> {
    let mut asked: Vec<ByteCondition> =
        (0..).zip(rules).map(|(at, rule)| ByteCondition::of(rule, place, at)).collect();
    asked.sort_unstable();
    let alike =
        || asked.chunk_by(ByteCondition::is_same_condition).map(|group| (group[0].values(), group));
    let mut classes = Partition::of(VALUES);
    alike().for_each(|(values, _)| classes.split(&values));
    if classes.len() == 1 {
        return None;
    }
    let mut rows = vec![0; classes.len() * width];
    for (values, group) in alike() {
        for row in classes.classes_of(&values) {
            for ByteCondition { rule, .. } in group {
                rows[row * width + rule / 64] |= 1 << (rule % 64);
            }
        }
    }
    let numbers = std::array::from_fn(|value| classes.of[value]);
    Some(ByteField { place, numbers, rows })
}

/// What a rule demands of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ByteCondition {
    mask: u8,
    value: u8,
    rule: usize,
}

impl ByteCondition {
    /// Bits unused in keys match all.
    fn of<W: Words, E: Entry>(rule: &Rule<W, E>, place: usize, at: usize) -> Self {
        let byte = |words: &W| {
            let word = words.masked(&W::SIGNIFICANT).word(place / 8);
            word.to_le_bytes()[place % 8]
        };
        let mask = byte(&rule.mask);
        Self { mask, value: byte(&rule.value) & mask, rule: at }
    }

    fn is_same_condition(&self, other: &Self) -> bool {
        (self.mask, self.value) == (other.mask, other.value)
    }

    /// Matching values.
    fn values(self) -> Vec<usize> {
        let Self { mask, value, .. } = self;
        (0..=u8::MAX).filter(|seen| (seen ^ value) & mask == 0).map(usize::from).collect()
    }
}

/// A partition into classes, refined step by step.
struct Partition {
    /// Class of each element.
    of: Vec<u16>,
    classes: Vec<Class>,
}

#[derive(Clone, Copy, Default)]
struct Class {
    size: usize,
    /// Number of elements to be split off, during a split.
    inside: usize,
    /// Class that takes the split-off elements.
    split_off: Option<u16>,
}

impl Partition {
    /// All elements in one class.
    fn of(things: usize) -> Self {
        Self { of: vec![0; things], classes: vec![Class { size: things, ..Class::default() }] }
    }

    /// Number of classes.
    fn len(&self) -> usize {
        self.classes.len()
    }

    /// Refines the partition until each class is inside or outside of a set.
    fn split(&mut self, things: &[usize]) {
        for thing in things {
            self.classes[usize::from(self.of[*thing])].inside += 1;
        }
        for thing in things {
            let at = usize::from(self.of[*thing]);
            let Class { size, inside, split_off } = self.classes[at];
            if inside == size {
                continue;
            }
            let split_off = split_off.unwrap_or_else(|| {
                self.classes.push(Class::default());
                number(self.classes.len() - 1)
            });
            self.classes[at].split_off = Some(split_off);
            self.classes[usize::from(split_off)].size += 1;
            self.of[*thing] = split_off;
        }
        for class in &mut self.classes {
            if class.split_off.take().is_some() {
                class.size -= class.inside;
            }
            class.inside = 0;
        }
    }

    /// Classes of some elements.
    fn classes_of(&self, things: &[usize]) -> Vec<usize> {
        let mut met: Vec<_> = things.iter().map(|thing| usize::from(self.of[*thing])).collect();
        met.sort_unstable();
        met.dedup();
        met
    }
}

/// Counts stay below 65,536.
fn number(count: usize) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a look at each pair of values: those that some set parts are apart, no others are,
    /// and no class is empty.
    #[test]
    fn partition_is_coarsest_that_separates_sets() {
        let mut seed = 1_usize;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 40
        };
        for _ in 0..200 {
            let sets: Vec<Vec<usize>> = (0..next() % 9)
                .map(|_| {
                    let (value, mask) = (next(), next() & next());
                    (0..32).filter(|thing| (thing ^ value) & (mask % 32) == 0).collect()
                })
                .collect();
            let mut classes = Partition::of(32);
            sets.iter().for_each(|set| classes.split(set));
            let seen = |thing: usize| sets.iter().map(move |set| set.contains(&thing));
            for (one, other) in (0..32).flat_map(|one| (0..32).map(move |other| (one, other))) {
                assert_eq!(classes.of[one] == classes.of[other], seen(one).eq(seen(other)));
            }
            assert_eq!(
                classes.classes_of(&(0..32).collect::<Vec<_>>()),
                Vec::from_iter(0..classes.len())
            );
        }
    }
}
