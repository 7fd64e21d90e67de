//! States and policies on devices: what they get and give back, what is handed over, what passes
//! that comes from them, and what becomes of traffic when they go down.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

mod control;
mod inbound;
mod link;
mod nic;
mod outbound;
