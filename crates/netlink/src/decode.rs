//! Decodes the kernel's structures into the engine's types, with the kernel's checks in its order
//! and its texts. Checks that the engine makes itself when it adds a state or policy are left to
//! it.

pub(crate) mod algorithm;
pub(crate) mod common;
pub(crate) mod policy;
pub(crate) mod replay;
pub(crate) mod state;
