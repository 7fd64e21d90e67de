//! The running gateway of uxfrm: its configuration, batch files and control.
//!
//! [`gateway::run`] is `uxfrm run`: databases from [`batch`] files named by a [`config`] file, a
//! TUN and routes that bring the host's traffic to it (host mode), workers that carry it, tunnels,
//! and a socket that tells the counters. What talks to it is in `uxfrm_control_client`.
//!
//! | floor | modules |
//! | --- | --- |
//! | ground | `clock`, `descriptor_store`, `fallback_socket`, `local_ports`, `pausable_thread` |
//! | ground | `protocol`, `tun` |
//! | 1 | [`config`] |
//! | 2 | [`batch`] |
//! | 3 | `routes`, `ports`, `inline`, `firewall`, `devices`, `tunnels`, in this order |
//! | 4 | `reconcile` |
//! | 5 | `control`, `status`, in this order |
//! | 6 | `sandbox`, `reload`, [`upgrade`], in this order |
//! | 7 | [`gateway`] |
#![forbid(unsafe_code)]

mod clock;
mod descriptor_store;
mod fallback_socket;
mod local_ports;
mod pausable_thread;
mod protocol;
mod tun;
mod wording;

pub mod config;

pub mod batch;
mod check;

mod devices;
mod firewall;
mod inline;
mod ports;
mod routes;
mod tunnels;

mod reconcile;

mod control;
mod status;

mod reload;
mod sandbox;
pub mod upgrade;

pub mod gateway;

#[cfg(test)]
mod simulation;

pub use gateway::boot;
#[cfg(any(test, fuzzing))]
pub use reconcile::sequences::decode_journal;
