//! What one call of the crypto library seals.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Crypter, Iv, SaKey, SealJob, Sealing, SeqHigh};

use super::narrow;

/// Jobs of one call of the crypto library, each with the place of the item that it is of as its tag.
pub(super) struct Jobs<'a, 'c> {
    jobs: ArrayVec<SealJob<'a>, CHUNK>,
    crypter: &'c mut Crypter,
    /// Items in which a packet was refused.
    pub(super) failed: &'c mut Vec<usize>,
}

/// Enough for the library's bursts, little enough for the stack and the first-level cache.
pub(super) const CHUNK: usize = 64;

impl<'a, 'c> Jobs<'a, 'c> {
    pub(super) fn new(crypter: &'c mut Crypter, failed: &'c mut Vec<usize>) -> Self {
        Self { jobs: ArrayVec::new(), crypter, failed }
    }

    /// Notes a packet of the item at `place`. As many are sealed at once as one call takes.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        place: usize,
        key: &'a SaKey,
        (high, iv): (SeqHigh, Iv),
        esp: &'a mut [u8],
    ) {
        self.jobs.push(SealJob { tag: narrow(place), ..SealJob::in_place(key, high, iv, esp) });
        if self.jobs.is_full() {
            self.run();
        }
    }

    /// Seals and forgets them; a refused one was zeroed by the library and its item is noted.
    #[inline(never)]
    pub(super) fn run(&mut self) {
        if !self.crypter.seal(&mut self.jobs) {
            self.note_refused();
        }
        self.jobs.clear();
    }

    #[cold]
    fn note_refused(&mut self) {
        for job in &self.jobs {
            let place = job.tag as usize;
            if job.verdict != Sealing::Sealed && self.failed.last() != Some(&place) {
                self.failed.push(place);
            }
        }
    }
}
