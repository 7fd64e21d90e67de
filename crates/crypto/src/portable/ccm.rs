//! AES-CCM (RFC 4309) by `EVP_CIPHER`, whose contexts are modified in use and cannot be copied
//! without allocating: so the worker owns one per key size, and expands the SA's key into it for
//! each packet (some 100 cycles of several thousand). CCM is for interoperability, not for speed.

use core::ptr;

use aws_lc_sys as aws;

use super::array;
use crate::error::Error;
use crate::job::{EspParts, TextSpan};
use crate::secret::{Flat, Secret};
use crate::transform::{AesSize, HEADER_LEN};

const NONCE_LEN: i32 = 11;

#[derive(Debug)]
pub(crate) struct CcmKey {
    secret: Secret<Bytes>,
    size: AesSize,
    icv_len: i32,
}

#[repr(C)]
struct Bytes {
    key: [u8; 32],
    salt: [u8; 3],
}

// SAFETY: plain bytes.
unsafe impl Flat for Bytes {}

/// A worker's contexts, one per key size, freed (and so wiped) with it.
#[derive(Debug)]
pub(crate) struct Contexts([Context; 3]);

#[derive(Debug)]
struct Context(ptr::NonNull<aws::EVP_CIPHER_CTX>);

// SAFETY: a cipher context is heap memory bound to no thread; `&mut` guards its use.
unsafe impl Send for Context {}

impl CcmKey {
    /// `key` ends with the 3 bytes of salt.
    pub(super) fn new(size: AesSize, key: &[u8], icv_len: usize) -> Self {
        let mut secret = Secret::<Bytes>::zeroed();
        let (key, salt) = key.split_at(key.len() - 3);
        secret.key[..key.len()].copy_from_slice(key);
        secret.salt = array(salt);
        Self { secret, size, icv_len: i32::try_from(icv_len).unwrap_or(16) }
    }

    pub(super) fn seal(
        &self,
        contexts: &mut Contexts,
        aad: &[u8],
        parts: EspParts<'_>,
        plain: Option<&[u8]>,
    ) -> bool {
        let text = TextSpan::into(parts.text, plain);
        let context = contexts.of(self.size);
        context.start(&self.secret.key, &self.nonce(parts.header_iv), self.icv_len, None)
            && context.run(aad, text)
            && context.control(aws::EVP_CTRL_AEAD_GET_TAG, self.icv_len, parts.icv.as_mut_ptr())
    }

    /// A wrong tag leaves zeroes.
    pub(super) fn open(
        &self,
        contexts: &mut Contexts,
        aad: &[u8],
        parts: EspParts<'_>,
        plain: Option<&mut [u8]>,
    ) -> bool {
        let text = TextSpan::out_of(parts.text, plain);
        let context = contexts.of(self.size);
        context.start(&self.secret.key, &self.nonce(parts.header_iv), self.icv_len, Some(parts.icv))
            && context.run(aad, text)
    }

    /// Salt, then the packet's IV (RFC 4309 §4).
    fn nonce(&self, header_iv: &[u8]) -> [u8; 11] {
        let mut nonce = [0; 11];
        nonce[..3].copy_from_slice(&self.secret.salt);
        nonce[3..].copy_from_slice(&header_iv[HEADER_LEN..]);
        nonce
    }
}

impl Contexts {
    pub(super) fn new() -> Result<Self, Error> {
        // SAFETY: these return pointers to static tables.
        let ciphers =
            unsafe { (aws::EVP_aes_128_ccm(), aws::EVP_aes_192_ccm(), aws::EVP_aes_256_ccm()) };
        Ok(Self([Context::new(ciphers.0)?, Context::new(ciphers.1)?, Context::new(ciphers.2)?]))
    }

    fn of(&mut self, size: AesSize) -> &mut Context {
        let [small, middle, large] = &mut self.0;
        match size {
            AesSize::Aes128 => small,
            AesSize::Aes192 => middle,
            AesSize::Aes256 => large,
        }
    }
}

impl Context {
    fn new(cipher: *const aws::EVP_CIPHER) -> Result<Self, Error> {
        // SAFETY: allocates, or returns null.
        let context = unsafe { aws::EVP_CIPHER_CTX_new() };
        let mut context = Self(ptr::NonNull::new(context).ok_or(Error::Library("CCM"))?);
        // SAFETY: the context is fresh; no key and no IV yet, and no engine.
        let chosen = unsafe {
            aws::EVP_CipherInit_ex(
                context.0.as_ptr(),
                cipher,
                ptr::null_mut(),
                ptr::null(),
                ptr::null(),
                1,
            )
        };
        let sized = chosen == 1
            && context.control(aws::EVP_CTRL_AEAD_SET_IVLEN, NONCE_LEN, ptr::null_mut());
        if sized { Ok(context) } else { Err(Error::Library("CCM")) }
    }

    /// Loads key and nonce, which is as long as the context was told; with a `tag`, for decryption
    /// against it.
    fn start(
        &mut self,
        key: &[u8; 32],
        nonce: &[u8],
        icv_len: i32,
        tag: Option<&mut [u8]>,
    ) -> bool {
        // The direction comes first: the library takes a tag only when decrypting.
        let encrypt = i32::from(tag.is_none());
        // SAFETY: only the direction changes; the context is initialised.
        let turned = unsafe {
            let nothing = ptr::null();
            aws::EVP_CipherInit_ex(
                self.0.as_ptr(),
                nothing,
                ptr::null_mut(),
                ptr::null(),
                ptr::null(),
                encrypt,
            )
        };
        let tag = tag.map_or(ptr::null_mut(), <[u8]>::as_mut_ptr);
        if turned != 1 || !self.control(aws::EVP_CTRL_AEAD_SET_TAG, icv_len, tag) {
            return false;
        }
        // SAFETY: the key is as long as this context's cipher needs, the nonce as long as was set.
        let loaded = unsafe {
            aws::EVP_CipherInit_ex(
                self.0.as_ptr(),
                ptr::null(),
                ptr::null_mut(),
                key.as_ptr(),
                nonce.as_ptr(),
                encrypt,
            )
        };
        loaded == 1
    }

    /// Length, associated data, text: in this order, or the library refuses.
    #[expect(
        clippy::needless_pass_by_ref_mut,
        reason = "the library writes the context behind the pointer"
    )]
    fn run(&mut self, aad: &[u8], text: TextSpan) -> bool {
        let context = self.0.as_ptr();
        // SAFETY: null, null, length is how the library takes the text's length; the associated
        // data is a slice.
        let ready = unsafe {
            aws::EVP_Cipher(context, ptr::null_mut(), ptr::null(), text.len) >= 0
                && aws::EVP_Cipher(context, ptr::null_mut(), aad.as_ptr(), aad.len()) >= 0
        };
        // SAFETY: the span is valid, as its slices are borrowed by the caller.
        ready && unsafe { aws::EVP_Cipher(context, text.dst, text.src, text.len) } >= 0
    }

    fn control(&mut self, command: i32, argument: i32, place: *mut u8) -> bool {
        // SAFETY: each command here reads or writes at most `argument` bytes at `place`, which the
        // caller has.
        unsafe { aws::EVP_CIPHER_CTX_ctrl(self.0.as_ptr(), command, argument, place.cast()) == 1 }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: allocated by `EVP_CIPHER_CTX_new`, freed once; the library wipes it.
        unsafe { aws::EVP_CIPHER_CTX_free(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests;
