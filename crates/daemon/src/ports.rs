//! What carries packets between the gateway and the network: workers with their sockets, Ethernet
//! devices and `AF_XDP` queues, next hops, IKE sockets and NAT keepalives.

pub(crate) mod af_xdp;
pub(crate) mod ethernet;
pub(crate) mod ike;
pub(crate) mod keepalive;
pub(crate) mod napi_batching;
pub(crate) mod next_hops;
pub(crate) mod workers;
