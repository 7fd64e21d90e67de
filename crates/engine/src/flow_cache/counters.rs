//! Counters of policies that cached flows meet.

pub(crate) mod policy;
pub(crate) mod published;
pub(crate) mod valid_slots;
