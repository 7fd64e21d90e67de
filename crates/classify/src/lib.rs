//! Ordered ternary match: finds the first rule that a key matches, for batches of keys.
//!
//! No clock, descriptor or thread here; `unsafe` calls the AVX forms of comparisons and loads and
//! stores their vectors.

#![deny(unsafe_code)]

mod bitvector;
mod prefilter_table;
mod simd_ternary;
mod ternary_block;

pub use bitvector::{
    BitLine, ByteField, ByteRows, FieldLocation, FieldRows, KeyField, MAX_KEY_FIELDS, UNUSED_BYTES,
};
pub use prefilter_table::{
    MAX_TABLES, NO_RANK, PROBE_KEYS, PrefilterProbe, PrefilterTable, ProbeTargets,
};
pub use simd_ternary::{SimdTernary8, match_lanes, match_lanes_batch};
pub use ternary_block::{BLOCK_LANES, TernaryBlock, match_blocks};
