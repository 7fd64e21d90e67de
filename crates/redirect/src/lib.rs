//! The preload library behind `uxfrm exec`: a program's `NETLINK_XFRM` sockets become connections to uxfrm.
//!
//! | what the program does | what happens |
//! | --- | --- |
//! | `socket(AF_NETLINK, …, NETLINK_XFRM)` | a Unix seqpacket connection to the gateway of the current network namespace |
//! | `bind`, `getsockname`, netlink options | kept here, told to the gateway in a [`greeting`](uxfrm_control::greeting) |
//! | `send…`, `recv…` | the same messages byte for byte, with netlink's addresses made up |
//! | `close` | where that makes no difference, the connection is kept for the program's next socket (`connection_reuse.rs`); who opens many shares a page with the gateway (`mailbox.rs`) |
//! | `IP_XFRM_POLICY`, `IPV6_XFRM_POLICY` on any socket | lets pass what leaves: `SO_MARK` with the gateway's mark, the socket's traffic passes it by; protects or blocks: refused |
//! | `UDP_ENCAP` for ESP on any socket | nothing, and success: the kernel must not take the ESP |
//! | `bind` of a UDP socket to port 4500, or another of the gateway's | a Unix socket on which the gateway hands IKE on |
//! | writing to `/proc/sys/net/core/xfrm_acq_expires` | the number goes to the gateway |
//! | writing to others of `/proc/sys/net/core/xfrm_*` | nothing, and success: they are the kernel's own |
//! | `socket(AF_KEY)` | refused: it would reach the kernel's own IPsec |
//! | a message to the family `fou`, by a socket of `NETLINK_GENERIC` | goes to the gateway, and the answers come on the same socket; all other families are the kernel's |
//! | `SIOCETHTOOL` for the features of an interface | the kernel's answer; of the gateway's devices with `esp-hw-offload` |
//! | everything else | goes on to the C library (or the next preloaded library) as it is |
//!
//! It promises that no XFRM message of the program reaches the kernel through the C library, that other sockets are not
//! touched, and that it neither allocates nor locks: it may be called between `fork` and `exec` and from signal handlers.
//! Programs that make system calls by themselves are stopped by the filter that `uxfrm exec` installs.

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
mod wakeup_socket;
