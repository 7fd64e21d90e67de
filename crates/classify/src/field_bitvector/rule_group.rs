//! Adjacent rules that share a bit of a field bit vector.

use std::ops::Range;

use crate::entry::Entry;
use crate::key::{UNUSED_BITS, Words};
use crate::rule::{MatchRule, Rule};
use crate::ternary_block::BLOCK_LANES;

/// A run of rules.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RuleGroup {
    /// Number of the first.
    first: u32,
    /// Length of the run.
    lanes: u8,
    /// Rules still present, as bits.
    pub(super) live: u8,
}

const _: () = assert!(BLOCK_LANES <= u8::BITS as usize, "who is live fits");

/// Groups of rules in match order; bits are shared only where that shortens rows.
pub(super) fn groups<W: Words, E: Entry>(rules: &[&Rule<W, E>]) -> Vec<RuleGroup> {
    let shared = shared(rules);
    let lines = |bits: usize| bits.div_ceil(LINE);
    if lines(shared.len()) < lines(rules.len()) {
        return shared;
    }
    (0..rules.len()).map(|first| RuleGroup::of(first, 1)).collect()
}

fn shared<W: Words, E: Entry>(rules: &[&Rule<W, E>]) -> Vec<RuleGroup> {
    let mut groups = Vec::new();
    let mut rest = rules;
    while let [first, others @ ..] = rest {
        let ports = [SOURCE, DESTINATION].map(|port| {
            let is_like = |other: &&&Rule<W, E>| differ_in(first, other, port);
            1 + others.iter().take(BLOCK_LANES - 1).take_while(is_like).count()
        });
        let lanes = ports[0].max(ports[1]);
        groups.push(RuleGroup::of(rules.len() - rest.len(), lanes));
        rest = &rest[lanes..];
    }
    groups
}

/// Bits of a line.
const LINE: usize = 512;
/// Positions of the ports in the last word.
const SOURCE: u64 = 0xffff << 48;
const DESTINATION: u64 = 0xffff << 32;

/// Whether two rules differ in one port only.
fn differ_in<W: Words, E: Entry>(rule: &Rule<W, E>, other: &Rule<W, E>, port: u64) -> bool {
    let more = rule.tag_bits().has_extra() || other.tag_bits().has_extra();
    let same = |one: &W, other: &W| {
        let differing = (0..W::COUNT).map(|at| one.word(at) ^ other.word(at));
        differing.enumerate().all(|(at, differing)| match at {
            _ if at == W::COUNT - 1 => differing & !port & !UNUSED_BITS == 0,
            _ => differing == 0,
        })
    };
    !more && same(&rule.value, &other.value) && same(&rule.mask, &other.mask)
}

impl RuleGroup {
    /// A run of `lanes` rules from `first` on.
    fn of(first: usize, lanes: usize) -> Self {
        let lanes = u8::try_from(lanes.min(BLOCK_LANES)).unwrap_or(0);
        Self {
            first: u32::try_from(first).unwrap_or(u32::MAX),
            lanes,
            live: u8::MAX >> (8 - lanes),
        }
    }

    #[inline]
    pub(super) const fn lanes(self) -> usize {
        self.lanes as usize
    }

    /// Number of one of its rules.
    #[inline]
    pub(super) const fn entry(self, lane: usize) -> usize {
        self.first as usize + lane
    }

    /// Position of its last words.
    #[inline]
    pub(super) const fn words(self) -> Range<usize> {
        let first = 2 * self.first as usize;
        first..first + 2 * self.lanes as usize
    }

    /// Number of the first present rule among those that match; beyond all if there is none.
    #[inline]
    pub(super) const fn rule(self, fits: u8) -> usize {
        let first = self.first as usize;
        match fits & self.live {
            0 => usize::MAX,
            fits => first + fits.trailing_zeros() as usize,
        }
    }

    /// Its rules.
    pub(super) fn rules_of<'a, W: Words, E: Entry>(
        self,
        rules: &'a [&'a Rule<W, E>],
    ) -> &'a [&'a Rule<W, E>] {
        &rules[self.entry(0)..self.entry(self.lanes())]
    }

    /// Its last words: values, then masks.
    pub(super) fn uppers<W: Words, E: Entry>(
        self,
        rules: &[&Rule<W, E>],
    ) -> impl Iterator<Item = u64> {
        let rules = self.rules_of(rules);
        let all =
            |of: fn(&Rule<W, E>) -> W| rules.iter().map(move |rule| of(rule).word(W::COUNT - 1));
        all(|rule| rule.value).chain(all(|rule| rule.mask)).collect::<Vec<_>>().into_iter()
    }
}
