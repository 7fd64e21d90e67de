//! Atomics for state that workers share without locks. The models in `loom/` compile the same
//! sources with loom's atomics.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
