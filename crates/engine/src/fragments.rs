//! Fragments: cutting what is larger than the network takes, and putting together what comes in pieces.

mod datagram;
pub(crate) mod origin;
pub(crate) mod reassembly;
pub(crate) mod split;
