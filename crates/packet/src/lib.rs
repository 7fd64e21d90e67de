//! Wire formats, packet buffers and checksums: what every other crate of uxfrm stands on.
//!
//! - [`PacketBuf`] is one contiguous stretch of bytes with room before and behind it, so that headers are
//!   pushed and trailers appended in place. A *super-packet* (up to 64 KiB, to be segmented) and a *train*
//!   (equal wire packets end to end) are the same type with a [`Segments`] note.
//! - [`Pool`] hands buffers out and takes them back; the data path allocates nothing once it is warm.
//! - [`Batch`] is what a port receives and a stage works on.
//!
//! No clock, descriptor or thread here. Parsers are total: any bytes give a view or an error, never a panic.

#![deny(unsafe_code)]

pub mod checksum;
pub mod coalesce;
pub mod error;
pub mod esp;
pub mod ethernet;
pub mod flow;
pub mod gre;
pub mod icmp;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod protocol;
pub mod segment;
pub mod tcp;
pub mod udp;

mod batch;
mod buf;
mod pool;
#[cfg(test)]
mod specimen;

pub use batch::{BATCH, Batch};
pub use buf::{Checksum, Ecn, HEADROOM, PacketBuf, Segments, TAILROOM, UdpPath};
pub use coalesce::{Coalescer, Notes};
pub use error::ParseError;
pub use flow::FlowPorts;
pub use ip::{Fragment, IpPacket, Version};
pub use pool::{Pool, PoolStats, SizeClass};
pub use protocol::Protocol;
pub use segment::SegmentPlan;
