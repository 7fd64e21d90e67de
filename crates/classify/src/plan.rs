//! Plans how to search a set of rules: linear, SIMD or bit-vector comparison, or a cut by some
//! bits of the key.
//!
//! Costs are estimated cycles of a look-up, from counts of how the rules would be partitioned.

use crate::byte_bitvector;
use crate::entry::Entry;
use crate::key::Words;
use crate::rule::Rule;
use crate::simd_leaf::MAX_RULES;
use crate::window::Window;

/// How a set is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Compare one by one.
    Linear,
    /// Compare eight at a time.
    Simd,
    /// Compare all with bit vectors.
    Bitvector,
    /// Partition by a window.
    Cut(Window),
}

/// Up to this many are always compared one by one.
pub(crate) const FEW: usize = 4;
/// Up to this many are not cut.
pub(crate) const LEAST: usize = 8;
/// Larger sets use a bit vector only if no cut separates them.
const MANY: usize = 1024;
/// Sample size for larger sets.
const SAMPLE: usize = 2048;
/// A change copies each cut on its path: at the root once per batch of changes, but in inner sets
/// of these sizes for each change. There, a cut into more parts than `WIDE` must save more than
/// `COPY`. Cuts that leave a rest always do.
const INNER: std::ops::Range<usize> = 1024..32_768;
const WIDE: usize = 64;
const COPY: usize = 30;
/// Parts of the largest window.
const MOST_PARTS: usize = 512;
/// Cost of following a cut, and of searching its rest as well.
const HOP: usize = 10;
const WAY: usize = 20;

/// The best plan for some rules.
pub(crate) fn plan<W: Words, E: Entry>(rules: &[&Rule<W, E>]) -> Plan {
    if rules.len() <= FEW {
        return Plan::Linear;
    }
    if rules.len() <= LEAST {
        return Plan::Simd;
    }
    let mask_union = rules.iter().fold(W::ZERO, |mask_union, rule| mask_union.union(&rule.mask));
    let stay = if rules.len() <= MANY { flat(rules.len(), &mask_union) } else { usize::MAX };
    match each_cut(rules).into_iter().min_by_key(|(cost, _)| *cost) {
        Some((cost, window)) if cost < stay => Plan::Cut(window),
        Some(_) | None if rules.len() <= max_simd_rules::<W>() => Plan::Simd,
        Some(_) | None => Plan::Bitvector,
    }
}

/// Possible cuts, cheapest first.
pub(crate) fn cuts<W: Words, E: Entry>(rules: &[&Rule<W, E>]) -> Vec<Window> {
    let mut cuts = each_cut(rules);
    cuts.sort_by_key(|(cost, _)| *cost);
    cuts.into_iter().map(|(_, window)| window).collect()
}

/// Possible cuts with their estimated costs.
fn each_cut<W: Words, E: Entry>(rules: &[&Rule<W, E>]) -> Vec<(usize, Window)> {
    let sample: Vec<&Rule<W, E>> =
        rules.iter().copied().step_by(rules.len().div_ceil(SAMPLE)).collect();
    let mut counts = [0; MOST_PARTS];
    let mut cost = |window| cut_cost(&sample, rules.len(), window, &mut counts);
    windows(&sample).into_iter().filter_map(|window| Some((cost(window)?, window))).collect()
}

/// Up to this many are compared eight at a time.
const fn max_simd_rules<W: Words>() -> usize {
    if W::COUNT == 2 { MAX_RULES } else { MAX_RULES * 5 / 8 }
}

/// Cost without a cut; `mask_union` is what the rules match.
fn flat<W: Words>(rules: usize, mask_union: &W) -> usize {
    if rules <= FEW {
        return 25 + 2 * rules.next_multiple_of(2);
    }
    if rules <= max_simd_rules::<W>() {
        return 28 + rules.div_ceil(8) * (3 + 2 * W::COUNT);
    }
    let bytes = byte_bitvector::bytes(mask_union);
    30 + bytes + bytes * byte_bitvector::width(rules).div_ceil(8) * 2
}

/// Estimated cost of a set not yet planned. IPv6 costs more: its nodes take more cache lines.
fn unknown<W: Words>(rules: usize, mask_union: &W) -> usize {
    let (least, doubled) = if W::COUNT == 2 { (45, 12) } else { (60, 10) };
    match rules {
        0 => 4,
        1..=LEAST => flat(rules, mask_union),
        _ => {
            let cut = least + doubled * (rules / LEAST).ilog2() as usize;
            if rules <= MANY { flat(rules, mask_union).min(cut) } else { cut }
        }
    }
}

/// Estimated cost of a cut; `None` if it separates nothing. `counts` is scratch space.
fn cut_cost<W: Words, E: Entry>(
    sample: &[&Rule<W, E>],
    rules: usize,
    window: Window,
    counts: &mut [usize; MOST_PARTS],
) -> Option<usize> {
    let parts = &mut counts[..window.fanout()];
    parts.fill(0);
    let (mut rest, mut mask_union) = (0, W::ZERO);
    for rule in sample {
        match window.value_of_rule(&rule.value, &rule.mask) {
            Some(part) => parts[part] += 1,
            None => {
                rest += 1;
                mask_union = mask_union.union(&rule.mask);
            }
        }
    }
    let inside = sample.len() - rest;
    if inside == 0 || parts.contains(&sample.len()) {
        return None;
    }
    let scale = |count: usize| (count * rules).div_ceil(sample.len());
    let part = |count: usize| unknown(scale(count), &W::SIGNIFICANT);
    let each = parts.iter().filter(|count| **count != 0);
    let parts = each.map(|count| count * part(*count)).sum::<usize>() / inside;
    let memory = window.fanout() * 8 / rules;
    let rest = match rest {
        0 if window.fanout() > WIDE && INNER.contains(&rules) => COPY,
        0 => 0,
        _ => WAY + unknown(scale(rest), &mask_union),
    };
    Some(HOP + parts + rest + memory)
}

/// Candidate windows: in each field at the highest separating bits, below them, and at the lowest.
fn windows<W: Words, E: Entry>(sample: &[&Rule<W, E>]) -> Vec<Window> {
    let mut windows = Vec::with_capacity(48);
    for (word, low, len) in fields::<W>() {
        let of = |words: &W| words.word(word.into()) >> low & (u64::MAX >> (64 - len));
        let (mut ones, mut zeros) = (0, 0);
        for rule in sample {
            ones |= of(&rule.value) & of(&rule.mask);
            zeros |= !of(&rule.value) & of(&rule.mask);
        }
        let split = ones & zeros;
        if split == 0 {
            continue;
        }
        let (highest, lowest) = (split.ilog2(), split.trailing_zeros());
        for bits in [3_u8, 6, 9] {
            if bits > len || 1 << bits > 4 * sample.len() {
                continue;
            }
            let width = u32::from(bits);
            let top = (highest + 1).saturating_sub(width);
            for shift in [top, top.saturating_sub(width), lowest.min(u32::from(len) - width)] {
                let window = Window::new(word, low + shift.to_le_bytes()[0], bits);
                if !windows.contains(&window) {
                    windows.push(window);
                }
            }
        }
    }
    windows
}

/// Fields: word, lowest bit, length.
fn fields<W: Words>() -> impl Iterator<Item = (u8, u8, u8)> {
    let last = u8::try_from(W::COUNT - 1).unwrap_or(0);
    let addresses: &[(u8, u8, u8)] = match W::ADDRESS_BITS {
        32 => &[(0, 32, 32), (0, 0, 32)],
        _ => &[(0, 0, 64), (1, 0, 64), (2, 0, 64), (3, 0, 64)],
    };
    addresses.iter().copied().chain([(last, 48, 16), (last, 32, 16), (last, 24, 8)])
}
