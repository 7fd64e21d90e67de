//! Workers: threads that carry batches between ports and the engine.
//!
//! - [`Lane`] is one worker: its host port, its [`Wire`], its engine, and a loop that polls, receives, processes and
//!   transmits, run to completion on one core.
//! - [`Wire`] is the network side: one port for whole IPv4 packets, one for IPv6, one per UDP port and family; each
//!   outgoing packet finds its own. With an [`Express`] ESP leaves and comes past the kernel's network stack.
//! - [`TunnelLane`] is the thread of all tunnels: their TUNs, the sockets that they share, and no engine. [`TunnelControl`] adds and
//!   removes them while it runs.
//! - [`InlineLane`] is one worker between two network devices, past the host's stack. It asks for [ways](News), and so does an [`Express`].
//! - [`DeviceLane`] is the thread of one offload device; a [`Bay`] is where lanes and devices meet.
//! - [`Running`] is a lane on its thread: it can be told to stop, and is waited for.
//!
//! Nothing is shared between lanes but the published snapshot of the databases and the atomics inside states.
//! Back-pressure is dropping, early and by name: a lane never waits for a port.
#![forbid(unsafe_code)]

mod af_xdp;
mod codel;
mod device_ports;
mod events;
mod inline;
mod next_hops;
mod tunnels;
mod wire;
mod worker_loop;
mod worker_thread;

pub use af_xdp::Express;
pub use device_ports::{Bay, Carries, DeviceLane, Exchange, Exit};
pub use events::Events;
pub use inline::{InlineLane, InlinePorts};
pub use next_hops::{Answer, Guide, News, NextHop, Question, Side};
pub use tunnels::{
    Change, Incoming, Interface, Narrow, Portrait, PortrayedInterface, Route, SocketCounts,
    Sockets, Source, TunnelControl, TunnelCounts, TunnelLane, egress,
};
pub use wire::{Datagrams, Wire};
pub use worker_loop::{Error, Lane};
pub use worker_thread::{Halted, Running, Turns};
