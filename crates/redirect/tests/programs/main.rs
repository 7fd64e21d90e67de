//! Unmodified programs through the library, against a server of the test's own: `ip`, and this test itself.
//!
//! Everything runs in a network namespace without XFRM states and policies of value: should the library not load, the
//! commands reach that namespace's kernel and the test fails. It needs root for the namespace, and iproute2.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod ip;
mod manners;
mod restart;
mod reuse;
mod server;
mod socket;
