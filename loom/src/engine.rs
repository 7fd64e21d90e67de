//! `uxfrm-engine`'s sources, as `crates/engine/src/sa.rs` has them.
#![allow(dead_code, unfulfilled_lint_expectations, reason = "not all of it is in a model")]

#[rustfmt::skip]
#[path = "../../crates/engine/src/drop_reason.rs"]
pub(crate) mod drop_reason;
#[rustfmt::skip]
#[path = "../../crates/engine/src/sa/replay.rs"]
pub(crate) mod replay;
#[rustfmt::skip]
#[path = "../../crates/engine/src/sa/replay_store.rs"]
pub(crate) mod replay_store;
#[rustfmt::skip]
#[path = "../../crates/engine/src/sa/sequence.rs"]
pub(crate) mod sequence;

/// Whose numbers are kept: nothing of it is in a model.
#[derive(Debug)]
pub(crate) struct Sa;

use replay::{ReplayWindow, SeqWidth};
use replay_store::{ReplayKeeper, ReplayStore};

/// A window whose numbers are kept, by someone who is woken in vain: the edge is moved by the
/// model.
pub(crate) fn kept_window(window: u32) -> ReplayWindow {
    #[derive(Debug)]
    struct Deaf;
    impl ReplayStore for Deaf {
        fn claim(&self, _: &Sa) -> Option<&'static crate::sync::AtomicU64> {
            None
        }
        fn release(&self, _: &'static crate::sync::AtomicU64) {}
        fn wake(&self) {}
    }
    let keeper = ReplayKeeper::new(std::sync::Arc::new(Deaf));
    ReplayWindow::new(window, SeqWidth::Bits32, 0).with_keeper(&keeper, None)
}
