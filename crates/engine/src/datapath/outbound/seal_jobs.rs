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

    /// Seals these, and begins others, of packets that need not be there for so long.
    pub(super) fn anew(&mut self) -> Jobs<'_, '_> {
        self.run();
        Jobs::new(self.crypter, self.failed)
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

#[cfg(test)]
mod tests {
    use uxfrm_crypto::{Backend, KeyMaterial, Transform};

    use super::*;

    /// Of what the library refuses exactly the items are noted, each once, in whatever call it was; without any, none is.
    #[test]
    fn refused_packets_are_noted_by_their_items() {
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
                // Two packets of each item, both too short in those that are refused.
                let whole = transform.overhead() + 2 * transform.block_len().max(4);
                let len = |at: usize| if refused.contains(&(at / 2)) { at % 2 } else { whole };
                let mut packets: Vec<Vec<u8>> = (0..6 * CHUNK).map(|at| vec![1; len(at)]).collect();
                let mut failed = Vec::new();
                let mut jobs = Jobs::new(&mut crypter, &mut failed);
                for (at, esp) in packets.iter_mut().enumerate() {
                    jobs.push(at / 2, &key, (SeqHigh::None, Iv::Counter(at as u64)), esp);
                }
                jobs.run();
                assert_eq!(failed, refused, "{} {backend:?}", transform.name());
            }
        }
    }
}
