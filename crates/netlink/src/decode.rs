//! From the kernel's structures to the engine's words. Each function checks what the kernel checks there, in its order and
//! words; what the engine checks itself when a state or policy is added is left to it.

pub(crate) mod algorithm;
pub(crate) mod common;
pub(crate) mod policy;
pub(crate) mod replay;
pub(crate) mod state;
