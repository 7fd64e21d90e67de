//! Policy counters of a worker, and the published cache statistics.

pub(crate) mod policy;
pub(crate) mod published;
pub(crate) mod valid_slots;
