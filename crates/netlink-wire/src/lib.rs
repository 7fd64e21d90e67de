//! Netlink's wire format: message headers and attributes, read and written without I/O.
//!
//! One reader and one writer serve `NETLINK_XFRM`, generic netlink (`fou`, `netdev`), `nf_tables`
//! and the tunnels' `RTM_NEWLINK`. Reading is total: any bytes are read without a panic, and ends
//! at the first message or attribute that is cut short, as in the kernel. What a value means is
//! left to its protocol.
//!
//! Sources: `include/uapi/linux/netlink.h`, `include/uapi/linux/genetlink.h`,
//! `net/netlink/af_netlink.c`, `lib/nlattr.c`.
#![forbid(unsafe_code)]

mod attribute;
mod message;
mod socket_options;
mod writer;

pub mod fou;
pub mod genl;

pub use attribute::{AttributeTable, RawAttribute, RawAttributes, find_attribute};
pub use message::{
    NLMSG_DONE, NLMSG_ERROR, NLMSG_MIN_TYPE, NetlinkFlags, NetlinkHeader, NetlinkMessage,
    NetlinkMessages,
};
pub use socket_options::SocketOptions;
pub use writer::{AttributeWriter, append_message, set_message_len};

/// Rounds a length up to netlink's alignment (`NLMSG_ALIGN`, `NLA_ALIGN`).
#[must_use]
pub const fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

#[cfg(test)]
mod tests;
