//! From the engine's words to the kernel's structures.

pub(crate) mod common;
pub(crate) mod policy;
pub(crate) mod state;
