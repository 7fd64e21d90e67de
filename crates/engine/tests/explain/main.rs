//! Explanations agree with the data path, and name what the user did wrong.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod agreement;
mod near_misses;
