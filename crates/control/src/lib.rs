//! The control socket's protocol beside netlink messages, for both ends.
//!
//! The gateway is one end; the other is `uxfrm xfrm`, or the preload library in a program's own
//! process. The latter may neither allocate nor lock, so nothing here does; and it makes no system
//! call.
//!
//! | module | content |
//! | --- | --- |
//! | [`greeting`] | identity of a client, and the gateway's answers |
//! | [`mailbox`] | a page shared by both, for a client with consecutive requests |
//! | [`socket_trust`] | whether the listener at a path may receive keys |
//! | [`fallback_socket`] | the gateway's socket when its abstract name is taken |

#![forbid(unsafe_code)]

pub mod fallback_socket;
pub mod greeting;
pub mod mailbox;
pub mod socket_trust;
mod sync;

/// The abstract name of a gateway's status socket.
pub const STAT_NAME: &[u8] = b"uxfrm/stat";

/// The bit of a packet's mark by which the gateway leads it into its TUN. Conditions on marks never
/// look at it.
pub const DIVERTED: u32 = 0x0800_0000;
