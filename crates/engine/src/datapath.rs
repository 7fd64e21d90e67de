//! The path of a batch of packets, outbound and inbound.

pub(crate) mod account;
pub(crate) mod back_off;
pub(crate) mod context;
pub(crate) mod inbound;
pub(crate) mod look_up_step;
pub(crate) mod outbound;
