//! Admission control: whether a flow cache pays, and how large it should be.

pub(crate) mod hit_rate;
pub(crate) mod lookup_cost;
pub(crate) mod miss_cost;
pub(crate) mod reuse;
