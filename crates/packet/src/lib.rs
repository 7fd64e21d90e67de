//! Wire formats, packet buffers and checksums, on which every other crate of uxfrm builds.
//!
//! **Buffers.** [`PacketBuf`] is one contiguous buffer with headroom and tailroom, so that headers
//! are pushed and trailers appended in place. A *super-packet* (up to 64 KiB, to be segmented) and
//! a *segment burst* (equal wire packets end to end) are the same type with other [`Segments`]
//! metadata. [`Pool`] recycles buffers; the data path allocates nothing once it is warm. [`Batch`]
//! is what a port receives and a stage processes.
//!
//! **Views.** One module per format: [`ethernet`] (with VLAN tags), [`ipv4`], [`ipv6`] (with
//! extension headers), [`udp`], [`tcp`], [`icmp`], [`icmpv6`], [`esp`], [`gre`]. Each has its
//! header as a `zerocopy` struct, to be read and written in place, and a `parse` function. Parsers
//! are total: any bytes give a view or a [`ParseError`], never a panic.
//!
//! **The data path's view.** [`IpPacket::parse`] finds in one pass what the engine needs of a
//! packet and borrows nothing; [`FlowPorts::of`] adds what XFRM's selectors compare with ports.
//!
//! **Whole packets.** [`checksum`] sums with wide loads, completes and verifies. [`SegmentPlan`]
//! segments a super-packet; [`Coalescer`] is its inverse. [`congestion`] makes a TCP sender slow
//! down, [`mss`] makes it send smaller segments.
//!
//! ```
//! use uxfrm_packet::{Batch, Coalescer, FlowPorts, IpPacket, PacketBuf, Pool};
//! use uxfrm_packet::{SegmentPlan, Segments, SliceMeta};
//! use uxfrm_packet::{Protocol, ipv4::Ipv4Header, udp::UdpHeader};
//! use zerocopy::IntoBytes;
//!
//! // Three datagrams of 4, 4 and 2 bytes from port 5000 to 53, in one buffer, as from a TUN.
//! let (from, to) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
//! let ip = Ipv4Header::new(from, to, Protocol::UDP, 20 + 8 + 10);
//! let (source, destination) = (5000.into(), 53.into());
//! let udp = UdpHeader { source, destination, length: 18.into(), checksum: 0.into() };
//! let mut buf = PacketBuf::from_slice(b"aaaabbbbcc");
//! buf.push(8).expect("headroom").copy_from_slice(udp.as_bytes());
//! buf.push(20).expect("headroom").copy_from_slice(ip.as_bytes());
//! buf.segments = Segments::Udp { size: 4 };
//!
//! let parsed = IpPacket::parse(buf.bytes())?;
//! assert_eq!(parsed.protocol, Protocol::UDP);
//! assert_eq!(FlowPorts::of(&parsed, buf.bytes()), FlowPorts { source: 5000, destination: 53 });
//!
//! // Cut for the wire, lengths and checksums right ...
//! let plan = SegmentPlan::new(&buf)?;
//! let (mut coalescer, mut pool, mut out) = (Coalescer::new(), Pool::new(), Batch::new());
//! for k in 0..plan.count() {
//!     let mut wire = [0; 32];
//!     let len = plan.write(k, buf.bytes(), &mut wire).expect("k is below count, 32 bytes fit");
//!     // ... and joined again on the other side.
//!     coalescer.offer_slice(&wire[..len], SliceMeta::default(), &mut pool, &mut out);
//! }
//! coalescer.flush(&mut out);
//! assert_eq!(out.as_slice()[0].bytes()[28..], *b"aaaabbbbcc");
//! assert_eq!(out.as_slice()[0].segments, Segments::Udp { size: 4 });
//! # Ok::<(), uxfrm_packet::ParseError>(())
//! ```
//!
//! No clock, descriptor or thread here; `unsafe` twice: for the AVX forms of the checksum and to
//! prefetch.

#![deny(unsafe_code)]

pub mod checksum;
pub mod coalesce;
pub mod congestion;
pub mod error;
pub mod esp;
pub mod ethernet;
pub mod flow;
pub mod gre;
mod header_template;
pub mod icmp;
pub mod icmp_error;
pub mod icmpv6;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod mss;
pub mod protocol;
pub mod routing;
pub mod segment;
pub mod tcp;
pub mod udp;

mod batch;
mod buf;
mod flow_words;
mod pool;
mod prefetch;
#[cfg(test)]
mod test_packets;

pub use batch::{BATCH, Batch};
pub use buf::{Checksum, Ecn, HEADROOM, PacketBuf, PacketMeta, Segments, TAILROOM, UdpPath};
pub use coalesce::{Coalescer, SliceMeta};
pub use error::ParseError;
pub use flow::FlowPorts;
pub use flow_words::Ipv4FlowKey;
pub use header_template::{HeaderTemplate, ParsedLen};
pub use ip::{Fragment, IpPacket, Version};
pub use pool::{Pool, PoolStats, SizeClass};
pub use prefetch::{
    prefetch, prefetch_far, prefetch_far_first, prefetch_far_whole, prefetch_first, prefetch_whole,
};
pub use protocol::Protocol;
pub use segment::SegmentPlan;
