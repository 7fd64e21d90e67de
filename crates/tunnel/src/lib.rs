//! Tunnels: IPIP, SIT, GRE, ip6tnl and GRE over IPv6, alone or in UDP as FOU and GUE; pure
//! functions over [`PacketBuf`](uxfrm_packet::PacketBuf).
//!
//! **Out.** [`Tunnel::encapsulate`] writes GRE and GUE headers and computes the [`Outer`] ones,
//! which [`Outer::push`] writes, or [`Outer::datagram`] leaves to a UDP socket. [`direct::wrap`]
//! inserts UDP into any IP packet, such as ESP. **In.** [`Tunnels::receive`] strips UDP, by receive
//! port ([`DecapPorts`]), and tunnel headers. Protocols without tunnels (ESP in FOU) leave as whole
//! IP packets without UDP. **Errors.** A dropped packet has a [`DropReason`];
//! [`EncapRefused::tell`] is the ICMP error for its sender, if any. [`Tunnels::translate`] maps
//! ICMP errors of the network back to the inner sender. **GSO.** [`Tunnel::encapsulate_super`]
//! turns a super-packet into `UDP_SEGMENT` calls, [`Tunnels::receive_burst`] is the reverse.
//!
//! The model is the kernel's, by its names: `ip link add … type ipip|sit|gre|ip6tnl|ip6gre … encap
//! fou|gue` is a [`TunnelConfig`], `ip fou add` a [`PortRequest`]. Sending and receiving are
//! independent: a tunnel may use FOU in one direction only.
//!
//! This crate has no clock, descriptor, thread or random source.
#![forbid(unsafe_code)]

pub mod config;
pub mod counters;
pub mod direct;
pub mod ecn;
pub mod gue;
pub mod ports;

mod decapsulate;
mod drop_reason;
mod encap_limit;
mod encapsulate;
mod error;
mod flow;
mod gso_burst;
mod icmp_quote;
mod icmp_translate;
mod message;
mod nesting;
mod outer;
mod sixrd;
mod tunnel;
mod tunnels;
mod udp_decap;
mod udp_framing;

pub use config::{TunnelConfig, TunnelKind};
pub use decapsulate::{Decapsulated, Decapsulation};
pub use drop_reason::DropReason;
pub use encapsulate::{Egress, EncapRefused};
pub use error::Error;
pub use flow::{ALL_PORTS, FlowHash, HashSeed};
pub use gso_burst::{BurstPart, InnerPacket};
pub use icmp_translate::{IcmpReport, PathEvent};
pub use message::Message;
pub use nesting::MAX_NESTING;
pub use outer::{Outer, UdpEnds};
pub use ports::{DecapPort, DecapPorts, PortIdentity, PortRequest};
pub use sixrd::SixRd;
pub use tunnel::Tunnel;
pub use tunnels::Tunnels;
pub use udp_decap::{Arrival, MAX_UDP_LAYERS, UdpDecapsulated, decapsulate_udp};

#[cfg(test)]
mod tests;
