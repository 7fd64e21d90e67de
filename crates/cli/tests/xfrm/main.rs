//! `uxfrm xfrm` against Debian's unmodified `ip`: the same words give the same bytes on the wire, the same bytes from the
//! wire give the same text. A server of this test's stands where the gateway would, so neither root nor a gateway is
//! needed; only the tests in `gateway.rs` have one.
//!
//! `UXFRM_TEST_IP=PATH` takes another `ip`; from iproute2 7 on what Debian's does not know is compared as well.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod answers;
mod completion;
mod gateway;
mod programs;
mod requests;
mod server;
