//! Some neighbouring bits of a packet, by which a set of policies is cut into parts.

use super::ternary::KeyWords;

/// Up to nine bits of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The word's number, and in the lowest four bits how many bits: so that a cut finds room for what else it says.
    layout: u8,
    shift: u8,
}

impl Window {
    /// `bits` bits from `shift` upwards; they are inside the word.
    pub(crate) const fn new(word: u8, shift: u8, bits: u8) -> Self {
        Self { layout: word << 4 | bits, shift }
    }

    /// What stands in it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "nine bits are used")]
    pub(crate) fn value_in<W: KeyWords>(self, words: &W) -> usize {
        let mask = self.fanout() - 1;
        (words.word((self.layout >> 4).into()) >> self.shift) as usize & mask
    }

    /// What stands in it in all packets that fit a selector; none when its bits do not all count.
    #[inline]
    pub(crate) fn value_of_rule<W: KeyWords>(self, value: &W, mask: &W) -> Option<usize> {
        (self.value_in(mask) == self.fanout() - 1).then(|| self.value_in(value))
    }

    /// How many parts there are.
    pub(crate) const fn fanout(self) -> usize {
        1 << (self.layout & 0xf)
    }
}
