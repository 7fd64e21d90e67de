//! `uxfrm-control`'s sources, as `crates/control/src/lib.rs` has them.
#![allow(dead_code, reason = "not all of it is in a model")]

#[rustfmt::skip]
#[path = "../../crates/control/src/mailbox.rs"]
pub(crate) mod mailbox;
