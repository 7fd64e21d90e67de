//! The shell around `uxfrm_fleet`: what makes its agent a program, and the commands of
//! `uxfrm fleet`.
//!
//! | module | content |
//! | --- | --- |
//! | [`config`], [`key_file`] | `fleet.toml`; the fleet's keys |
//! | [`etcd`] | the store |
//! | [`clock`] | CLOCK_BOOTTIME |
//! | [`gateway`] | the session with the own gateway |
//! | [`run`] | the agent's loop |
//! | [`commands`] | `uxfrm fleet` |
//! | `whole_file` | files that are written as a whole |
#![forbid(unsafe_code)]

pub mod clock;
pub mod commands;
pub mod config;
pub mod etcd;
pub mod gateway;
pub mod key_file;
pub mod run;
mod whole_file;
