//! The security policy database: policies, and how the one that decides is found.
pub mod entry;
pub mod flow_cache;
pub mod policy;
pub mod table;
pub mod template;

pub(crate) mod check;
pub(crate) mod classifier;
mod ends;
pub(crate) mod ledger;
mod terms;
