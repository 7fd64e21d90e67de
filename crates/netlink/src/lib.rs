//! `NETLINK_XFRM`, the kernel's control protocol for IPsec, without I/O: a codec that is total on
//! any bytes and a [`Server`] that applies requests to a [`Database`](uxfrm_engine::Database).
//!
//! It mirrors `net/xfrm/xfrm_user.c` of Linux 6.18: layouts, order of checks, errno, extended-ACK
//! texts, multicast groups. Settings that the engine cannot apply are refused with `EOPNOTSUPP` and
//! a text of our own.
#![forbid(unsafe_code)]

mod address;
mod attribute;
mod counts;
mod datagram;
mod layout;
mod message;
mod refusal;
mod server;
mod wiped;

pub mod client;
pub mod fou;

mod decode;
mod encode;

pub use attribute::{AttributeType, Attributes};
pub use counts::NamedCounters;
pub use datagram::NetlinkDatagram;
pub use message::MessageType;
pub use refusal::NetlinkError;
pub use server::{
    Server, ServerSettings,
    answers::{AnswerWriter, RequestOutcome},
    client::{ClientId, Groups, SocketOptions},
    export::RestoredItem,
    outbox::{Delivery, Outbox},
};
pub use uxfrm_netlink_wire::{
    NetlinkFlags, NetlinkMessage, NetlinkMessages, RawAttribute, RawAttributes,
};
