//! Some neighbouring bits of a packet, by which a set of policies is cut into parts.

use super::ternary::Words;

/// Up to nine bits of one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The word's number, and in the lowest four bits how many bits: so that a cut finds room for what else it says.
    shape: u8,
    shift: u8,
}

impl Window {
    /// `bits` bits from `shift` upwards; they are inside the word.
    pub(crate) const fn new(word: u8, shift: u8, bits: u8) -> Self {
        Self { shape: word << 4 | bits, shift }
    }

    /// What stands in it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "nine bits are used")]
    pub(crate) fn part<W: Words>(self, words: &W) -> usize {
        let mask = self.parts() - 1;
        (words.word((self.shape >> 4).into()) >> self.shift) as usize & mask
    }

    /// What stands in it in all packets that fit a selector; none when its bits do not all count.
    #[inline]
    pub(crate) fn part_of<W: Words>(self, value: &W, mask: &W) -> Option<usize> {
        (self.part(mask) == self.parts() - 1).then(|| self.part(value))
    }

    /// How many parts there are.
    pub(crate) const fn parts(self) -> usize {
        1 << (self.shape & 0xf)
    }
}
