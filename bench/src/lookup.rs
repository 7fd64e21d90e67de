//! `uxfrm bench lookup`.

mod profile;
mod random;

pub use profile::{Profile, packet_for, policy, stray};
pub use random::Random;
