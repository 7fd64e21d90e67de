//! What a running gateway tells about itself: the requests of its status socket, and the documents
//! that answer them.
//!
//! Both ends share these types: the gateway's status thread, `uxfrm status` and `uxfrm stat`, and
//! whoever reads the socket by itself. They are plain data, as JSON on the socket; their
//! documentation describes the fields. Nothing here does I/O or reads a clock.
//!
//! | module | content |
//! | --- | --- |
//! | [`protocol`] | requests, answers, versions; how they stand on the socket |
//! | [`capture`], [`trace`] | captured packets, traced packets |
//! | [`counters`] | drops by the kernel's names and by reason, flow caches |
//! | [`explanation`] | what a flow would meet |
//! | [`gateway`] | the gateway and all its tunnels |
//! | [`tunnel`] | one tunnel, one state |
//! | [`drops`] | dropped packets, and whose they were |
//! | [`dropped`] | one of them, as a question of what it would meet |
//! | [`health`] | whether a tunnel is up, and why not |
//! | [`icmp_error`] | what the network says of a tunnel's ESP |
//! | [`limit`] | how near a state is to its limits |
//! | [`packet_bytes`] | bytes of packets |
//! | [`workers`] | workers, their ports, offload devices |
//! | [`text`] | the same for people |
//! | `openapi` | their schemas, with the feature of this name |
//!
//! Times are Unix seconds where they say when, and whole seconds where they say how long ago. An
//! SPI is text in hexadecimal, as in `ip xfrm`: `0x00001001`.
#![forbid(unsafe_code)]

pub mod capture;
pub mod counters;
pub mod dropped;
pub mod drops;
pub mod explanation;
pub mod gateway;
pub mod health;
pub mod icmp_error;
pub mod limit;
#[cfg(feature = "openapi")]
pub mod openapi;
pub mod packet_bytes;
pub mod protocol;
pub mod quantity;
pub mod text;
pub mod trace;
pub mod tunnel;
pub mod workers;
