//! AES-GCM and GMAC, one packet a call: faster than a burst up to about 256 bytes, as fast above.

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::keys::DirectKey;
use super::{Worker, ffi};
use crate::job::{OpenJob, Parts, SealJob, Sealing, Span};
use crate::portable::{Aad, array, copy_in, copy_out, verdict, write_counter};
use crate::transform::HEADER_LEN;

const IV_LEN: usize = 8;

pub(super) fn seal(worker: &mut Worker, key: &DirectKey, job: &mut SealJob<'_>, text_len: usize) {
    write_counter(job.iv, &mut job.esp[HEADER_LEN..HEADER_LEN + IV_LEN]);
    let aad = Aad::of(job.esp, job.seq_high);
    let parts = Parts::of(job.esp, IV_LEN, text_len);
    if key.authenticates_only {
        copy_in(job.plain, parts.text);
        let tag = gmac(worker, key, &aad, &parts);
        parts.icv.copy_from_slice(&tag);
    } else {
        let span = Span::into(parts.text, job.plain);
        let nonce = nonce(key, parts.lead);
        let call = ffi::AeadJob {
            keys: key.secret.data.as_ptr(),
            src: span.src,
            dst: span.dst,
            len: span.len as u64,
            nonce: nonce.as_ptr(),
            aad: aad.bytes().as_ptr(),
            aad_len: aad.bytes().len() as u64,
            tag: parts.icv.as_mut_ptr(),
        };
        // SAFETY: the span is valid, as its slices are borrowed; the tag goes to the ICV's own slice; the
        // key was expanded for these bits.
        unsafe {
            ffi::uxfrm_imb_gcm_seal(
                worker.exclusive(),
                key.bits,
                &raw const call,
                parts.icv.len() as u64,
            )
        };
    }
    job.verdict = Sealing::Sealed;
}

pub(super) fn open(worker: &mut Worker, key: &DirectKey, job: &mut OpenJob<'_>, text_len: usize) {
    let aad = Aad::of(job.esp, job.seq_high);
    let parts = Parts::of(job.esp, IV_LEN, text_len);
    let plain = job.plain.as_deref_mut().map(|plain| &mut plain[..text_len]);
    let authentic = if key.authenticates_only {
        let authentic = gmac(worker, key, &aad, &parts).ct_eq(parts.icv).into();
        if authentic {
            copy_out(parts.text, plain);
        }
        authentic
    } else {
        decrypt(worker, key, &aad, parts, plain)
    };
    job.verdict = verdict(authentic);
}

/// Decrypts while it authenticates; what a forged packet gave is wiped.
fn decrypt(
    worker: &mut Worker,
    key: &DirectKey,
    aad: &Aad,
    parts: Parts<'_>,
    plain: Option<&mut [u8]>,
) -> bool {
    let (nonce, mut tag) = (nonce(key, parts.lead), [0; 16]);
    let (target, source) = match plain {
        Some(plain) => (plain, Some(&*parts.text)),
        None => (parts.text, None),
    };
    let span = Span::into(target, source);
    let call = ffi::AeadJob {
        keys: key.secret.data.as_ptr(),
        src: span.src,
        dst: span.dst,
        len: span.len as u64,
        nonce: nonce.as_ptr(),
        aad: aad.bytes().as_ptr(),
        aad_len: aad.bytes().len() as u64,
        tag: tag.as_mut_ptr(),
    };
    // SAFETY: the span is valid, as its slices are borrowed; the ICV is at most the tag's 16 bytes.
    unsafe {
        ffi::uxfrm_imb_gcm_open(
            worker.exclusive(),
            key.bits,
            &raw const call,
            parts.icv.len() as u64,
        )
    };
    let authentic: bool = tag[..parts.icv.len()].ct_eq(parts.icv).into();
    if !authentic {
        target.zeroize();
    }
    authentic
}

/// The tag over SPI | [high half |] sequence number | IV | text.
fn gmac(worker: &mut Worker, key: &DirectKey, aad: &Aad, parts: &Parts<'_>) -> [u8; 16] {
    let (nonce, mut tag) = (nonce(key, parts.lead), [0; 16]);
    let rest = &parts.lead[HEADER_LEN..];
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
fn nonce(key: &DirectKey, lead: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&key.secret.salt);
    nonce[4..].copy_from_slice(&array::<8>(&lead[HEADER_LEN..]));
    nonce
}
