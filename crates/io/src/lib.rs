//! Ports and everything else that talks to the operating system: TUN, UDP, raw ESP, pcap, memory, routes, namespaces.
//!
//! All system calls of uxfrm are made here, and all `unsafe` outside the packet and crypto crates lives here. A
//! [`Port`] receives and transmits batches of buffers without blocking, without allocating once it is warm, and
//! counts every packet that it could not send. This crate knows buffers, not IPsec: it uses only `uxfrm-packet`.

pub mod memory;
pub mod port;

pub use memory::Memory;
pub use port::{Accepts, Port, Refused, Transmitted, wire_packets};
