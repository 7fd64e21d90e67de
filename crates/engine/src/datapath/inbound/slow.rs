//! Inbound slow path: packets that the fast paths cannot carry, one item each.

pub(crate) mod classify_outer;
pub(crate) mod decap;
pub(crate) mod device;
pub(crate) mod icmp_flow;
pub(crate) mod item;
pub(crate) mod match_sa;
pub(crate) mod parse_outer;
pub(crate) mod policy_check;
pub(crate) mod policy_lookups;
pub(crate) mod reassemble;
