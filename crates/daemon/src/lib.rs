//! The running gateway of uxfrm: its configuration, batch files and control.
//!
//! [`gateway::run`] is `uxfrm run`: databases from [`batch`] files named by a [`config`] file, a TUN and routes that bring the
//! host's traffic to it (host mode), lanes that carry it, tunnels, and a socket that tells the counters ([`stat`]).
#![forbid(unsafe_code)]

pub mod batch;
pub mod boot;
mod carrier;
pub mod config;
pub mod control;
pub mod gateway;
pub mod reload;
pub mod stat;

mod descriptor_store;
mod devices;
mod ethernet;
mod express;
mod following;
mod gather;
mod guard;
mod guidance;
mod held;
mod host;
mod ike;
mod incumbent;
mod inline;
mod keepalive;
mod lanes;
mod load;
mod local_ports;
mod planner;
mod retrial;
mod round;
mod sandbox;
mod sequences;
#[cfg(test)]
mod simulation;
mod stand_in;
mod time;
mod train;
mod tunnels;
pub mod upgrade;

#[cfg(any(test, fuzzing))]
pub use sequences::decode_journal;
