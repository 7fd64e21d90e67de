//! What workers, their ports and offload devices do.

use serde::{Deserialize, Serialize};

/// Workers and devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerReport {
    /// When this was read, in Unix seconds.
    pub at: u64,
    /// How many seconds ago the gateway's control thread told what it alone knows. 0 unless it was
    /// too busy to answer in time.
    pub age_seconds: u64,
    /// The workers by number.
    pub workers: Vec<WorkerStatus>,
    /// Offload devices by name.
    pub devices: Vec<OffloadDeviceStatus>,
}

/// What one worker did since the gateway's process began, as it published about a second ago.
///
/// Of two answers the growth of `cpu_ns` by that of `measured_ns` is the worker's busy share, by
/// that of packets the time per packet, and with the growth of `time_stamp` the cycles per packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkerStatus {
    /// Its number, from 0.
    pub worker: u32,
    /// When it published, in nanoseconds since the machine started; 0 before the first time.
    pub measured_ns: u64,
    /// Processor time of its thread in nanoseconds, in the kernel too.
    pub cpu_ns: u64,
    /// The processor's time-stamp counter when it published; without on machines that have none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub time_stamp: Option<u64>,
    /// Rounds of its loop.
    pub turns: u64,
    /// Batches that it received from its ports.
    pub batches: u64,
    /// Buffers that wait for a state or for fragments now.
    pub waiting: u64,
    /// Packets from the host.
    pub outbound: StreamStatus,
    /// Packets from the network.
    pub inbound: StreamStatus,
    /// Its ports.
    pub ports: Vec<PortStatus>,
}

/// Packets of one direction through a worker's engine or a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamStatus {
    /// Packets that came.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that went on.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// What one port of a worker carried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PortStatus {
    /// `tun`, `esp4`, `esp6`, `udp4:4500`, `af_xdp`; of inline mode `protected`, `wire`, `sockets`.
    pub name: String,
    /// Times that something was received.
    pub batches: u64,
    /// Buffers received: a packet each, or several that the kernel has joined.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that the kernel did not take.
    pub refused: u64,
}

/// An offload device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OffloadDeviceStatus {
    /// Its name.
    pub name: String,
    /// States that receive.
    pub states_in: u64,
    /// States that send.
    pub states_out: u64,
    /// Packets to the network; those of all its functions.
    pub outbound: StreamStatus,
    /// Packets from the network; those of all its functions.
    pub inbound: StreamStatus,
}

impl WorkerStatus {
    /// Packets that came, from the host and from the network.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.outbound.received + self.inbound.received
    }
}
