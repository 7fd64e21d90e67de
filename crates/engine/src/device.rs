//! What passes between the engine and devices that do IPsec.

pub(crate) mod contract;
pub(crate) mod control;
