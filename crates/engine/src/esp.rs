//! ESP around and out of one packet: where its parts go, not what the algorithms do to them (RFC 4303 §2, §3.1).
//!
//! [`layer`] has one SA's lengths and headers worked out in advance; [`encapsulate`] writes them around a packet; [`decapsulate`]
//! takes them off again; [`single`] has both for one packet at a time.

pub(crate) mod decapsulate;
pub(crate) mod encapsulate;
pub(crate) mod layer;
pub(crate) mod plain;
pub(crate) mod seam;
pub(crate) mod single;
