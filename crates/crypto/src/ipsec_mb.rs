//! The fast backend: Intel's ipsec-mb through the shim in `shim/ipsec_mb.c`.
//!
//! AES-GCM and GMAC use direct calls, one packet at a time; everything else runs in bursts of
//! packets with the same algorithms, one per SIMD lane. The library keeps pointers to keys and
//! packets only during a burst, which is flushed before its call returns.

mod burst;
mod direct;
mod ffi;
mod keys;

use core::ptr::NonNull;
use std::sync::OnceLock;

pub(crate) use self::burst::BURST;
pub(crate) use self::direct::DirectCalls;
pub(crate) use self::keys::{BurstKey, BurstKind, DirectKey};

use crate::job::{OpenJob, SealJob};

/// Whether the library works on this machine.
pub(crate) fn available() -> bool {
    expander().is_some()
}

/// One library manager; not shared, except for key expansion, which only reads it.
#[derive(Debug)]
pub(crate) struct Worker(NonNull<ffi::Worker>);

// SAFETY: the manager is heap memory bound to no thread; whatever changes it takes `&mut`.
unsafe impl Send for Worker {}
// SAFETY: what takes `&Worker` only reads the manager's function pointers, set when it was made.
unsafe impl Sync for Worker {}

impl Worker {
    /// `None` when there is no memory or the library cannot run on this processor.
    pub(crate) fn new() -> Option<Self> {
        // SAFETY: allocates and initialises, or returns null.
        NonNull::new(unsafe { ffi::uxfrm_imb_new() }).map(Self)
    }

    /// Computes GMAC for a packet.
    pub(crate) fn seal_gmac(&mut self, key: &DirectKey, job: &mut SealJob<'_>, text_len: usize) {
        direct::seal_gmac(self, key, job, text_len);
    }

    /// Verifies GMAC of a packet.
    pub(crate) fn open_gmac(&mut self, key: &DirectKey, job: &mut OpenJob<'_>, text_len: usize) {
        direct::open_gmac(self, key, job, text_len);
    }

    /// Seals the chosen jobs, at most [`BURST`], all of one kind and with checked lengths.
    pub(crate) fn seal_burst(&mut self, jobs: &mut [SealJob<'_>], chosen: &[u32]) {
        burst::seal(self, jobs, chosen);
    }

    /// As [`Self::seal_burst`].
    pub(crate) fn open_burst(&mut self, jobs: &mut [OpenJob<'_>], chosen: &[u32]) {
        burst::open(self, jobs, chosen);
    }

    fn shared(&self) -> *const ffi::Worker {
        self.0.as_ptr()
    }

    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "the library writes the manager behind the pointer"
    )]
    fn exclusive(&mut self) -> *mut ffi::Worker {
        self.0.as_ptr()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // SAFETY: made by `uxfrm_imb_new`, freed once; the shim wipes it first.
        unsafe { ffi::uxfrm_imb_free(self.0.as_ptr()) };
    }
}

/// The process-wide manager for key expansion.
fn expander() -> Option<&'static Worker> {
    static EXPANDER: OnceLock<Option<Worker>> = OnceLock::new();
    EXPANDER.get_or_init(Worker::new).as_ref()
}
