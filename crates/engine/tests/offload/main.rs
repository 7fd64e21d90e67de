//! States and policies on devices: attachment and detachment, packets handed over and received, and
//! devices that go down.
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
