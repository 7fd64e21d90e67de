//! Expanded keys for ipsec-mb, each in a wiped, aligned box.

use uxfrm_packet::{prefetch_far, prefetch_far_whole};

use super::ffi;
use crate::material::KeyMaterial;
use crate::portable::{array, shortened_hmac_key};
use crate::secret::{Flat, Secret};
use crate::transform::{AesSize, Auth, Cipher, Digest, Kind, MbAead, Transform};

/// AES-GCM or GMAC, for the direct call.
#[derive(Debug)]
pub(crate) struct DirectKey {
    pub(super) secret: Secret<GcmKey>,
    pub(super) bits: u32,
    authenticates_only: bool,
}

/// `struct gcm_key_data`, which needs 64-byte alignment (its header omits that), and the salt, in
/// the cache line of the hash key's first powers.
#[repr(C, align(64))]
pub(super) struct GcmKey {
    pub(super) data: [u8; 1008],
    pub(super) salt: [u8; 4],
}

/// Algorithms that packets must share for one burst. The ICV length counts only for AEADs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BurstKind {
    /// The shim's number; the key size unless the key has no round keys; the ICV length, which CCM
    /// authenticates.
    Aead(u32, Option<AesSize>, u8),
    Pair(Cipher, Mac),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mac {
    Null,
    Hmac(Digest),
    Xcbc,
    Cmac(AesSize),
}

/// A key for bursts.
#[derive(Debug)]
pub(crate) struct BurstKey {
    pub(super) kind: BurstKind,
    pub(super) cipher: Secret<CipherKeys>,
    pub(super) mac: Secret<MacKeys>,
}

/// Both AES schedules, or the key itself in the first; salt or nonce.
#[repr(C, align(64))]
pub(super) struct CipherKeys {
    pub(super) encrypt: [u8; 240],
    pub(super) decrypt: [u8; 240],
    pub(super) salt: [u8; 4],
}

/// HMAC's inner and outer state, or a CBC-MAC's chain key and two masks.
#[repr(C, align(64))]
pub(super) struct MacKeys {
    pub(super) parts: [MacPart; 3],
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(super) struct MacPart(pub(super) [u8; 256]);

// SAFETY: plain bytes.
unsafe impl Flat for GcmKey {}
// SAFETY: plain bytes.
unsafe impl Flat for CipherKeys {}
// SAFETY: plain bytes.
unsafe impl Flat for MacKeys {}

impl DirectKey {
    /// `None` for transforms without direct calls, or without the library.
    pub(crate) fn new(transform: &Transform, enc: &KeyMaterial) -> Option<Self> {
        let Kind::Aead(aead) = transform.kind else { return None };
        let (MbAead::Direct, size) = (aead.ipsec_mb()?, aead.aes_size()?) else { return None };
        let worker = super::expander()?;
        let mut secret = Secret::<GcmKey>::zeroed();
        let (key, salt) = enc.expose().split_at(size.bytes());
        secret.salt = array(salt);
        // SAFETY: the key is `size` long; the shim asserts that the expanded key fits 1008 bytes;
        // aligned to 64.
        unsafe {
            ffi::uxfrm_imb_gcm_key(
                worker.shared(),
                key.as_ptr(),
                size.bits(),
                secret.data.as_mut_ptr().cast(),
            );
        }
        Some(Self { secret, bits: size.bits(), authenticates_only: !transform.encrypts() })
    }

    /// Prefetches the round keys of the shortest keys, the hash key's first seven powers and the
    /// salt; the powers in between follow in order for packets longer than a hundred bytes.
    pub(crate) fn prefetch(&self) {
        let lines = self.secret.data.as_chunks::<64>().0;
        lines[..3].iter().chain(lines.last()).for_each(prefetch_far);
        prefetch_far(&self.secret.salt);
    }

    /// Whether it is GMAC, which [`DirectCalls`](super::DirectCalls) does not cover.
    #[inline]
    pub(crate) fn authenticates_only(&self) -> bool {
        self.authenticates_only
    }
}

impl BurstKey {
    pub(crate) fn prefetch(&self) {
        prefetch_far_whole(&*self.cipher);
        prefetch_far_whole(&*self.mac);
    }

    /// `None` for transforms that the library lacks (AES-CCM and CMAC with 192 bits, HMAC-MD5, XCBC
    /// with an ICV beyond 96 bits), or without the library.
    pub(crate) fn new(
        transform: &Transform,
        enc: &KeyMaterial,
        auth: &KeyMaterial,
    ) -> Option<Self> {
        let kind = BurstKind::of(transform)?;
        super::expander()?;
        let (cipher, mac) = match kind {
            BurstKind::Aead(_, Some(size), _) => {
                (CipherKeys::aes(enc.expose(), size)?, Secret::zeroed())
            }
            BurstKind::Aead(_, None, _) => (CipherKeys::raw(enc.expose()), Secret::zeroed()),
            BurstKind::Pair(cipher, mac) => {
                (CipherKeys::of(cipher, enc.expose())?, MacKeys::of(mac, auth.expose())?)
            }
        };
        Some(Self { kind, cipher, mac })
    }

    pub(crate) fn kind(&self) -> BurstKind {
        self.kind
    }
}

impl BurstKind {
    fn of(transform: &Transform) -> Option<Self> {
        match transform.kind {
            Kind::Aead(aead) => match aead.ipsec_mb()? {
                MbAead::Burst(number) => {
                    Some(Self::Aead(number, aead.aes_size(), transform.icv_len))
                }
                MbAead::Direct => None,
            },
            Kind::Pair(Cipher::Null, Auth::Null) => None, // nothing to do in a burst
            Kind::Pair(cipher, auth) => {
                Mac::of(auth, transform.icv_len()).map(|mac| Self::Pair(cipher, mac))
            }
        }
    }
}

impl Mac {
    fn of(auth: Auth, icv_len: usize) -> Option<Self> {
        match auth {
            Auth::Null => Some(Self::Null),
            Auth::Hmac(Digest::Md5, _) | Auth::Cmac(AesSize::Aes192) => None,
            Auth::Hmac(
                digest @ (Digest::Sha1 | Digest::Sha256 | Digest::Sha384 | Digest::Sha512),
                _,
            ) => Some(Self::Hmac(digest)),
            Auth::Xcbc => (icv_len <= 12).then_some(Self::Xcbc), // all that the library writes of it
            Auth::Cmac(size @ (AesSize::Aes128 | AesSize::Aes256)) => Some(Self::Cmac(size)),
        }
    }

    /// The shim's number; `None` for the null algorithm.
    pub(super) fn number(self) -> Option<u32> {
        match self {
            Self::Null | Self::Hmac(Digest::Md5) | Self::Cmac(AesSize::Aes192) => None,
            Self::Hmac(Digest::Sha1) => Some(ffi::MAC_SHA1),
            Self::Hmac(Digest::Sha256) => Some(ffi::MAC_SHA256),
            Self::Hmac(Digest::Sha384) => Some(ffi::MAC_SHA384),
            Self::Hmac(Digest::Sha512) => Some(ffi::MAC_SHA512),
            Self::Xcbc => Some(ffi::MAC_XCBC),
            Self::Cmac(AesSize::Aes128) => Some(ffi::MAC_CMAC128),
            Self::Cmac(AesSize::Aes256) => Some(ffi::MAC_CMAC256),
        }
    }
}

impl CipherKeys {
    fn of(cipher: Cipher, key: &[u8]) -> Option<Secret<Self>> {
        match cipher {
            Cipher::Null => Some(Secret::zeroed()),
            Cipher::Cbc(size) | Cipher::Ctr(size) => Self::aes(key, size),
        }
    }

    /// Salt or nonce behind the key is ignored.
    fn aes(key: &[u8], size: AesSize) -> Option<Secret<Self>> {
        let worker = super::expander()?;
        let mut keys = Secret::<Self>::zeroed();
        let (key, salt) = key.split_at(size.bytes());
        keys.salt[..salt.len()].copy_from_slice(salt);
        let (enc, dec) = (keys.encrypt.as_mut_ptr(), keys.decrypt.as_mut_ptr());
        // SAFETY: the key is `size` long; a schedule has at most 15 round keys of 16 bytes, aligned
        // to 16.
        unsafe {
            ffi::uxfrm_imb_aes_keys(
                worker.shared(),
                key.as_ptr(),
                size.bits(),
                enc.cast(),
                dec.cast(),
            )
        };
        Some(keys)
    }

    fn raw(key: &[u8]) -> Secret<Self> {
        let mut keys = Secret::<Self>::zeroed();
        let (key, salt) = key.split_at(32);
        keys.encrypt[..32].copy_from_slice(key);
        keys.salt = array(salt);
        keys
    }
}

impl MacKeys {
    fn of(mac: Mac, key: &[u8]) -> Option<Secret<Self>> {
        let worker = super::expander()?.shared();
        let mut keys = Secret::<Self>::zeroed();
        let [first, second, third] = keys.parts.each_mut().map(|part| part.0.as_mut_ptr());
        match mac {
            Mac::Null => {}
            Mac::Hmac(digest) => {
                let key = shortened_hmac_key(digest, key);
                // SAFETY: the key is padded to 128 bytes; a hash state has at most 64.
                unsafe {
                    ffi::uxfrm_imb_hmac_keys(worker, mac.number()?, key.as_ptr(), first, second)
                };
            }
            // SAFETY: the key has 16 bytes; schedule and masks fit 256 each, aligned to 64.
            Mac::Xcbc => unsafe {
                ffi::uxfrm_imb_xcbc_keys(
                    worker,
                    key.as_ptr(),
                    first.cast(),
                    second.cast(),
                    third.cast(),
                );
            },
            // SAFETY: the key is `size` long; schedule and masks fit 256 each, aligned to 64.
            Mac::Cmac(size) => unsafe {
                let (chain, whole, padded) = (first.cast(), second.cast(), third.cast());
                ffi::uxfrm_imb_cmac_keys(worker, key.as_ptr(), size.bits(), chain, whole, padded);
            },
        }
        Some(keys)
    }
}
