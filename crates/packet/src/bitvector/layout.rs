//! Which bytes of keys are looked up.

use super::{LAST, UNUSED_BYTES, VALUES, WORD};

/// Which bytes are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteLayout {
    /// Those that are listed.
    Listed,
    /// All of some words and of the last, where most of these are asked for something: which they are need not be read.
    ByWords,
    /// All of keys of two words, as those of IPv4 are: how many they are need not be read either.
    Two,
}

/// The same, for functions that are made for each. [`TWO`] is how many bytes there are.
#[cfg(target_arch = "x86_64")]
pub(super) const LISTED: usize = 0;
#[cfg(target_arch = "x86_64")]
pub(super) const BY_WORDS: usize = 1;
pub(super) const TWO: usize = WORD + LAST;

/// A byte, and the numbers of its values' rows.
pub(super) type Numbered = (usize, [u16; VALUES]);

/// All bytes of the words up to the last that have some of these bytes, and those that may be asked for of the last: if most of them are asked for something, each
/// but once. Those that are not have row 0, which has all bits.
pub(super) fn whole_words(last: usize, numbered: &[Numbered]) -> Option<Vec<Numbered>> {
    let has = |word: &usize| numbered.iter().any(|(place, _)| place / WORD == *word);
    let words = (0..last).filter(has).flat_map(|word| word * WORD..(word + 1) * WORD);
    let places: Vec<_> = words.chain(last * WORD + UNUSED_BYTES..(last + 1) * WORD).collect();
    let is_once = numbered.is_sorted_by(|(one, _), (next, _)| one < next);
    let of = |place: usize| {
        let asked = numbered.iter().find(|(asked, _)| *asked == place);
        asked.copied().unwrap_or((place, [0; VALUES]))
    };
    (is_once && 4 * numbered.len() >= 3 * places.len())
        .then(|| places.into_iter().map(of).collect())
}
