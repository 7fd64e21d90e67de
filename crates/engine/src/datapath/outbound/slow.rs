//! The slow path out: packets that the fast paths can't carry, one item each.

pub(crate) mod acquire_queue;
pub(crate) mod defragment;
pub(crate) mod device;
pub(crate) mod item;
pub(crate) mod routing_header;
pub(crate) mod seal;
pub(crate) mod segment;
pub(crate) mod verdict;
