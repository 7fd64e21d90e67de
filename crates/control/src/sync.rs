//! The atomics of the page that both ends share. The models of `loom/` take the same sources with atomics that try all orders.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
