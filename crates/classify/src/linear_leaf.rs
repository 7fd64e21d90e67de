//! Linear comparison of up to eight rules in match order. The number of comparisons is fixed,
//! repeating the last rule: that is cheaper than a branch.

use crate::entry::Entry;
use crate::key::{Key, Words};
use crate::rule::{Best, MatchRule};

/// Offers the first match of up to eight; `words` are in the rules' word order.
#[inline(always)]
pub(super) fn find<'a, W: Words, E: Entry, R: MatchRule<W, E>>(
    rules: &'a [R],
    words: &W,
    key: &Key<W>,
    best: &mut Best<'a, E>,
) {
    let fits = match rules.len() {
        0..=2 => fitting::<W, E, R, 2>(rules, words),
        3..=4 => fitting::<W, E, R, 4>(rules, words),
        _ => R::fitting_up_to_eight(rules, words),
    };
    first_match(rules, fits, words, key, best);
}

/// Offers the first match of up to eight for each key; `key_words` gives a key's words in the
/// rules' order.
#[inline]
pub(super) fn find_each<'a, W: Words, E: Entry, R: MatchRule<W, E>>(
    rules: &'a [R],
    key_words: impl Fn(&Key<W>) -> W,
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>],
) {
    match rules.len() {
        0..=2 => find_each_up_to::<W, E, R, 2>(rules, key_words, keys, bests),
        3..=4 => find_each_up_to::<W, E, R, 4>(rules, key_words, keys, bests),
        _ => find_each_up_to::<W, E, R, 8>(rules, key_words, keys, bests),
    }
}

/// Compares all keys with up to `N` rules.
#[inline(never)]
fn find_each_up_to<'a, W: Words, E: Entry, R: MatchRule<W, E>, const N: usize>(
    rules: &'a [R],
    key_words: impl Fn(&Key<W>) -> W,
    keys: &[Key<W>],
    bests: &mut [Best<'a, E>],
) {
    for (best, key) in bests.iter_mut().zip(keys) {
        let words = key_words(key);
        first_match(rules, fitting::<W, E, R, N>(rules, &words), &words, key, best);
    }
}

/// Offers the first rule whose words match. Branch-free over whether there is any.
#[inline]
fn first_match<'a, W: Words, E: Entry, R: MatchRule<W, E>>(
    rules: &'a [R],
    mut fits: u32,
    words: &W,
    key: &Key<W>,
    best: &mut Best<'a, E>,
) {
    let Some(last) = rules.last() else { return };
    loop {
        let rule = rules.get(fits.trailing_zeros() as usize).unwrap_or(last);
        if rule.fits_rest(words, key) || fits == 0 {
            return best.consider(rule.rank().or_last_if(fits == 0), rule.tag_bits(), rule.entry());
        }
        fits &= fits - 1;
    }
}

/// Which of up to `N` rules match, as bits.
#[inline]
pub(super) fn fitting<W: Words, E: Entry, R: MatchRule<W, E>, const N: usize>(
    rules: &[R],
    words: &W,
) -> u32 {
    let Some((last, before)) = rules.split_last() else { return 0 };
    let fit = |at: usize| u32::from(before.get(at).unwrap_or(last).fits(words)) << at;
    (0..N).fold(0, |fits, at| fits | fit(at))
}
