//! What rules are made of.

use std::fmt::Debug;
use std::sync::Arc;

use crate::compact_rule::{AddressEnd, MaskTemplate};
use crate::key::FiveTuple;
use crate::rule::Rank;

/// What a rule is made of and a match gives back: a reference, as rules hold it.
pub trait Entry: Clone + Debug + Send + Sync + 'static {
    /// Match order, different for each entry.
    type Precedence: Ord + Copy + Debug;

    /// Tag of no entry.
    const NO_TAG: u32;

    /// Its place in match order; lower is matched first.
    fn precedence(&self) -> Self::Precedence;
    /// Its precedence as far as a [`Rank`] tells: of entries with different ranks the one with the
    /// lower rank precedes.
    fn rank(&self) -> Rank;
    /// A number of at most 23 bits that a match gives back without reading the entry.
    fn tag(&self) -> u32;
    /// What keys it matches.
    fn ternary(&self) -> Ternary;
    /// The address in which entries differ most.
    fn far_end(&self) -> AddressEnd;
    /// Template of its [`ternary`](Entry::ternary) that it shares with other entries, if any.
    fn mask_template(&self) -> Option<&Arc<MaskTemplate>>;
}

/// A key matches where `(key ^ value) & mask` is 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ternary {
    /// Bits that keys have; those outside of the mask do not count.
    pub value: FiveTuple,
    /// Bits that are compared.
    pub mask: FiveTuple,
}
