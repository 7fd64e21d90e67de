//! Adjacent bits of a key, by which rules are partitioned.

use crate::key::Words;

/// Up to nine bits of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Word index, and the number of bits in the lowest four bits; packed, so that a cut has room
    /// for its other fields.
    layout: u8,
    shift: u8,
}

impl Window {
    /// `bits` bits from `shift` upwards, within the word.
    pub(crate) const fn new(word: u8, shift: u8, bits: u8) -> Self {
        Self { layout: word << 4 | bits, shift }
    }

    /// The window's value in a key.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "nine bits are used")]
    pub(crate) fn value_in<W: Words>(self, words: &W) -> usize {
        let mask = self.fanout() - 1;
        (words.word((self.layout >> 4).into()) >> self.shift) as usize & mask
    }

    /// The window's value in all keys that match a rule; `None` if the mask does not cover
    /// the window.
    #[inline]
    pub(crate) fn value_of_rule<W: Words>(self, value: &W, mask: &W) -> Option<usize> {
        (self.value_in(mask) == self.fanout() - 1).then(|| self.value_in(value))
    }

    /// Number of values.
    pub(crate) const fn fanout(self) -> usize {
        1 << (self.layout & 0xf)
    }
}
