//! AES-GCM and ChaCha20-Poly1305 by `EVP_AEAD`: a read-only key context, the tag apart from the
//! text.

use core::ptr;

use aws_lc_sys as aws;

use super::array;
use crate::error::Error;
use crate::job::{EspParts, TextSpan};
use crate::secret::{Flat, Secret};
use crate::transform::{Aead, HEADER_LEN};

/// Initialised in place: the context depends on its own alignment, so it never moves.
#[derive(Debug)]
pub(crate) struct AeadKey(Secret<State>);

#[repr(C)]
struct State {
    context: aws::EVP_AEAD_CTX,
    salt: [u8; 4],
}

// SAFETY: zeroes are the documented empty context; GCM and ChaCha20-Poly1305 keep their keys inside
// it and own nothing else; sealing and opening take it by const pointer and may run on many threads
// (`openssl/aead.h`).
unsafe impl Flat for State {}

impl AeadKey {
    /// `key` ends with the 4 bytes of salt.
    pub(super) fn new(aead: Aead, key: &[u8], icv_len: usize) -> Result<Self, Error> {
        let evp = aead.evp().ok_or(Error::Library("AEAD"))?;
        let mut state = Secret::<State>::zeroed();
        let (key, salt) = key.split_at(key.len() - 4);
        state.salt = array(salt);
        // SAFETY: `evp` returns a pointer to a static table; the context is zeroed, the key is as
        // long as said, the engine may be null.
        let done = unsafe {
            aws::EVP_AEAD_CTX_init(
                &raw mut state.context,
                evp(),
                key.as_ptr(),
                key.len(),
                icv_len,
                ptr::null_mut(),
            )
        };
        if done == 1 { Ok(Self(state)) } else { Err(Error::Library("AEAD")) }
    }

    /// Encrypts `plain`, or the text in place, and writes the tag; false if the library refuses (a
    /// text too long).
    pub(super) fn seal(&self, aad: &[u8], parts: EspParts<'_>, plain: Option<&[u8]>) -> bool {
        let nonce = self.nonce(parts.header_iv);
        self.seal_raw(&nonce, aad, TextSpan::into(parts.text, plain), parts.icv)
    }

    /// The tag over `aad` alone.
    pub(super) fn sign(&self, iv: &[u8], aad: &[u8], icv: &mut [u8]) -> bool {
        let nonce = self.nonce_of(iv);
        self.seal_raw(&nonce, aad, TextSpan::EMPTY, icv)
    }

    /// Decrypts into `plain`, or in place. A wrong tag leaves zeroes.
    pub(super) fn open(&self, aad: &[u8], parts: EspParts<'_>, plain: Option<&mut [u8]>) -> bool {
        let nonce = self.nonce(parts.header_iv);
        self.open_raw(&nonce, aad, TextSpan::out_of(parts.text, plain), parts.icv)
    }

    /// Whether the tag over `aad` alone is right.
    pub(super) fn verify(&self, iv: &[u8], aad: &[u8], icv: &[u8]) -> bool {
        let nonce = self.nonce_of(iv);
        self.open_raw(&nonce, aad, TextSpan::EMPTY, icv)
    }

    fn seal_raw(&self, nonce: &[u8; 12], aad: &[u8], text: TextSpan, icv: &mut [u8]) -> bool {
        let mut tag_len = 0;
        // SAFETY: the span is valid, as its slices are borrowed by the caller; the tag goes to a
        // slice of the length the context was made for.
        let done = unsafe {
            aws::EVP_AEAD_CTX_seal_scatter(
                &raw const self.0.context,
                text.dst,
                icv.as_mut_ptr(),
                &raw mut tag_len,
                icv.len(),
                nonce.as_ptr(),
                nonce.len(),
                text.src,
                text.len,
                ptr::null(),
                0,
                aad.as_ptr(),
                aad.len(),
            )
        };
        done == 1
    }

    fn open_raw(&self, nonce: &[u8; 12], aad: &[u8], text: TextSpan, icv: &[u8]) -> bool {
        // SAFETY: as in `seal_raw`.
        let done = unsafe {
            aws::EVP_AEAD_CTX_open_gather(
                &raw const self.0.context,
                text.dst,
                nonce.as_ptr(),
                nonce.len(),
                text.src,
                text.len,
                icv.as_ptr(),
                icv.len(),
                aad.as_ptr(),
                aad.len(),
            )
        };
        done == 1
    }

    fn nonce(&self, header_iv: &[u8]) -> [u8; 12] {
        self.nonce_of(&header_iv[HEADER_LEN..])
    }

    /// Salt, then the packet's IV (RFC 4106 §4, RFC 7634 §2).
    fn nonce_of(&self, iv: &[u8]) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.0.salt);
        nonce[4..].copy_from_slice(iv);
        nonce
    }
}
