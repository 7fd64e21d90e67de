//! Tunnels: IPIP, SIT, GRE, ip6tnl and GRE over IPv6, alone or in UDP as FOU and GUE; pure functions over [`PacketBuf`](uxfrm_packet::PacketBuf).
//!
//! **Out.** [`Tunnel::encapsulate`] puts GRE and GUE headers before a packet and works out the [`Outer`] ones, which
//! [`Outer::push`] writes, or [`Outer::datagram`] leaves to a UDP socket. [`direct::wrap`] inserts UDP into any IP packet, such as ESP.
//! **In.** [`Tunnels::receive`] takes what the network sent out of UDP, by its receive port ([`Ports`]), and out of its tunnel.
//! What no tunnel takes (ESP in FOU) comes out as a whole IP packet without UDP.
//! **Errors.** A packet that goes no further has a [`DropReason`]; where its sender must be told, [`Refused::tell`] says what.
//! [`Tunnels::translate`] brings ICMP errors of the network back to the inner sender.
//! **Trains.** [`Tunnel::encapsulate_super`] makes a super-packet of the host one `UDP_SEGMENT` call, [`Tunnels::receive_train`] is the way back.
//!
//! The model is the kernel's, by its names: `ip link add … type ipip|sit|gre|ip6tnl|ip6gre … encap fou|gue` is a [`Config`],
//! `ip fou add` a [`PortRequest`]. Sending and receiving are independent: a tunnel may use FOU in one direction only.
//!
//! No clock, descriptor, thread or random source here.
#![forbid(unsafe_code)]

pub mod config;
pub mod counters;
pub mod direct;
pub mod ecn;
pub mod gue;
pub mod ports;

mod decapsulate;
mod drop_reason;
mod encapsulate;
mod error;
mod flow;
mod limit;
mod message;
mod nesting;
mod outer;
mod peel;
mod quote;
mod sixrd;
mod train;
mod translate;
mod tunnel;
mod tunnels;

pub use config::{Config, Kind};
pub use decapsulate::{Decapsulated, Inside};
pub use drop_reason::DropReason;
pub use encapsulate::{Egress, Refused};
pub use error::Error;
pub use flow::{ALL_PORTS, FlowHash, HashSeed};
pub use message::Message;
pub use nesting::MAX_NESTING;
pub use outer::{Outer, UdpEnds};
pub use peel::{Arrival, MAX_PEELS, Peeled, peel};
pub use ports::{Port, PortIdentity, PortRequest, Ports};
pub use sixrd::SixRd;
pub use train::{Inner, Part};
pub use translate::{Event, News};
pub use tunnel::Tunnel;
pub use tunnels::Tunnels;

#[cfg(test)]
mod tests;
