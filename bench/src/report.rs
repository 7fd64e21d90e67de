//! Results of a bench and how they are shown: rows, bars, curves, and published figures beside
//! them.
//!
//! Nothing in here knows the cases that fill a report.

mod bars;
pub(crate) mod curves;
pub(crate) mod published;
mod render;
mod rows;
mod sample;

pub use rows::{BenchReport, Case, Machine, Row};
pub use sample::Samples;
