//! The security policy database: policies, and how the one that decides is found.
pub mod policy;
pub mod template;
