//! What one call of the crypto library seals.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Crypter, Iv, SealJob, Sealing, SeqHigh};

use super::narrow;
use crate::esp::encapsulate::{self, Stamp};
use crate::esp::layer::{Inside, Layer};

/// Jobs of one call of the crypto library, and of which item each is.
pub(super) struct Jobs<'a> {
    jobs: ArrayVec<SealJob<'a>, CHUNK>,
    places: ArrayVec<u32, CHUNK>,
}

/// Enough for the library's bursts, little enough for the stack and the first-level cache.
const CHUNK: usize = 64;

impl<'a> Jobs<'a> {
    pub(super) fn new() -> Self {
        Self { jobs: ArrayVec::new(), places: ArrayVec::new() }
    }

    pub(super) fn is_full(&self) -> bool {
        self.jobs.is_full()
    }

    /// Puts a layer around the packet and notes it. Says how long it is now.
    #[inline(always)]
    pub(super) fn wrap(
        &mut self,
        place: usize,
        room: &'a mut [u8],
        len: usize,
        layer: &'a Layer,
        around: (&Inside, &Inside),
        stamp: Stamp,
    ) -> usize {
        let esp = encapsulate::wrap(room, len, layer, around, stamp);
        let end = esp.end;
        self.jobs.push(job(layer, stamp.sequence, &mut room[esp]));
        self.places.push(narrow(place));
        end
    }

    /// Seals and forgets them; a refused one was zeroed by the library and its item is noted.
    pub(super) fn run(&mut self, crypter: &mut Crypter, failed: &mut Vec<usize>) {
        crypter.seal(&mut self.jobs);
        for (job, place) in self.jobs.iter().zip(&self.places) {
            let place = *place as usize;
            if job.verdict != Sealing::Sealed && failed.last() != Some(&place) {
                failed.push(place);
            }
        }
        self.jobs.clear();
        self.places.clear();
    }
}

#[inline(always)]
fn job<'a>(layer: &'a Layer, sequence: u64, esp: &'a mut [u8]) -> SealJob<'a> {
    let high = if layer.extended { SeqHigh::Esn(fold_high(sequence)) } else { SeqHigh::None };
    SealJob::in_place(layer.sa.key(), high, Iv::Counter(layer.ivs.counter(sequence)), esp)
}

fn fold_high(sequence: u64) -> u32 {
    (sequence >> 32) as u32
}
