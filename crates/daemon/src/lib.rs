//! The running gateway of uxfrm: its configuration, batch files and control.
#![forbid(unsafe_code)]

pub mod batch;
pub mod config;
