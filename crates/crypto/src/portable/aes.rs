//! AES-CBC and AES-CTR by aws-lc's block-mode calls: flat key schedules that are only read, unlike
//! `EVP_CIPHER` contexts, so that many workers may share one SA.

use aws_lc_sys as aws;

use super::array;
use crate::error::Error;
use crate::job::TextSpan;
use crate::secret::{Flat, Secret};

/// Both schedules.
#[derive(Debug)]
pub(crate) struct CbcKey(Secret<CbcSchedules>);

#[repr(C)]
struct CbcSchedules {
    encrypt: aws::AES_KEY,
    decrypt: aws::AES_KEY,
}

// SAFETY: arrays of integers.
unsafe impl Flat for CbcSchedules {}

#[derive(Debug)]
pub(crate) struct CtrKey(Secret<CtrSchedule>);

#[repr(C)]
struct CtrSchedule {
    encrypt: aws::AES_KEY,
    nonce: [u8; 4],
}

// SAFETY: arrays of integers.
unsafe impl Flat for CtrSchedule {}

impl CbcKey {
    pub(super) fn new(key: &[u8]) -> Result<Self, Error> {
        let mut schedules = Secret::<CbcSchedules>::zeroed();
        expand(key, &mut schedules.encrypt)?;
        // SAFETY: the key is as long as said; the schedule is ours to write.
        let done = unsafe {
            aws::AES_set_decrypt_key(key.as_ptr(), bits(key), &raw mut schedules.decrypt)
        };
        if done == 0 { Ok(Self(schedules)) } else { Err(Error::Library("AES")) }
    }

    /// Encrypts `plain` into `text`, or `text` in place; whole blocks.
    pub(super) fn encrypt(&self, iv: &[u8; 16], plain: Option<&[u8]>, text: &mut [u8]) {
        let span = TextSpan::into(text, plain);
        let mut chain = *iv;
        // SAFETY: the span is valid, as its slices are borrowed, and whole blocks.
        unsafe {
            let key = &raw const self.0.encrypt;
            aws::AES_cbc_encrypt(
                span.src,
                span.dst,
                span.len,
                key,
                chain.as_mut_ptr(),
                aws::AES_ENCRYPT,
            );
        }
    }

    /// Decrypts `text` into `plain`, or in place; whole blocks.
    pub(super) fn decrypt(&self, iv: &[u8; 16], text: &mut [u8], plain: Option<&mut [u8]>) {
        let span = TextSpan::out_of(text, plain);
        let mut chain = *iv;
        // SAFETY: as in `encrypt`.
        unsafe {
            let key = &raw const self.0.decrypt;
            aws::AES_cbc_encrypt(
                span.src,
                span.dst,
                span.len,
                key,
                chain.as_mut_ptr(),
                aws::AES_DECRYPT,
            );
        }
    }

    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        encrypt_block(&self.0.encrypt, block)
    }
}

impl CtrKey {
    /// `key` ends with the 4 bytes of nonce.
    pub(super) fn new(key: &[u8]) -> Result<Self, Error> {
        let mut schedule = Secret::<CtrSchedule>::zeroed();
        let (key, nonce) = key.split_at(key.len() - 4);
        schedule.nonce = array(nonce);
        expand(key, &mut schedule.encrypt)?;
        Ok(Self(schedule))
    }

    /// Encrypts or decrypts `source` into `text`, or `text` in place.
    pub(super) fn apply(&self, iv: &[u8; 8], source: Option<&[u8]>, text: &mut [u8]) {
        let mut counter = [0; 16];
        counter[..4].copy_from_slice(&self.0.nonce);
        counter[4..12].copy_from_slice(iv);
        counter[15] = 1; // RFC 3686 §4: blocks count from one
        let span = TextSpan::into(text, source);
        let (mut keystream, mut used) = ([0; 16], 0);
        // SAFETY: the span is valid, as its slices are borrowed; the rest is this call's own.
        unsafe {
            aws::AES_ctr128_encrypt(
                span.src,
                span.dst,
                span.len,
                &raw const self.0.encrypt,
                counter.as_mut_ptr(),
                keystream.as_mut_ptr(),
                &raw mut used,
            );
        }
    }
}

/// The encryption schedule of a key of 16, 24 or 32 bytes.
pub(super) fn expand(key: &[u8], schedule: &mut aws::AES_KEY) -> Result<(), Error> {
    // SAFETY: the key is as long as said; the schedule is ours to write.
    let done = unsafe { aws::AES_set_encrypt_key(key.as_ptr(), bits(key), schedule) };
    if done == 0 { Ok(()) } else { Err(Error::Library("AES")) }
}

pub(super) fn encrypt_block(key: &aws::AES_KEY, block: &[u8; 16]) -> [u8; 16] {
    let mut out = [0; 16];
    // SAFETY: one block in, one out, an expanded key.
    unsafe { aws::AES_encrypt(block.as_ptr(), out.as_mut_ptr(), key) };
    out
}

/// Keys are at most 32 bytes; anything else the library refuses.
fn bits(key: &[u8]) -> u32 {
    u32::try_from(key.len() * 8).unwrap_or(0)
}
