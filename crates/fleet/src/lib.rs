//! Many gateways from one desired state, which etcd holds: which gateway does what, and with which
//! sequence numbers, so that no IV is sent twice under a key and no packet is accepted twice
//! whatever fails.
//!
//! Nothing here does I/O or reads a clock: what etcd, other gateways and the own gateway said are
//! arguments, and so is the time. Randomness is an argument as well.
//!
//! | module | content |
//! | --- | --- |
//! | [`names`] | names of fleets, pools, gateways, tunnels; a tunnel's children |
//! | [`keyspace`] | where what stands in etcd |
//! | [`seal`] | records that only who has the fleet's key can read or write |
//! | [`desired`] | what all gateways together are to do: the file, and its records |
//! | [`members`] | the gateways of a pool, and which of them have children |
//! | [`placement`] | which gateway of a pool has which child |
//! | [`numbers`] | sequence numbers that a gateway may send with |
//! | [`edges`] | up to which number a gateway accepts packets |
#![forbid(unsafe_code)]

pub mod agent;
pub mod desired;
pub mod edges;
pub mod heartbeat;
pub mod keyspace;
pub mod members;
pub mod names;
pub mod numbers;
pub mod placement;
pub mod seal;
#[cfg(test)]
mod simulation;
pub mod store;
