//! Compact IPv6 rules. Most rules of a large set match the same local address and upper layer,
//! and use one of a few prefix lengths. What they share is a mask template, stored once and usually
//! cached; a rule then holds only the remote address.

use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use crate::entry::{Entry, Ternary};
use crate::key::{Key, V4, V6, WordArray, Words};
use crate::linear_leaf;
use crate::rule::{MatchRule, Rank, Rule, TagBits, fits_extra};

/// Source or destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressEnd {
    /// Destination address.
    Destination,
    /// Source address.
    Source,
}

/// What many rules match alike: all but the remote address bits. Cache-line aligned, so that
/// reference counting does not disturb readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub struct MaskTemplate {
    /// Masks: remote address, local address, upper layer.
    masks: V6,
    local: [u64; 2],
    upper: u64,
}

/// A rule that refers to a mask template.
#[derive(Clone, Debug)]
pub(crate) struct CompactRule<E> {
    far: [u64; 2],
    rank: Rank,
    tag_bits: TagBits,
    mask_template: Arc<MaskTemplate>,
    entry: E,
}

/// Operations on compact rules, for both families.
pub(crate) trait CompactRules<W: Words, E: Entry>:
    MatchRule<W, E> + Clone + Debug + Send + Sync
{
    /// Compacts rules; `None` if some have no template, or differ in more than the remote address.
    fn all(rules: &[Rule<W, E>]) -> Option<Arc<[Self]>>;
    /// The full rule, given the end of its remote address.
    fn expand(&self, far: AddressEnd) -> Rule<W, E>;
    /// A key's words with the remote address first.
    fn far_first(words: &W, far: AddressEnd) -> W;
}

impl MaskTemplate {
    /// Template of an entry.
    #[must_use]
    pub fn of(ternary: &Ternary, far: AddressEnd) -> Self {
        let Ternary { value, mask } = ternary;
        let (value, mask) = (Key::<V6>::of(value).words, Key::<V6>::of(mask).words);
        let [_, _, local @ .., upper] = far_first(&value.masked(&mask), far);
        Self { masks: far_first(&mask, far), local, upper }
    }

    /// Whether two templates differ in the remote mask only.
    fn differs_only_in_far(&self, other: &Self) -> bool {
        let local = |mask_template: &Self| {
            (mask_template.local, mask_template.upper, mask_template.masks[2..] == self.masks[2..])
        };
        local(self) == local(other)
    }
}

impl<E: Entry> CompactRule<E> {
    fn of(rule: &Rule<V6, E>) -> Option<Self> {
        let mask_template = Arc::clone(rule.entry.mask_template()?);
        let [high, low, ..] = far_first(&rule.value, rule.entry.far_end());
        let (rank, tag_bits, entry) = (rule.rank(), rule.tag_bits(), rule.entry.clone());
        Some(Self { far: [high, low], rank, tag_bits, mask_template, entry })
    }
}

impl<E: Entry> CompactRules<V6, E> for CompactRule<E> {
    fn all(rules: &[Rule<V6, E>]) -> Option<Arc<[Self]>> {
        let all = rules.iter().map(Self::of).collect::<Option<Vec<_>>>()?;
        let first = &all.first()?.mask_template;
        all.iter()
            .all(|compact| compact.mask_template.differs_only_in_far(first))
            .then(|| all.into())
    }

    fn expand(&self, far: AddressEnd) -> Rule<V6, E> {
        let ([high, low], [near_high, near_low]) = (self.far, self.mask_template.local);
        let value = far_first(&[high, low, near_high, near_low, self.mask_template.upper], far);
        let mask = far_first(&self.mask_template.masks, far);
        Rule::new(value, mask, self.rank, self.tag_bits, self.entry.clone())
    }

    #[inline]
    fn far_first(words: &V6, far: AddressEnd) -> V6 {
        far_first(words, far)
    }
}

/// Words with the remote address first. An involution.
#[inline]
fn far_first(words: &V6, far: AddressEnd) -> V6 {
    let [destination_high, destination_low, source_high, source_low, upper] = *words;
    match far {
        AddressEnd::Destination => *words,
        AddressEnd::Source => [source_high, source_low, destination_high, destination_low, upper],
    }
}

impl<E: Entry> MatchRule<V6, E> for CompactRule<E> {
    #[inline]
    fn rank(&self) -> Rank {
        self.rank
    }

    #[inline]
    fn fits(&self, words: &V6) -> bool {
        let masks = &self.mask_template.masks;
        (words[0] ^ self.far[0]) & masks[0] | (words[1] ^ self.far[1]) & masks[1] == 0
    }

    #[inline]
    fn fits_rest(&self, words: &V6, key: &Key<V6>) -> bool {
        let MaskTemplate { masks, local, upper } = &*self.mask_template;
        let value = [words[0], words[1], local[0], local[1], *upper];
        words.difference(&value, masks) == 0
            && (!self.tag_bits.has_extra() || fits_extra(&self.entry, key))
    }

    #[inline]
    fn fitting_up_to_eight(rules: &[Self], words: &V6) -> u32 {
        match rules.len() {
            0..=6 => linear_leaf::fitting::<V6, E, Self, 6>(rules, words),
            _ => linear_leaf::fitting::<V6, E, Self, 8>(rules, words),
        }
    }

    #[inline]
    fn tag_bits(&self) -> TagBits {
        self.tag_bits
    }

    #[inline]
    fn entry(&self) -> &E {
        &self.entry
    }
}

/// IPv4 has no compact form: full rules are as small.
impl<E: Entry> CompactRules<V4, E> for Infallible {
    fn all(_: &[Rule<V4, E>]) -> Option<Arc<[Self]>> {
        None
    }

    fn expand(&self, _: AddressEnd) -> Rule<V4, E> {
        match *self {}
    }

    fn far_first(words: &V4, _: AddressEnd) -> V4 {
        *words
    }
}

impl<E: Entry> MatchRule<V4, E> for Infallible {
    fn rank(&self) -> Rank {
        match *self {}
    }

    fn fits(&self, _: &V4) -> bool {
        match *self {}
    }

    fn fits_rest(&self, _: &V4, _: &Key<V4>) -> bool {
        match *self {}
    }

    fn fitting_up_to_eight(_: &[Self], _: &V4) -> u32 {
        0
    }

    fn tag_bits(&self) -> TagBits {
        match *self {}
    }

    fn entry(&self) -> &E {
        match *self {}
    }
}

#[cfg(test)]
mod tests;
