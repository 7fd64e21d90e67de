//! Linear comparison of up to eight policies in match order. The number of comparisons is fixed,
//! repeating the last policy: that is cheaper than a branch.

use super::rule::{Best, MatchRule};
use super::ternary::{Key, Words};

/// Offers the first match of up to eight; `words` are in the policies' word order.
#[inline(always)]
pub(super) fn find<'a, W: Words, R: MatchRule<W>>(
    policies: &'a [R],
    words: &W,
    key: &Key<W>,
    best: &mut Best<'a>,
) {
    let fits = match policies.len() {
        0..=2 => fitting::<W, R, 2>(policies, words),
        3..=4 => fitting::<W, R, 4>(policies, words),
        _ => R::fitting_up_to_eight(policies, words),
    };
    first_match(policies, fits, words, key, best);
}

/// Offers the first match of up to eight for each key; `key_words` gives a packet's words in the
/// policies' order.
#[inline]
pub(super) fn find_each<'a, W: Words, R: MatchRule<W>>(
    policies: &'a [R],
    key_words: impl Fn(&Key<W>) -> W,
    keys: &[Key<W>],
    bests: &mut [Best<'a>],
) {
    match policies.len() {
        0..=2 => find_each_up_to::<W, R, 2>(policies, key_words, keys, bests),
        3..=4 => find_each_up_to::<W, R, 4>(policies, key_words, keys, bests),
        _ => find_each_up_to::<W, R, 8>(policies, key_words, keys, bests),
    }
}

/// Compares all keys with up to `N` policies.
#[inline(never)]
fn find_each_up_to<'a, W: Words, R: MatchRule<W>, const N: usize>(
    policies: &'a [R],
    key_words: impl Fn(&Key<W>) -> W,
    keys: &[Key<W>],
    bests: &mut [Best<'a>],
) {
    for (best, key) in bests.iter_mut().zip(keys) {
        let words = key_words(key);
        first_match(policies, fitting::<W, R, N>(policies, &words), &words, key, best);
    }
}

/// Offers the first policy whose words match. Branch-free over whether there is any.
#[inline]
fn first_match<'a, W: Words, R: MatchRule<W>>(
    policies: &'a [R],
    mut fits: u32,
    words: &W,
    key: &Key<W>,
    best: &mut Best<'a>,
) {
    let Some(last) = policies.last() else { return };
    loop {
        let policy = policies.get(fits.trailing_zeros() as usize).unwrap_or(last);
        if policy.fits_rest(words, key) || fits == 0 {
            return best.consider(
                policy.rank().or_last_if(fits == 0),
                policy.verdict_bits(),
                policy.entry(),
            );
        }
        fits &= fits - 1;
    }
}

/// Which of up to `N` policies match, as bits.
#[inline]
pub(super) fn fitting<W: Words, R: MatchRule<W>, const N: usize>(policies: &[R], words: &W) -> u32 {
    let Some((last, before)) = policies.split_last() else { return 0 };
    let fit = |at: usize| u32::from(before.get(at).unwrap_or(last).fits(words)) << at;
    (0..N).fold(0, |fits, at| fits | fit(at))
}
