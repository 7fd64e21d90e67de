//! Figures that others published, to be shown beside those that were measured.

pub(crate) mod fou;
pub(super) mod lookup;
pub(crate) mod offload;
