//! Fragmentation and reassembly.

pub(crate) mod datagram;
pub(crate) mod origin;
pub(crate) mod reassembly;
pub(crate) mod split;
