//! Outer fragments: cutting what is larger than the network takes, and putting together what comes in pieces.

pub(crate) mod reassembly;
pub(crate) mod split;
