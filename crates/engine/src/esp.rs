//! ESP around and out of one packet: where its parts go, not what the algorithms do to them (RFC 4303 §2, §3.1).
//!
//! [`layer`] has one SA's lengths and headers worked out in advance; [`encapsulate`] writes them around a packet; [`decapsulate`]
//! takes them off again; [`single`] has both for one packet at a time.

pub(crate) mod decap;
pub(crate) mod encap;
pub(crate) mod encap_layout;
pub(crate) mod headers;
pub(crate) mod plain;
pub(crate) mod single;
