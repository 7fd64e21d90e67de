//! Security associations: what they say ([`config`]), what changes with every packet, and how they are found.
pub mod config;
