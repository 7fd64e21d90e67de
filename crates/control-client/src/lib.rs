//! The client's end of a gateway's sockets, for programs that talk to a gateway that runs.
//!
//! [`connect`] gives a connection on which `NETLINK_XFRM` is spoken, [`connect_dialect`] one for
//! anything else, [`stat`] what the gateway tells about itself. The preload library has a client of
//! its own, as it may not allocate; what all share is in `uxfrm_control`.
//!
//! | module | content |
//! | --- | --- |
//! | [`reload`], [`upgrade`] | requests and answers of these dialects, as JSON |
//! | [`leases`] | orders of a fleet's agent, and news for it |
//! | [`stat`] | the status socket: counters, tunnels |
//! | [`packet_watch`] | captures and traces |
//! | [`fallback_socket`] | where to look when a stranger has the abstract name |
#![forbid(unsafe_code)]

mod connection;
mod datagrams;
pub mod fallback_socket;
pub mod leases;
pub mod packet_watch;
pub mod reload;
pub mod stat;
pub mod upgrade;

pub use connection::{
    ClientDialect, Unanswered, check_listener, connect, connect_dialect, disable_timeout,
    ensure_gateway,
};
pub use datagrams::{receive_datagram, send_datagram};
