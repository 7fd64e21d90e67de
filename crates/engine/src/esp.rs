//! ESP around one packet: placement of all parts, not the algorithms (RFC 4303 §2, §3.1).
//!
//! [`encap`] has an SA's precomputed lengths and headers; [`headers`] writes them around a packet;
//! [`decap`] removes them; [`encapsulator`] has both directions for single packets.

pub(crate) mod decap;
pub(crate) mod encap;
pub(crate) mod encap_fast;
pub(crate) mod encap_layout;
pub(crate) mod encapsulator;
pub(crate) mod headers;
