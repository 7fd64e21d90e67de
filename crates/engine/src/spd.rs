//! The security policy database: policies, and how the one that decides is found.
//!
//! What a policy takes of the process's memory where there are a million of them in the shape of tunnels (column `memory_per_policy` of
//! `uxfrm bench lookup --only changes=0/s,policies=1000000`; `bytes_per_policy` is the classifier's part):
//!
//! | bytes | what |
//! | ---: | --- |
//! | 96 | [`PolicyEntry`](crate::PolicyEntry): 72, and 24 for the counts of its `Arc` and the allocator |
//! | 56 | `classifier`: 40 for its rule, the rest for leaves and cuts |
//! | 11 | `ledger`: its slot in the table of names, of which a million have filled half |
//! | 8 | where the entry of its slot is |
//! | 5 | its slot among those that came, for dumps |
//! | 4 | its slot by index |
//!
//! Templates, limits and other words are kept once for all policies that say the same (`terms`). The first packet adds nothing.
//! That is of IPv4; a policy of IPv6 takes 300 bytes in all, and one of IPv4 that alone has its template, as of a million tunnels to as many
//! peers, some 410.
pub mod entry;
pub mod flow_cache;
pub mod policy;
pub mod table;
pub mod template;

pub(crate) mod check;
pub(crate) mod classifier;
mod form;
pub(crate) mod ledger;
mod own;
mod terms;
