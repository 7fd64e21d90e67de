//! Unmodified programs with the library, against the test's own server: `ip`, and this test itself.
//!
//! Runs in a network namespace without XFRM states: if the library does not load, commands reach
//! that namespace's kernel and the test fails. Needs root and iproute2.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod flood;
mod ip;
mod manners;
mod restart;
mod reuse;
mod server;
mod socket;
