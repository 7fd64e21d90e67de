//! Policies of IPv6 in few bytes. Most policies of a large set ask the same of this side's address and of the upper layer, and have one of a few
//! prefix lengths: what many ask alike is their shape, and stands in memory once, where it stays in the processor's cache. A policy then has no
//! more to itself than the bits of the address on the other side.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::linear_leaf;
use super::rule::{Brief, Comparable, Rank, Rule, fits_more};
use super::ternary::{Key, V4, V6, Words, asked};
use crate::{Direction, PolicyEntry, Selector};

/// Which of a packet's addresses, by the place of its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Destination,
    Source,
}

/// What many policies ask of packets alike: all but the bits of the address on the other side. Lines of its own, so that whoever counts on it takes
/// them from no reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(align(64))]
pub(crate) struct Shape {
    /// The other side's address, this side's, upper layer.
    masks: V6,
    near: [u64; 2],
    upper: u64,
}

/// The shapes of policies, each once, and how many terms say so; no more than stay in the processor's first caches.
#[derive(Debug, Default)]
pub(crate) struct Shapes(HashMap<Arc<Shape>, u32, RandomState>);

/// So many shapes are kept.
const MOST: usize = 256;

/// A policy whose shape is kept.
#[derive(Clone, Debug)]
pub(crate) struct Lean {
    far: [u64; 2],
    rank: Rank,
    brief: Brief,
    shape: Arc<Shape>,
    entry: Arc<PolicyEntry>,
}

/// What words of either family do with lean rules.
pub(crate) trait LeanOf<W: Words>: Comparable<W> + Clone + Debug + Send + Sync {
    /// Of some rules; none where their shapes are not kept, or where they are told apart by more than the other side's address.
    fn all(rules: &[Rule<W>]) -> Option<Arc<[Self]>>;
    /// The rule in full, whose far address is at that end.
    fn whole(&self, far: End) -> Rule<W>;
    /// A packet's words as rules see them, whose far address is at that end.
    fn seen(words: &W, far: End) -> W;
}

impl End {
    /// That of the other side.
    pub(crate) const fn of(direction: Direction) -> Self {
        match direction {
            Direction::Out => Self::Destination,
            Direction::In | Direction::Forward => Self::Source,
        }
    }

    /// That of the other side of a policy.
    pub(crate) fn far<W>(rule: &Rule<W>) -> Self {
        Self::of(rule.entry.direction())
    }
}

impl Shape {
    /// Of policies of a direction with such a selector.
    pub(crate) fn of(selector: &Selector, direction: Direction) -> Self {
        let far = End::of(direction);
        let (value, mask) = asked::<V6>(selector);
        let [_, _, near @ .., upper] = Lean::seen(&value, far);
        Self { masks: Lean::seen(&mask, far), near, upper }
    }

    /// Whether another asks the same but of the other side's address.
    fn is_like(&self, other: &Self) -> bool {
        let near = |shape: &Self| (shape.near, shape.upper, shape.masks[2..] == self.masks[2..]);
        near(self) == near(other)
    }
}

impl Shapes {
    /// A shape of one more; none when others take all room.
    pub(crate) fn share(&mut self, shape: Shape) -> Option<Arc<Shape>> {
        let kept = self.0.get_key_value(&shape).map(|(kept, _)| Arc::clone(kept));
        let kept = kept.or_else(|| self.have_room().then(|| Arc::new(shape)))?;
        *self.0.entry(Arc::clone(&kept)).or_default() += 1;
        Some(kept)
    }

    /// One less has a shape that is kept.
    pub(crate) fn release(&mut self, shape: &Arc<Shape>) {
        let Some(count) = self.0.get_mut(shape) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(shape);
        }
    }

    /// Whether one more may be kept.
    pub(crate) fn have_room(&self) -> bool {
        self.0.len() < MOST
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Lean {
    fn of(rule: &Rule<V6>) -> Option<Self> {
        let shape = Arc::clone(rule.entry.shape()?);
        let [high, low, ..] = Self::seen(&rule.value, End::far(rule));
        let (rank, brief, entry) = (rule.rank(), rule.brief(), Arc::clone(&rule.entry));
        Some(Self { far: [high, low], rank, brief, shape, entry })
    }
}

impl LeanOf<V6> for Lean {
    fn all(rules: &[Rule<V6>]) -> Option<Arc<[Self]>> {
        let all = rules.iter().map(Self::of).collect::<Option<Vec<_>>>()?;
        let first = &all.first()?.shape;
        all.iter().all(|lean| lean.shape.is_like(first)).then(|| all.into())
    }

    fn whole(&self, far: End) -> Rule<V6> {
        let ([high, low], [near_high, near_low]) = (self.far, self.shape.near);
        let value = Self::seen(&[high, low, near_high, near_low, self.shape.upper], far);
        let mask = Self::seen(&self.shape.masks, far);
        Rule::new(value, mask, self.rank, self.brief, Arc::clone(&self.entry))
    }

    /// Seen so twice they are as they were.
    #[inline]
    fn seen(words: &V6, far: End) -> V6 {
        let [destination_high, destination_low, source_high, source_low, upper] = *words;
        match far {
            End::Destination => *words,
            End::Source => [source_high, source_low, destination_high, destination_low, upper],
        }
    }
}

impl Comparable<V6> for Lean {
    #[inline]
    fn rank(&self) -> Rank {
        self.rank
    }

    #[inline]
    fn fits(&self, words: &V6) -> bool {
        let masks = &self.shape.masks;
        (words[0] ^ self.far[0]) & masks[0] | (words[1] ^ self.far[1]) & masks[1] == 0
    }

    #[inline]
    fn fits_rest(&self, words: &V6, key: &Key<V6>) -> bool {
        let Shape { masks, near, upper } = &*self.shape;
        let value = [words[0], words[1], near[0], near[1], *upper];
        words.difference(&value, masks) == 0
            && (!self.brief.asks_more() || fits_more(&self.entry, key))
    }

    #[inline]
    fn fitting_more(policies: &[Self], words: &V6) -> u32 {
        match policies.len() {
            0..=6 => linear_leaf::fitting::<V6, Self, 6>(policies, words),
            _ => linear_leaf::fitting::<V6, Self, 8>(policies, words),
        }
    }

    #[inline]
    fn brief(&self) -> Brief {
        self.brief
    }

    #[inline]
    fn entry(&self) -> &Arc<PolicyEntry> {
        &self.entry
    }
}

/// Whole rules of IPv4 take no more than lean ones of IPv6.
impl LeanOf<V4> for Infallible {
    fn all(_: &[Rule<V4>]) -> Option<Arc<[Self]>> {
        None
    }

    fn whole(&self, _: End) -> Rule<V4> {
        match *self {}
    }

    fn seen(words: &V4, _: End) -> V4 {
        *words
    }
}

impl Comparable<V4> for Infallible {
    fn rank(&self) -> Rank {
        match *self {}
    }

    fn fits(&self, _: &V4) -> bool {
        match *self {}
    }

    fn fits_rest(&self, _: &V4, _: &Key<V4>) -> bool {
        match *self {}
    }

    fn fitting_more(_: &[Self], _: &V4) -> u32 {
        0
    }

    fn brief(&self) -> Brief {
        match *self {}
    }

    fn entry(&self) -> &Arc<PolicyEntry> {
        match *self {}
    }
}

#[cfg(test)]
mod tests;
