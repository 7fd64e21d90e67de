//! Compact IPv6 rules. Most policies of a large set match the same local address and upper layer,
//! and use one of a few prefix lengths. What they share is a mask template, stored once and usually
//! cached; a rule then holds only the remote address.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::linear_leaf;
use super::rule::{MatchRule, Rank, Rule, VerdictBits, fits_extra};
use super::ternary::{Key, V4, V6, Words, selector_bits};
use crate::{Direction, PolicyEntry, Selector};

/// Source or destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressEnd {
    Destination,
    Source,
}

/// What many policies match alike: all but the remote address bits. Cache-line aligned, so that
/// reference counting does not disturb readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub(crate) struct MaskTemplate {
    /// Masks: remote address, local address, upper layer.
    masks: V6,
    local: [u64; 2],
    upper: u64,
}

/// Mask templates with their reference counts; limited so that they stay in the first-level caches.
#[derive(Debug, Default)]
pub(crate) struct MaskTemplates(HashMap<Arc<MaskTemplate>, u32, RandomState>);

/// Upper limit of mask templates.
const MAX_TEMPLATES: usize = 256;

/// A rule that refers to a mask template.
#[derive(Clone, Debug)]
pub(crate) struct CompactRule {
    far: [u64; 2],
    rank: Rank,
    verdict_bits: VerdictBits,
    mask_template: Arc<MaskTemplate>,
    entry: Arc<PolicyEntry>,
}

/// Operations on compact rules, for both families.
pub(crate) trait CompactRules<W: Words>: MatchRule<W> + Clone + Debug + Send + Sync {
    /// Compacts rules; `None` if some have no template, or differ in more than the remote address.
    fn all(rules: &[Rule<W>]) -> Option<Arc<[Self]>>;
    /// The full rule, given the end of its remote address.
    fn expand(&self, far: AddressEnd) -> Rule<W>;
    /// A packet's words with the remote address first.
    fn far_first(words: &W, far: AddressEnd) -> W;
}

impl AddressEnd {
    /// The remote end.
    pub(crate) const fn of(direction: Direction) -> Self {
        match direction {
            Direction::Out => Self::Destination,
            Direction::In | Direction::Forward => Self::Source,
        }
    }

    /// The remote end of a policy.
    pub(crate) fn far<W>(rule: &Rule<W>) -> Self {
        Self::of(rule.entry.direction())
    }
}

impl MaskTemplate {
    /// Template of a selector.
    pub(crate) fn of(selector: &Selector, direction: Direction) -> Self {
        let far = AddressEnd::of(direction);
        let (value, mask) = selector_bits::<V6>(selector);
        let [_, _, local @ .., upper] = CompactRule::far_first(&value, far);
        Self { masks: CompactRule::far_first(&mask, far), local, upper }
    }

    /// Whether two templates differ in the remote mask only.
    fn differs_only_in_far(&self, other: &Self) -> bool {
        let local = |mask_template: &Self| {
            (mask_template.local, mask_template.upper, mask_template.masks[2..] == self.masks[2..])
        };
        local(self) == local(other)
    }
}

impl MaskTemplates {
    /// Adds a reference to a template; `None` if there is no room.
    pub(crate) fn share(&mut self, mask_template: MaskTemplate) -> Option<Arc<MaskTemplate>> {
        let kept = self.0.get_key_value(&mask_template).map(|(kept, _)| Arc::clone(kept));
        let kept = kept.or_else(|| self.have_room().then(|| Arc::new(mask_template)))?;
        *self.0.entry(Arc::clone(&kept)).or_default() += 1;
        Some(kept)
    }

    /// Drops a reference.
    pub(crate) fn release(&mut self, mask_template: &Arc<MaskTemplate>) {
        let Some(count) = self.0.get_mut(mask_template) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(mask_template);
        }
    }

    /// Whether another template fits.
    pub(crate) fn have_room(&self) -> bool {
        self.0.len() < MAX_TEMPLATES
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl CompactRule {
    fn of(rule: &Rule<V6>) -> Option<Self> {
        let mask_template = Arc::clone(rule.entry.mask_template()?);
        let [high, low, ..] = Self::far_first(&rule.value, AddressEnd::far(rule));
        let (rank, verdict_bits, entry) =
            (rule.rank(), rule.verdict_bits(), Arc::clone(&rule.entry));
        Some(Self { far: [high, low], rank, verdict_bits, mask_template, entry })
    }
}

impl CompactRules<V6> for CompactRule {
    fn all(rules: &[Rule<V6>]) -> Option<Arc<[Self]>> {
        let all = rules.iter().map(Self::of).collect::<Option<Vec<_>>>()?;
        let first = &all.first()?.mask_template;
        all.iter()
            .all(|compact| compact.mask_template.differs_only_in_far(first))
            .then(|| all.into())
    }

    fn expand(&self, far: AddressEnd) -> Rule<V6> {
        let ([high, low], [near_high, near_low]) = (self.far, self.mask_template.local);
        let value =
            Self::far_first(&[high, low, near_high, near_low, self.mask_template.upper], far);
        let mask = Self::far_first(&self.mask_template.masks, far);
        Rule::new(value, mask, self.rank, self.verdict_bits, Arc::clone(&self.entry))
    }

    /// An involution.
    #[inline]
    fn far_first(words: &V6, far: AddressEnd) -> V6 {
        let [destination_high, destination_low, source_high, source_low, upper] = *words;
        match far {
            AddressEnd::Destination => *words,
            AddressEnd::Source => {
                [source_high, source_low, destination_high, destination_low, upper]
            }
        }
    }
}

impl MatchRule<V6> for CompactRule {
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
            && (!self.verdict_bits.has_extra() || fits_extra(&self.entry, key))
    }

    #[inline]
    fn fitting_up_to_eight(policies: &[Self], words: &V6) -> u32 {
        match policies.len() {
            0..=6 => linear_leaf::fitting::<V6, Self, 6>(policies, words),
            _ => linear_leaf::fitting::<V6, Self, 8>(policies, words),
        }
    }

    #[inline]
    fn verdict_bits(&self) -> VerdictBits {
        self.verdict_bits
    }

    #[inline]
    fn entry(&self) -> &Arc<PolicyEntry> {
        &self.entry
    }
}

/// IPv4 has no compact form: full rules are as small.
impl CompactRules<V4> for Infallible {
    fn all(_: &[Rule<V4>]) -> Option<Arc<[Self]>> {
        None
    }

    fn expand(&self, _: AddressEnd) -> Rule<V4> {
        match *self {}
    }

    fn far_first(words: &V4, _: AddressEnd) -> V4 {
        *words
    }
}

impl MatchRule<V4> for Infallible {
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

    fn verdict_bits(&self) -> VerdictBits {
        match *self {}
    }

    fn entry(&self) -> &Arc<PolicyEntry> {
        match *self {}
    }
}

#[cfg(test)]
mod tests;
