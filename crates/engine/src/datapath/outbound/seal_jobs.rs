//! Seal jobs for the crypto library.

use arrayvec::ArrayVec;
use uxfrm_crypto::{Crypter, Iv, SaKey, SealJob, SealStatus, SeqHigh};

use super::narrow;

/// Jobs of one library call; the tag of each is its item's index.
pub(super) struct SealJobs<'a, 'c> {
    jobs: ArrayVec<SealJob<'a>, CHUNK>,
    crypter: &'c mut Crypter,
    /// Indexes of items in which a packet was refused.
    pub(super) failed: &'c mut Vec<usize>,
}

/// Enough for the library's bursts, small enough for the stack and the L1 cache.
pub(super) const CHUNK: usize = 64;

impl<'a, 'c> SealJobs<'a, 'c> {
    pub(super) fn new(crypter: &'c mut Crypter, failed: &'c mut Vec<usize>) -> Self {
        Self { jobs: ArrayVec::new(), crypter, failed }
    }

    /// Adds a packet of item `item`. A full list is sealed at once.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        item: usize,
        key: &'a SaKey,
        (high, iv): (SeqHigh, Iv),
        esp: &'a mut [u8],
    ) {
        self.jobs.push(SealJob { tag: narrow(item), ..SealJob::in_place(key, high, iv, esp) });
        if self.jobs.is_full() {
            self.run();
        }
    }

    /// Seals the pending jobs, and starts a list for packets with a shorter lifetime.
    pub(super) fn flush_and_reborrow(&mut self) -> SealJobs<'_, '_> {
        self.run();
        SealJobs::new(self.crypter, self.failed)
    }

    /// Seals and clears the jobs. The library zeroes a refused packet; its item is recorded.
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
            let item = job.tag as usize;
            if job.status != SealStatus::Sealed && self.failed.last() != Some(&item) {
                self.failed.push(item);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_crypto::{Backend, KeyMaterial, Transform};

    use super::*;

    /// Each item with a refused packet is recorded once, in whichever call; no other is.
    #[test]
    fn refused_packets_are_recorded_by_item() {
        let gcm = Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap();
        let cbc = Transform::cipher_auth(Some(("cbc(aes)", 128)), Some(("hmac(sha1)", 160, None)))
            .unwrap();
        let mut crypter = Crypter::new().unwrap();
        for (transform, backend) in
            [(gcm, Backend::Auto), (gcm, Backend::Portable), (cbc, Backend::Auto)]
        {
            let [cipher, mac] = [transform.key_len(), transform.auth_key_len()]
                .map(|len| KeyMaterial::from(vec![7; len]));
            let key = SaKey::new(&transform, &cipher, &mac, backend).unwrap();
            for refused in [&[][..], &[70, 90], &[0, 3 * CHUNK - 1]] {
                // Two packets per item; in items to be refused both are too short.
                let whole = transform.overhead() + 2 * transform.block_len().max(4);
                let len = |at: usize| if refused.contains(&(at / 2)) { at % 2 } else { whole };
                let mut packets: Vec<Vec<u8>> = (0..6 * CHUNK).map(|at| vec![1; len(at)]).collect();
                let mut failed = Vec::new();
                let mut jobs = SealJobs::new(&mut crypter, &mut failed);
                for (at, esp) in packets.iter_mut().enumerate() {
                    jobs.push(at / 2, &key, (SeqHigh::None, Iv::Counter(at as u64)), esp);
                }
                jobs.run();
                assert_eq!(failed, refused, "{} {backend:?}", transform.name());
            }
        }
    }
}
