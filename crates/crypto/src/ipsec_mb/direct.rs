//! AES-GCM, one packet per call, and GMAC. Calls of a batch run in sequence after all their inputs
//! are written.

use arrayvec::ArrayVec;
use zeroize::Zeroize;

use super::ffi::GcmJob;
use super::keys::DirectKey;
use super::{BURST, Worker, ffi};
use crate::icv;
use crate::job::{EspParts, Iv, OpenJob, SealJob, SealStatus, SeqHigh, TextSpan};
use crate::portable::{Aad, array, copy_in, copy_out, open_status, write_counter};
use crate::transform::HEADER_LEN;

const IV_LEN: usize = 8;

/// Pending calls of one key size and tag length, and their job indices.
///
/// The pointers are to packets that the batch has borrowed; calls are made before that ends.
pub(crate) struct DirectCalls {
    todo: ArrayVec<GcmJob, BURST>,
    places: ArrayVec<u32, BURST>,
    bits: u32,
    tag_len: usize,
}

impl DirectCalls {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { todo: ArrayVec::new(), places: ArrayVec::new(), bits: 0, tag_len: 0 }
    }

    /// Whether a packet of this key must wait until pending calls are done.
    #[inline]
    pub(crate) fn are_others(&self, key: &DirectKey, tag_len: usize) -> bool {
        self.todo.is_full()
            || (!self.todo.is_empty() && (self.bits != key.bits || self.tag_len != tag_len))
    }

    /// Queues a packet to be sealed.
    #[inline]
    pub(crate) fn seal(&mut self, key: &DirectKey, job: &mut SealJob<'_>, text_len: usize) {
        let iv: [u8; IV_LEN] = match job.iv {
            Iv::Counter(counter) => counter.to_be_bytes(),
            Iv::InPacket => array(&job.esp[HEADER_LEN..]),
        };
        job.esp[HEADER_LEN..HEADER_LEN + IV_LEN].copy_from_slice(&iv);
        let head = AadBuffer::of(job.esp, job.seq_high);
        let parts = EspParts::of(job.esp, IV_LEN, text_len);
        self.tag_len = parts.icv.len();
        let span = TextSpan::into(parts.text, job.plain);
        self.push(key, head, iv, span, parts.icv.as_mut_ptr());
        job.status = SealStatus::Sealed;
    }

    /// Queues a packet to be opened: job `place` of its batch.
    #[inline]
    pub(crate) fn open(
        &mut self,
        key: &DirectKey,
        job: &mut OpenJob<'_>,
        text_len: usize,
        place: u32,
    ) {
        let head = AadBuffer::of(job.esp, job.seq_high);
        let parts = EspParts::of(job.esp, IV_LEN, text_len);
        self.tag_len = parts.icv.len();
        let iv = array(&parts.header_iv[HEADER_LEN..]);
        let plain = job.plain.as_deref_mut().map(|plain| &mut plain[..text_len]);
        let span = TextSpan::out_of(parts.text, plain);
        self.push(key, head, iv, span, core::ptr::null_mut());
        self.places.push(place);
    }

    #[inline(always)]
    fn push(
        &mut self,
        key: &DirectKey,
        head: AadBuffer,
        iv: [u8; IV_LEN],
        span: TextSpan,
        tag: *mut u8,
    ) {
        self.bits = key.bits;
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&key.secret.salt);
        nonce[4..].copy_from_slice(&iv);
        self.todo.push(GcmJob {
            keys: key.secret.data.as_ptr(),
            src: span.src,
            dst: span.dst,
            len: span.len as u64,
            tag,
            aad_len: head.len,
            nonce,
            aad: head.bytes,
            own_tag: [0; 16],
        });
    }

    /// Runs the seal calls.
    pub(crate) fn run_sealing(&mut self, worker: &mut Worker) {
        let (todo, n) = (self.todo.as_mut_ptr(), count(self.todo.len()));
        // SAFETY: each of the n calls has a key that was expanded for these bits, a valid span, as
        // its slices are borrowed, and an ICV's own slice of this length.
        unsafe {
            let (worker, tag_len) = (worker.exclusive(), self.tag_len as u64);
            ffi::uxfrm_imb_gcm_seal(worker, self.bits, todo, n, tag_len);
        }
        self.todo.clear();
    }

    /// Runs the open calls, and sets the statuses. Forged plaintext is wiped.
    pub(crate) fn run_opening(&mut self, worker: &mut Worker, jobs: &mut [OpenJob<'_>]) {
        let (todo, n) = (self.todo.as_mut_ptr(), count(self.todo.len()));
        // SAFETY: each of the n calls has a key that was expanded for these bits, and a valid span,
        // as its slices are borrowed; the tag has 16 bytes, no ICV has more.
        unsafe {
            let (worker, tag_len) = (worker.exclusive(), self.tag_len as u64);
            ffi::uxfrm_imb_gcm_open(worker, self.bits, todo, n, tag_len);
        }
        for (call, place) in self.todo.iter().zip(&self.places) {
            let job = &mut jobs[*place as usize];
            let covered = job.esp.len() - self.tag_len;
            let authentic = icv::matches(&job.esp[covered..], &call.own_tag);
            job.status = open_status(authentic);
            if !authentic {
                forget(job, covered);
            }
        }
        self.todo.clear();
        self.places.clear();
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.todo.is_empty()
    }
}

/// Wipes decrypted text.
#[cold]
fn forget(job: &mut OpenJob<'_>, covered: usize) {
    let text = HEADER_LEN + IV_LEN..covered;
    match job.plain.as_deref_mut() {
        Some(plain) => plain[..text.len()].zeroize(),
        None => job.esp[text].zeroize(),
    }
}

/// Associated data for a call.
struct AadBuffer {
    bytes: [u8; 12],
    len: u64,
}

impl AadBuffer {
    #[inline(always)]
    fn of(esp: &[u8], seq_high: SeqHigh) -> Self {
        let mut bytes = [0; 12];
        let len = match seq_high {
            SeqHigh::None => {
                bytes[..8].copy_from_slice(&array::<8>(esp));
                8
            }
            SeqHigh::Esn(high) => {
                bytes[..4].copy_from_slice(&esp[..4]);
                bytes[4..8].copy_from_slice(&high.to_be_bytes());
                bytes[8..].copy_from_slice(&esp[4..8]);
                12
            }
        };
        Self { bytes, len }
    }
}

/// At most [`BURST`].
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// Authenticates a packet without encryption.
pub(super) fn seal_gmac(
    worker: &mut Worker,
    key: &DirectKey,
    job: &mut SealJob<'_>,
    text_len: usize,
) {
    write_counter(job.iv, &mut job.esp[HEADER_LEN..HEADER_LEN + IV_LEN]);
    let aad = Aad::of(job.esp, job.seq_high);
    let parts = EspParts::of(job.esp, IV_LEN, text_len);
    copy_in(job.plain, parts.text);
    let tag = gmac(worker, key, &aad, &parts);
    parts.icv.copy_from_slice(&tag);
    job.status = SealStatus::Sealed;
}

/// Verifies a packet without encryption.
pub(super) fn open_gmac(
    worker: &mut Worker,
    key: &DirectKey,
    job: &mut OpenJob<'_>,
    text_len: usize,
) {
    let aad = Aad::of(job.esp, job.seq_high);
    let parts = EspParts::of(job.esp, IV_LEN, text_len);
    let authentic = icv::matches(parts.icv, &gmac(worker, key, &aad, &parts));
    if authentic {
        copy_out(parts.text, job.plain.as_deref_mut().map(|plain| &mut plain[..text_len]));
    }
    job.status = open_status(authentic);
}

/// The tag over SPI | [high half |] sequence number | IV | text.
fn gmac(worker: &mut Worker, key: &DirectKey, aad: &Aad, parts: &EspParts<'_>) -> [u8; 16] {
    let (nonce, mut tag) = (nonce(key, parts.header_iv), [0; 16]);
    let rest = &parts.header_iv[HEADER_LEN..];
    let mut head = [0; 20];
    let (addressed, iv) = head.split_at_mut(aad.bytes().len());
    addressed.copy_from_slice(aad.bytes());
    iv[..IV_LEN].copy_from_slice(rest);
    let call = ffi::AeadJob {
        keys: key.secret.data.as_ptr(),
        src: parts.text.as_ptr(),
        dst: core::ptr::null_mut(),
        len: parts.text.len() as u64,
        nonce: nonce.as_ptr(),
        aad: head.as_ptr(),
        aad_len: (aad.bytes().len() + IV_LEN) as u64,
        tag: tag.as_mut_ptr(),
    };
    // SAFETY: both pieces are slices of the lengths given; the tag has 16 bytes.
    unsafe { ffi::uxfrm_imb_gmac(worker.exclusive(), key.bits, &raw const call, 16) };
    tag
}

/// Salt, then the packet's IV (RFC 4106 §4).
fn nonce(key: &DirectKey, header_iv: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&key.secret.salt);
    nonce[4..].copy_from_slice(&array::<8>(&header_iv[HEADER_LEN..]));
    nonce
}
