//! Policies that ask for all bits of a mask, by a hash of what stands there.

use std::sync::Arc;

use uxfrm_packet::Slots;

use super::bucket::Part;
use super::rank16::Levels;
use crate::spd::classifier::replanning::Planning;
use crate::spd::classifier::rule::{Comparable, Rule};
use crate::spd::classifier::ternary::Words;

/// Some policies.
#[derive(Clone, Debug)]
pub(in crate::spd::classifier) struct Tier<W: Words> {
    mask: W,
    slots: Slots,
    /// In pieces, so that a change copies few.
    parts: Arc<[Piece<W>]>,
    /// Slots of a part, as a power of two.
    shift: u32,
}

/// The parts of neighbouring slots.
type Piece<W> = Arc<[Part<W>]>;

/// Parts of a piece, as a power of two: few pieces, so that what leads to them stays in the processor's first cache.
const PIECE: u32 = 11;
/// As powers of two, parts of a tier, of which no more stay in the processor's second cache; and slots, of which a change may have to copy all.
const PARTS: u32 = 14;
const SLOTS: u32 = 16;
/// A part of more policies is not gone through for one that went.
const MANY: usize = 64;
/// So many slots for each hash: fewer are often taken by another's.
const SPARSE: usize = 4;

impl<W: Words> Tier<W> {
    /// Of rules that it takes.
    pub(super) fn of(mask: W, levels: Levels, rules: Vec<&Rule<W>>) -> Self {
        let mut different: Vec<_> = rules.iter().map(|rule| rule.value.under(&mask)).collect();
        different.sort_unstable();
        different.dedup();
        let bits = |count: usize| count.next_power_of_two().ilog2();
        let parts = bits(different.len()).clamp(PIECE, PARTS);
        let mut slots = Slots::of(mask.all(), bits(different.len() * SPARSE).clamp(parts, SLOTS));
        let shift = slots.len().ilog2() - parts;
        let mut sets = Vec::new();
        sets.resize_with(1 << parts, Vec::new);
        for rule in rules {
            let hash = slots.hash(rule.value.all());
            slots.note(hash, levels.of(rule.rank()));
            sets[slots.slot(hash) >> shift].push(rule);
        }
        let parts: Vec<_> = sets.into_iter().map(Part::of).collect();
        let parts = parts.chunks(1 << PIECE).map(Arc::from).collect();
        Self { mask, slots, parts, shift }
    }

    /// Whether a rule belongs in a tier of such a mask.
    pub(super) fn takes(mask: &W, rule: &Rule<W>) -> bool {
        rule.mask.under(mask) == *mask
    }

    pub(super) const fn mask(&self) -> &W {
        &self.mask
    }

    #[inline]
    pub(in crate::spd::classifier) const fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The part behind a slot.
    #[inline]
    pub(in crate::spd::classifier) fn part(&self, slot: usize) -> Option<&Part<W>> {
        let at = slot >> self.shift;
        self.parts.get(at >> PIECE)?.get(at % (1 << PIECE))
    }

    pub(super) fn insert(&mut self, rule: Rule<W>, levels: Levels, planning: Planning) {
        let hash = self.slots.hash(rule.value.all());
        self.slots.note(hash, levels.of(rule.rank()));
        self.part_mut(self.slots.slot(hash)).insert(rule, planning);
    }

    pub(super) fn prepare(&mut self, rule: &Rule<W>) {
        self.part_mut(self.slot(rule)).prepare(rule);
    }

    pub(super) fn remove(&mut self, rule: &Rule<W>, levels: Levels) {
        let hash = self.slots.hash(rule.value.all());
        let slot = self.slots.slot(hash);
        self.part_mut(slot).remove(rule);
        if self.slots.level(hash) == levels.of(rule.rank()) {
            self.note_anew(slot, levels);
        }
    }

    /// What there is for a slot, where the first may have gone. Of a large part it is enough to know its first: a level that is too low costs a
    /// look, and all its policies would cost as much as they are.
    fn note_anew(&mut self, slot: usize, levels: Levels) {
        let Some(part) = self.part(slot) else { return };
        if part.len() > MANY {
            let first = levels.of(part.first());
            return self.slots.raise(slot, first);
        }
        let rules = part.rules();
        self.slots.forget(slot);
        for rule in rules {
            let hash = self.slots.hash(rule.value.all());
            if self.slots.slot(hash) == slot {
                self.slots.note(hash, levels.of(rule.rank()));
            }
        }
    }

    /// Whether another was planned so.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.mask, self.slots.len(), self.shift) == (other.mask, other.slots.len(), other.shift)
    }

    /// Becomes what `newer` is where a policy has its place.
    pub(super) fn follow(&mut self, newer: &Self, rule: &Rule<W>) {
        let slot = self.slot(rule);
        self.slots.follow(&newer.slots, slot);
        if let Some(newer) = newer.part(slot) {
            self.part_mut(slot).follow(newer, rule);
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Part<W>> {
        self.parts.iter().flat_map(|piece| piece.iter())
    }

    pub(super) fn memory(&self) -> usize {
        let parts = self.parts().map(|part| size_of_val(part) + part.memory()).sum::<usize>();
        size_of::<Self>() + self.slots.memory() + size_of_val(&*self.parts) + parts
    }

    fn slot(&self, rule: &Rule<W>) -> usize {
        self.slots.slot(self.slots.hash(rule.value.all()))
    }

    fn part_mut(&mut self, slot: usize) -> &mut Part<W> {
        let at = slot >> self.shift;
        &mut Arc::make_mut(&mut Arc::make_mut(&mut self.parts)[at >> PIECE])[at % (1 << PIECE)]
    }
}
