//! `uxfrm xfrm` compared with Debian's unmodified `ip`: the same arguments give the same bytes on
//! the wire, and the same bytes give the same text. A test server replaces the gateway, so neither
//! root nor a gateway is needed; only the tests in `gateway.rs` have one.
//!
//! `UXFRM_TEST_IP=PATH` selects another `ip`; with iproute2 7 or later, features that Debian's
//! lacks are compared too.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod answers;
mod completion;
mod gateway;
mod programs;
mod requests;
mod server;
