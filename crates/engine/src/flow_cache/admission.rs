//! Whether a flow cache pays for its room, and whether it is used.

pub(crate) mod hit_rate;
pub(crate) mod lookup_cost;
pub(crate) mod miss_cost;
pub(crate) mod reuse;
