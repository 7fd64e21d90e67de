//! Ordered ternary match: finds the first rule that a key matches, for batches of keys.

#![deny(unsafe_code)]

mod batch;
mod bitvector;
mod byte_bitvector;
mod compact_rule;
mod cost_model;
mod entry;
mod field_bitvector;
mod index;
mod key;
mod linear_leaf;
mod node;
mod plan;
mod prefilter_table;
mod replanning;
mod root_cuts;
mod rule;
mod simd_leaf;
mod simd_ternary;
mod ternary_block;
#[cfg(test)]
mod test_rules;
mod tuple_space;
mod window;

pub use compact_rule::{AddressEnd, MaskTemplate};
pub use entry::{Entry, Ternary};
pub use index::Index;
pub use key::{FiveTuple, Key, V4, V6, mix};
pub use replanning::{PlanScope, ReplanTiming};
pub use rule::{Best, Rank};

/// Keys looked up together, so that their cache misses overlap.
pub const LOOKUP_BATCH: usize = 32;
