//! Some policies in their order, compared one by one. Always as many are, the last one over and over, because a branch less is worth more.

use super::rule::{Best, Comparable};
use super::ternary::{Key, Words};

/// Considers the first of up to eight that fits; packets' words are as the policies see them.
#[inline(always)]
pub(super) fn find<'a, W: Words, R: Comparable<W>>(
    policies: &'a [R],
    words: &W,
    key: &Key<W>,
    best: &mut Best<'a>,
) {
    let fits = match policies.len() {
        0..=2 => fitting::<W, R, 2>(policies, words),
        3..=4 => fitting::<W, R, 4>(policies, words),
        _ => R::fitting_more(policies, words),
    };
    first_fitting(policies, fits, words, key, best);
}

/// Considers the first of up to eight that fits, for each key; `seen` tells how the policies see a packet's words.
#[inline]
pub(super) fn find_each<'a, W: Words, R: Comparable<W>>(
    policies: &'a [R],
    seen: impl Fn(&Key<W>) -> W,
    keys: &[Key<W>],
    bests: &mut [Best<'a>],
) {
    match policies.len() {
        0..=2 => each::<W, R, 2>(policies, seen, keys, bests),
        3..=4 => each::<W, R, 4>(policies, seen, keys, bests),
        _ => each::<W, R, 8>(policies, seen, keys, bests),
    }
}

/// Up to `N` policies, which all keys are compared with.
#[inline(never)]
fn each<'a, W: Words, R: Comparable<W>, const N: usize>(
    policies: &'a [R],
    seen: impl Fn(&Key<W>) -> W,
    keys: &[Key<W>],
    bests: &mut [Best<'a>],
) {
    for (best, key) in bests.iter_mut().zip(keys) {
        let words = seen(key);
        first_fitting(policies, fitting::<W, R, N>(policies, &words), &words, key, best);
    }
}

/// Considers the first of the policies that fit as far as their words tell. Whether there is any is no branch.
#[inline]
fn first_fitting<'a, W: Words, R: Comparable<W>>(
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
            return best.consider(policy.rank().unless(fits == 0), policy.brief(), policy.entry());
        }
        fits &= fits - 1;
    }
}

/// Which of up to `N` policies fit, as bits.
#[inline]
pub(super) fn fitting<W: Words, R: Comparable<W>, const N: usize>(
    policies: &[R],
    words: &W,
) -> u32 {
    let Some((last, before)) = policies.split_last() else { return 0 };
    let fit = |at: usize| u32::from(before.get(at).unwrap_or(last).fits(words)) << at;
    (0..N).fold(0, |fits, at| fits | fit(at))
}
