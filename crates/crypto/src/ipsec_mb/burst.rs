//! Bursts: packets of one [`BurstKind`], each in a SIMD lane of its own.
//!
//! A cipher and MAC pair takes two synchronous bursts, so that ICVs are verified before anything is
//! decrypted. An AEAD takes one, which decrypts whatever the tag: forged text is wiped.

use zeroize::Zeroize;

use super::Worker;
use super::ffi::{self, AeadJob, CipherJob, MacJob};
use super::keys::{BurstKey, BurstKind, Mac};
use crate::job::{Iv, OpenJob, OpenStatus, SealJob, SealStatus, TextSpan};
use crate::key::SaKey;
use crate::portable::{
    Aad, ReceivedIcv, append_seq_high, array, copy_in, copy_out, counter_block, open_status,
    refused, write_counter,
};
use crate::transform::{AesSize, Cipher, HEADER_LEN, MAX_ICV_LEN};

/// Most packets in a burst, also in the shim. Two SHA-1 rounds of 16 lanes fill well from 32 on.
pub(crate) const BURST: usize = 64;

type Tags = [[u8; MAX_ICV_LEN]; BURST];

pub(super) fn seal(worker: &mut Worker, jobs: &mut [SealJob<'_>], chosen: &[u32]) {
    let Some(kind) =
        chosen.first().and_then(|first| jobs[*first as usize].key.burst()).map(BurstKey::kind)
    else {
        return;
    };
    let done = match kind {
        BurstKind::Pair(cipher, mac) => {
            encrypt_all(worker, cipher, jobs, chosen) && sign_all(worker, mac, jobs, chosen)
        }
        BurstKind::Aead(..) => seal_aead(worker, kind, jobs, chosen),
    };
    for i in chosen {
        let job = &mut jobs[*i as usize];
        job.status = if done { SealStatus::Sealed } else { refused(job.esp) };
    }
}

pub(super) fn open(worker: &mut Worker, jobs: &mut [OpenJob<'_>], chosen: &[u32]) {
    let Some(kind) =
        chosen.first().and_then(|first| jobs[*first as usize].key.burst()).map(BurstKey::kind)
    else {
        return;
    };
    match kind {
        BurstKind::Pair(cipher, mac) => {
            verify_all(worker, mac, jobs, chosen);
            decrypt_all(worker, cipher, jobs, chosen);
        }
        BurstKind::Aead(..) => open_aead(worker, kind, jobs, chosen),
    }
}

/// Only jobs with burst keys get here; a key without one gives null pointers and no work.
fn keys(key: &SaKey) -> (*const u8, *const u8, [u8; 4]) {
    key.burst().map_or((core::ptr::null(), core::ptr::null(), [0; 4]), |burst| {
        (burst.cipher.encrypt.as_ptr(), burst.cipher.decrypt.as_ptr(), burst.cipher.salt)
    })
}

/// Writes IVs and ciphertexts.
fn encrypt_all(
    worker: &mut Worker,
    cipher: Cipher,
    jobs: &mut [SealJob<'_>],
    chosen: &[u32],
) -> bool {
    let mut todo = [CipherJob::NONE; BURST];
    let mut ivs = [[0; 16]; BURST];
    for (slot, i) in chosen.iter().enumerate() {
        let job = &mut jobs[*i as usize];
        let end = job.esp.len() - job.key.transform.icv_len();
        let (enc, _, nonce) = keys(job.key);
        let span = match cipher {
            Cipher::Null => {
                copy_in(job.plain, &mut job.esp[HEADER_LEN..end]);
                TextSpan::EMPTY
            }
            Cipher::Cbc(_) => aim_cbc(job, end, &mut ivs[slot]),
            Cipher::Ctr(_) => {
                let (iv, text) = job.esp[HEADER_LEN..end].split_at_mut(8);
                write_counter(job.iv, iv);
                ivs[slot] = first_counter(nonce, iv);
                TextSpan::into(text, job.plain)
            }
        };
        todo[slot] = cipher_job(enc, span);
    }
    cipher_burst(worker, cipher, 1, &mut todo[..chosen.len()], &ivs)
}

/// Text and IV for a CBC packet. With a counter and in place, the counter block before the text is
/// encrypted under a zero IV: it becomes the IV, and the text chains on.
fn aim_cbc(job: &mut SealJob<'_>, end: usize, iv: &mut [u8; 16]) -> TextSpan {
    let body = &mut job.esp[HEADER_LEN..end];
    if let (Iv::Counter(counter), None) = (job.iv, job.plain) {
        body[..16].copy_from_slice(&counter_block(counter));
        *iv = [0; 16];
        return TextSpan::into(body, None);
    }
    let (place, text) = body.split_at_mut(16);
    if let Iv::Counter(counter) = job.iv {
        place.copy_from_slice(&job.key.encrypt_block(&counter_block(counter)));
    }
    *iv = array(place);
    TextSpan::into(text, job.plain)
}

/// All but the IV.
fn cipher_job(keys: *const u8, span: TextSpan) -> CipherJob {
    CipherJob { keys, src: span.src, dst: span.dst, iv: core::ptr::null(), len: span.len as u64 }
}

/// Decrypts authentic packets. A failed burst yields no plaintext.
fn decrypt_all(worker: &mut Worker, cipher: Cipher, jobs: &mut [OpenJob<'_>], chosen: &[u32]) {
    let mut todo = [CipherJob::NONE; BURST];
    let mut ivs = [[0; 16]; BURST];
    let mut n = 0;
    for i in chosen {
        let job = &mut jobs[*i as usize];
        if job.status != OpenStatus::Authentic {
            continue;
        }
        let end = job.esp.len() - job.key.transform.icv_len();
        let (enc, dec, nonce) = keys(job.key);
        let (iv, text) = job.esp[HEADER_LEN..end].split_at_mut(job.key.transform.iv_len());
        let plain = job.plain.as_deref_mut().map(|plain| &mut plain[..text.len()]);
        let (keys, iv) = match cipher {
            Cipher::Null => {
                copy_out(text, plain);
                continue;
            }
            Cipher::Cbc(_) => (dec, array(iv)),
            Cipher::Ctr(_) => (enc, first_counter(nonce, iv)),
        };
        (todo[n], ivs[n]) = (cipher_job(keys, TextSpan::out_of(text, plain)), iv);
        n += 1;
    }
    if !cipher_burst(worker, cipher, 0, &mut todo[..n], &ivs) {
        for i in chosen {
            wipe_forged(&mut jobs[*i as usize]);
        }
    }
}

/// Nonce, IV, and a block counter from one (RFC 3686 §4).
fn first_counter(nonce: [u8; 4], iv: &[u8]) -> [u8; 16] {
    let mut counter = [0; 16];
    counter[..4].copy_from_slice(&nonce);
    counter[4..12].copy_from_slice(iv);
    counter[15] = 1;
    counter
}

fn cipher_burst(
    worker: &mut Worker,
    cipher: Cipher,
    encrypt: u32,
    todo: &mut [CipherJob],
    ivs: &[[u8; 16]; BURST],
) -> bool {
    let (number, size) = match cipher {
        Cipher::Null => return true,
        Cipher::Cbc(size) => (ffi::CIPHER_CBC, size),
        Cipher::Ctr(size) => (ffi::CIPHER_CTR, size),
    };
    for (call, iv) in todo.iter_mut().zip(ivs) {
        call.iv = iv.as_ptr();
    }
    // SAFETY: at most BURST calls; each has an expanded key of this size, an IV of 16 bytes, and a
    // valid span (for CBC whole blocks) of packets that the caller has borrowed.
    let done = unsafe {
        let count = count(todo.len());
        ffi::uxfrm_imb_cipher_burst(
            worker.exclusive(),
            number,
            encrypt,
            key_len(size),
            todo.as_ptr(),
            count,
        )
    };
    done as usize == todo.len()
}

/// Writes ICVs.
fn sign_all(worker: &mut Worker, mac: Mac, jobs: &mut [SealJob<'_>], chosen: &[u32]) -> bool {
    let Some(number) = mac.number() else { return true };
    let mut todo = [MacJob::NONE; BURST];
    let mut tags: Tags = [[0; MAX_ICV_LEN]; BURST];
    for (slot, i) in chosen.iter().enumerate() {
        let job = &mut jobs[*i as usize];
        let covered = job.esp.len() - job.key.transform.icv_len();
        let end = append_seq_high(job.seq_high, job.esp, covered);
        todo[slot] = mac_job(job.key, &job.esp[..end], &mut tags[slot]);
    }
    let done = mac_burst(worker, number, &todo[..chosen.len()]);
    for (tag, i) in tags.iter().zip(chosen) {
        let job = &mut jobs[*i as usize];
        let icv_len = job.key.transform.icv_len();
        let covered = job.esp.len() - icv_len;
        job.esp[covered..].copy_from_slice(&tag[..icv_len]);
    }
    done
}

/// Sets statuses; leaves packets unchanged.
fn verify_all(worker: &mut Worker, mac: Mac, jobs: &mut [OpenJob<'_>], chosen: &[u32]) {
    let mut todo = [MacJob::NONE; BURST];
    let mut tags: Tags = [[0; MAX_ICV_LEN]; BURST];
    let mut received = [ReceivedIcv::NONE; BURST];
    for (slot, i) in chosen.iter().enumerate() {
        let job = &mut jobs[*i as usize];
        let covered = job.esp.len() - job.key.transform.icv_len();
        received[slot] = ReceivedIcv::take(job.esp, covered);
        let end = append_seq_high(job.seq_high, job.esp, covered);
        todo[slot] = mac_job(job.key, &job.esp[..end], &mut tags[slot]);
    }
    let done = mac.number().is_none_or(|number| mac_burst(worker, number, &todo[..chosen.len()]));
    for (slot, i) in chosen.iter().enumerate() {
        let job = &mut jobs[*i as usize];
        let covered = job.esp.len() - job.key.transform.icv_len();
        received[slot].restore(job.esp, covered);
        job.status = open_status(done && received[slot].matches(&tags[slot]));
    }
}

fn mac_job(key: &SaKey, message: &[u8], tag: &mut [u8; MAX_ICV_LEN]) -> MacJob {
    let keys = key
        .burst()
        .map_or([core::ptr::null(); 3], |burst| burst.mac.parts.each_ref().map(|p| p.0.as_ptr()));
    MacJob { keys, src: message.as_ptr(), len: message.len() as u64, tag: tag.as_mut_ptr() }
}

fn mac_burst(worker: &mut Worker, number: u32, todo: &[MacJob]) -> bool {
    // SAFETY: at most BURST calls; each has this algorithm's keys, a message of `len` bytes, room
    // for the whole tag.
    let done = unsafe {
        ffi::uxfrm_imb_mac_burst(worker.exclusive(), number, todo.as_ptr(), count(todo.len()))
    };
    done as usize == todo.len()
}

/// Per-packet data of an AEAD burst.
struct AeadSide {
    todo: [AeadJob; BURST],
    nonces: [[u8; 12]; BURST],
    aads: [Aad; BURST],
    tags: [[u8; 16]; BURST],
}

impl AeadSide {
    fn new() -> Self {
        Self {
            todo: [AeadJob::NONE; BURST],
            nonces: [[0; 12]; BURST],
            aads: [Aad::EMPTY; BURST],
            tags: [[0; 16]; BURST],
        }
    }

    /// Fills everything but the pointers into `self`.
    fn prepare(&mut self, slot: usize, key: &SaKey, aad: Aad, iv: &[u8], span: TextSpan) {
        let (keys, _, salt) = keys(key);
        let salt_len = key.transform.salt_len();
        self.nonces[slot][..salt_len].copy_from_slice(&salt[..salt_len]);
        self.nonces[slot][salt_len..salt_len + 8].copy_from_slice(iv);
        self.aads[slot] = aad;
        let (src, dst, len) = (span.src, span.dst, span.len as u64);
        self.todo[slot] = AeadJob { keys, src, dst, len, ..AeadJob::NONE };
    }

    fn run(&mut self, worker: &mut Worker, kind: BurstKind, encrypt: u32, n: usize) -> bool {
        let BurstKind::Aead(number, size, tag_len) = kind else { return false };
        for (slot, call) in self.todo[..n].iter_mut().enumerate() {
            let aad = self.aads[slot].bytes();
            (call.aad, call.aad_len) = (aad.as_ptr(), aad.len() as u64);
            (call.nonce, call.tag) = (self.nonces[slot].as_ptr(), self.tags[slot].as_mut_ptr());
        }
        // SAFETY: at most BURST calls; each has this algorithm's key, nonce and associated data
        // that live in `self`, 16 bytes for the tag, and a valid span of packets that the caller
        // has borrowed.
        let done = unsafe {
            let todo = self.todo.as_ptr();
            ffi::uxfrm_imb_aead_burst(
                worker.exclusive(),
                number,
                encrypt,
                size.map_or(32, key_len),
                tag_len.into(),
                todo,
                count(n),
            )
        };
        done as usize == n
    }
}

fn seal_aead(
    worker: &mut Worker,
    kind: BurstKind,
    jobs: &mut [SealJob<'_>],
    chosen: &[u32],
) -> bool {
    let mut side = AeadSide::new();
    for (slot, i) in chosen.iter().enumerate() {
        let job = &mut jobs[*i as usize];
        let end = job.esp.len() - job.key.transform.icv_len();
        write_counter(job.iv, &mut job.esp[HEADER_LEN..HEADER_LEN + 8]);
        let aad = Aad::of(job.esp, job.seq_high);
        let (iv, text) = job.esp[HEADER_LEN..end].split_at_mut(8);
        side.prepare(slot, job.key, aad, iv, TextSpan::into(text, job.plain));
    }
    let done = side.run(worker, kind, 1, chosen.len());
    for (tag, i) in side.tags.iter().zip(chosen) {
        let job = &mut jobs[*i as usize];
        let icv_len = job.key.transform.icv_len();
        let covered = job.esp.len() - icv_len;
        job.esp[covered..].copy_from_slice(&tag[..icv_len]);
    }
    done
}

fn open_aead(worker: &mut Worker, kind: BurstKind, jobs: &mut [OpenJob<'_>], chosen: &[u32]) {
    let mut side = AeadSide::new();
    for (slot, i) in chosen.iter().enumerate() {
        let job = &mut jobs[*i as usize];
        let end = job.esp.len() - job.key.transform.icv_len();
        let aad = Aad::of(job.esp, job.seq_high);
        let (iv, text) = job.esp[HEADER_LEN..end].split_at_mut(8);
        let plain = job.plain.as_deref_mut().map(|plain| &mut plain[..text.len()]);
        side.prepare(slot, job.key, aad, iv, TextSpan::out_of(text, plain));
    }
    let done = side.run(worker, kind, 0, chosen.len());
    for (tag, i) in side.tags.iter().zip(chosen) {
        let job = &mut jobs[*i as usize];
        let covered = job.esp.len() - job.key.transform.icv_len();
        if done && ReceivedIcv::take(job.esp, covered).matches(tag) {
            job.status = OpenStatus::Authentic;
        } else {
            wipe_forged(job);
        }
    }
}

/// Wipes text that may have been decrypted.
fn wipe_forged(job: &mut OpenJob<'_>) {
    let (header_iv_len, icv) =
        (HEADER_LEN + job.key.transform.iv_len(), job.key.transform.icv_len());
    let end = job.esp.len() - icv;
    match job.plain.as_deref_mut() {
        Some(plain) => plain[..end - header_iv_len].zeroize(),
        None => job.esp[header_iv_len..end].zeroize(),
    }
    job.status = OpenStatus::Forged;
}

fn key_len(size: AesSize) -> u32 {
    size.bits() / 8
}

/// At most [`BURST`].
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(0)
}
