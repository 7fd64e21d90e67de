//! A worker's end of the crate: batches of jobs in, verdicts out.

use crate::error::Error;
use crate::job::{Authenticity, OpenJob, SealJob};
use crate::portable::{self, Scratch};

/// One worker's crypto state. It may move to another thread, but no two use it at once.
#[derive(Debug)]
pub struct Crypter {
    scratch: Scratch,
}

impl Crypter {
    /// Allocates what no packet will allocate later.
    ///
    /// # Errors
    /// [`Error::Library`] when a crypto library has no memory.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { scratch: Scratch::new()? })
    }

    /// Encrypts and signs every job and sets its verdict.
    pub fn seal(&mut self, jobs: &mut [SealJob<'_>]) {
        for job in jobs {
            let Some(text_len) = job.text_len() else {
                job.verdict = portable::refused(job.esp);
                continue;
            };
            job.key.ready.seal(&mut self.scratch, job, text_len);
        }
    }

    /// Checks every job and decrypts the authentic ones; sets its verdict.
    pub fn open(&mut self, jobs: &mut [OpenJob<'_>]) {
        for job in jobs {
            let Some(text_len) = job.text_len() else {
                job.verdict = Authenticity::Runt;
                continue;
            };
            job.key.ready.open(&mut self.scratch, job, text_len);
        }
    }
}
