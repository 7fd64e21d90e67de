//! ESP transforms on batches of packets.
//!
//! This crate knows only what an SA's algorithms do to the bytes between an ESP header and the end
//! of its ICV: no addresses, no padding rules, no replay. [`Transform`] parses the kernel's
//! algorithm names, [`SaKey`] is an SA's expanded key, and a worker's [`Crypter`] seals and opens
//! batches of jobs of any mix of SAs, in place or from one buffer into another.
//!
//! Two backends give the same bytes: Intel's ipsec-mb on x86-64, if the build found it, and aws-lc
//! anywhere ([`Backend`]). Promises: a forged packet yields no plaintext, tags are compared in
//! constant time, keys are wiped on drop and never printed, no packet allocates, no input panics.
//!
//! Sources: RFC 4303 (layout, ESN), 4106, 4309, 4543, 7634 (AEADs), 3602, 3686, 2410 (ciphers),
//! 2404, 4868, 3566, 4494 (authentication); names and ICV lengths from the kernel's
//! `net/xfrm/xfrm_algo.c`.
#![cfg_attr(
    not(ipsec_mb),
    expect(dead_code, unused_imports, reason = "what only the bursts of ipsec-mb call")
)]

mod backend;
mod crypter;
#[cfg(target_arch = "x86_64")]
pub mod cycles;
mod error;
mod icv;
#[cfg_attr(not(ipsec_mb), path = "ipsec_mb/stub.rs")]
mod ipsec_mb;
mod job;
mod key;
mod material;
mod portable;
mod secret;
mod transform;

pub use backend::Backend;
pub use crypter::Crypter;
pub use error::Error;
pub use job::{Iv, OpenJob, OpenStatus, SealJob, SealStatus, SeqHigh};
pub use key::SaKey;
pub use material::KeyMaterial;
pub use transform::{AEAD_NAMES, AUTH_NAMES, CIPHER_NAMES, Transform};

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "byte patterns")]
mod tests;
