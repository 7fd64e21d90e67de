//! The benches: each measures its cases and returns a [`BenchReport`](crate::BenchReport).

pub mod control;
pub mod crypto;
pub mod esp;
pub mod fou;
pub mod inline;
pub mod lookup;
pub mod offload;
pub mod states;
pub mod tunnel;
