//! Outbound slow path: packets that the fast paths cannot carry, one item each.

pub(crate) mod acquire_queue;
pub(crate) mod defragment;
pub(crate) mod device;
pub(crate) mod frame;
pub(crate) mod icmp_quote;
pub(crate) mod item;
pub(crate) mod plain;
pub(crate) mod plain_loop;
pub(crate) mod routing_header;
pub(crate) mod seal;
pub(crate) mod segment;
pub(crate) mod verdict;
