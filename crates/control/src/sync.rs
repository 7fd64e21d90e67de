//! Atomics of the shared page. The models of `loom/` compile the same sources with atomics that try
//! all orders.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
