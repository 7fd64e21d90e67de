//! Interface between the engine and offload devices.

pub(crate) mod contract;
pub(crate) mod control;
