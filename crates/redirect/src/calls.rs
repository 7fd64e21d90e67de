//! The functions that programs call instead of the C library's.

mod address;
#[cfg(any(test, fuzzing))]
pub(crate) mod bytes;
mod control;
mod credentials;
mod datagram;
mod descriptor;
mod ethtool;
mod file;
mod generic;
mod ip;
mod loss;
mod message;
mod option;
mod own_policy;
mod sysctl;
mod vectors;
