//! What both ends of the control socket agree on beside netlink messages.
//!
//! The gateway is one end; the other is whoever asks: `uxfrm xfrm`, or the preload library in a program's own process. That one may
//! neither allocate nor lock, so nothing here does; and it makes no system call.
//!
//! | module | is |
//! | --- | --- |
//! | [`greeting`] | who a client is, and what the gateway says to it |
//! | [`mailbox`] | a page that both share, for a client that asks again as soon as it is answered |
//! | [`place`] | whether who listens at a path may be told keys |
//! | [`stand_in`] | where a gateway listens whose name somebody else has |

#![forbid(unsafe_code)]

pub mod greeting;
pub mod mailbox;
pub mod place;
pub mod stand_in;
mod sync;
