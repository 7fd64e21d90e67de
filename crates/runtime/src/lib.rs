//! Workers: threads that carry batches between ports and the engine.
//!
//! - [`WorkerLoop`] is one worker loop: a host port, its [`WirePorts`], an engine, and a
//!   run-to-completion loop on one core that polls, receives, processes and transmits.
//! - [`WirePorts`] is the network side: one port for whole IPv4 packets, one for IPv6, one per UDP
//!   port and family. With an [`AfXdpEsp`] ESP passes by AF_XDP, past the kernel's network stack.
//! - [`TunnelLoop`] is the loop of all tunnels: their TUNs and shared sockets, without an engine.
//!   [`TunnelControl`] adds and removes them while it runs.
//! - [`InlineLoop`] is a worker loop between two network devices, past the host's stack. It and
//!   [`AfXdpEsp`] request [next hops](NextHopUpdate) from a resolver.
//! - [`DeviceLoop`] is the loop of one offload device; a [`DevicePorts`] connects worker loops and
//!   devices.
//! - [`SharedWorkerFigures`] is what a worker loop tells of itself once a second.
//! - [`WorkerThread`] is a loop on its thread, to be stopped and joined.
//!
//! Workers share only the published snapshot of the databases and the atomics inside SAs.
//! Back-pressure is a drop with a reason, early: a worker never waits for a port.
#![forbid(unsafe_code)]

mod af_xdp;
mod codel;
mod device_ports;
mod events;
mod inline;
mod next_hops;
mod refused;
mod tunnels;
mod wire;
mod worker_figures;
mod worker_loop;
mod worker_thread;

pub use af_xdp::AfXdpEsp;
pub use device_ports::{BufferRing, DeviceEgress, DeviceLoop, DevicePorts, HasPacket};
pub use events::Events;
pub use inline::{InlineLoop, InlinePorts};
pub use next_hops::{
    NextHop, NextHopRequest, NextHopUpdate, PortSide, ResolvedRoute, ResolverEnds,
};
pub use tunnels::{
    ExportedInterface, LearnedPmtu, ReceivePort, ReceiveSource, SocketCounts, TunnelChange,
    TunnelControl, TunnelCounts, TunnelInterface, TunnelLoop, TunnelLoopExport, TunnelRoute,
    TunnelSockets, egress,
};
pub use wire::{UdpSocketPort, WirePorts};
pub use worker_figures::{PortTraffic, SharedWorkerFigures, WorkerFigures};
pub use worker_loop::{Error, WorkerLoop};
pub use worker_thread::{EventLoop, PausedWorker, WorkerThread};
