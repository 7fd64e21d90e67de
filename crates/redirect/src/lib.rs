//! The preload library of `uxfrm exec`: a program's `NETLINK_XFRM` sockets become connections to
//! uxfrm.
//!
//! | the program's call | effect |
//! | --- | --- |
//! | `socket(AF_NETLINK, …, NETLINK_XFRM)` | Unix seqpacket connection to the namespace's gateway |
//! | `bind`, `getsockname`, netlink options | kept here, sent in a [`greeting`](uxfrm_control::greeting) |
//! | `send…`, `recv…` | the same messages, with netlink's addresses made up |
//! | `close` | may keep the connection for the next socket (`connection_reuse.rs`, `mailbox.rs`) |
//! | `IP_XFRM_POLICY`, `IPV6_XFRM_POLICY` | bypass: `SO_MARK` with the gateway's mark; others: refused |
//! | `UDP_ENCAP` for ESP on any socket | success without effect: the kernel must not take the ESP |
//! | `bind` of UDP port 4500, or the gateway's | Unix socket on which the gateway passes IKE |
//! | writing `/proc/sys/net/core/xfrm_acq_expires` | the number goes to the gateway |
//! | writing other `/proc/sys/net/core/xfrm_*` | success without effect: they are the kernel's |
//! | `socket(AF_KEY)` | refused: it would reach the kernel's own IPsec |
//! | generic netlink message to the family `fou` | goes to the gateway; answers come on the same socket |
//! | `SIOCETHTOOL` for features | the kernel's answer; the gateway's devices have `esp-hw-offload` |
//! | everything else | goes on to the C library (or the next preloaded library) |
//!
//! Promises: no XFRM message of the program reaches the kernel through the C library; other sockets
//! are not touched; nothing here allocates or locks, so calls between `fork` and `exec` and in
//! signal handlers are safe. Programs that make system calls themselves are stopped by `uxfrm
//! exec`'s filter.

#![cfg(target_os = "linux")]
#![cfg_attr(
    any(test, fuzzing),
    expect(dead_code, reason = "in tests the functions must not stand before the C library's")
)]

mod busy_poll;
mod calls;
mod connection_reuse;
pub mod ends;
mod errno;
mod exchange;
mod fallback_socket;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gateway;
mod mailbox;
mod next;
mod pending_answer;
mod process;
mod table;
mod unix_owner;
mod wakeup_socket;
