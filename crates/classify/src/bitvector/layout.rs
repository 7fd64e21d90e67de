//! Which bytes of a key are looked up.

use super::{LAST, UNUSED_BYTES, VALUES, WORD};

/// How the looked-up bytes are enumerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteLayout {
    /// A list of byte indexes.
    Listed,
    /// Whole words and the used bytes of the last word; pays where most of these have rows.
    ByWords,
    /// All bytes of a two-word (IPv4) key: the count is a constant.
    Two,
}

/// [`ByteLayout`] as a const generic argument. [`TWO`] is the number of bytes.
#[cfg(target_arch = "x86_64")]
pub(super) const LISTED: usize = 0;
#[cfg(target_arch = "x86_64")]
pub(super) const BY_WORDS: usize = 1;
pub(super) const TWO: usize = WORD + LAST;

/// A byte index, and the row number of each of its values.
pub(super) type Numbered = (usize, [u16; VALUES]);

/// Completes the bytes to whole words, if most of these have rows and each byte is listed once and
/// in order. Added bytes get row 0, which has all bits.
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
