//! Algorithms: names, lengths of keys, IVs and ICVs, and what the libraries have of them.

use aws_lc_sys as aws;

use self::AesSize::{Aes128, Aes192, Aes256};
use super::{Kind, Transform, whole_bytes};
use crate::error::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Aead {
    /// RFC 4106.
    Gcm(AesSize),
    /// RFC 4309.
    Ccm(AesSize),
    /// RFC 4543: authenticates only.
    Gmac(AesSize),
    /// RFC 7634.
    ChaCha20Poly1305,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Cipher {
    /// RFC 2410.
    Null,
    /// RFC 3602.
    Cbc(AesSize),
    /// RFC 3686.
    Ctr(AesSize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Auth {
    Null,
    /// RFC 2404, RFC 4868; with the key's length in bytes, as HMAC takes any.
    Hmac(Digest, usize),
    /// RFC 3566.
    Xcbc,
    /// RFC 4494.
    Cmac(AesSize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Digest {
    Md5,
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AesSize {
    Aes128,
    Aes192,
    Aes256,
}

/// Shorter ICVs are easy to guess; this also makes room for the ESN's high half.
const MIN_ICV_BITS: u32 = 32;

/// How ipsec-mb runs an AEAD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MbAead {
    /// Packet by packet: AES-GCM and GMAC.
    Direct,
    /// In bursts, by the number of `shim/ipsec_mb.c`.
    Burst(u32),
}

type EvpAead = unsafe extern "C" fn() -> *const aws::EVP_AEAD;

/// Properties of an AEAD that do not depend on the key size; the last two are by key size.
pub(super) struct AeadSpec {
    names: &'static [&'static str],
    icv_bits: &'static [u32],
    /// Valid key lengths with the salt, as error text.
    key_bits: &'static str,
    /// Bytes of salt at the key's end, the implicit part of the nonce.
    pub(super) salt_len: usize,
    with_size: fn(AesSize) -> Aead,
    /// `None` for an AEAD that aws-lc has only in another form.
    evp: Option<[EvpAead; 3]>,
    ipsec_mb: [Option<MbAead>; 3],
}

const GCM: AeadSpec = AeadSpec {
    names: &["rfc4106(gcm(aes))"],
    icv_bits: &[64, 96, 128],
    key_bits: "160, 224 or 288",
    salt_len: 4,
    with_size: Aead::Gcm,
    evp: Some([aws::EVP_aead_aes_128_gcm, aws::EVP_aead_aes_192_gcm, aws::EVP_aead_aes_256_gcm]),
    ipsec_mb: [Some(MbAead::Direct); 3],
};
const CCM: AeadSpec = AeadSpec {
    names: &["rfc4309(ccm(aes))"],
    key_bits: "152, 216 or 280",
    salt_len: 3,
    with_size: Aead::Ccm,
    evp: None,
    ipsec_mb: [Some(MbAead::Burst(1)), None, Some(MbAead::Burst(1))],
    ..GCM
};
const GMAC: AeadSpec =
    AeadSpec { names: &["rfc4543(gcm(aes))"], icv_bits: &[128], with_size: Aead::Gmac, ..GCM };
const CHACHA20_POLY1305: AeadSpec = AeadSpec {
    names: &["rfc7539esp(chacha20,poly1305)"],
    icv_bits: &[128],
    key_bits: "288",
    salt_len: 4,
    with_size: |_| Aead::ChaCha20Poly1305,
    evp: Some([aws::EVP_aead_chacha20_poly1305; 3]),
    ipsec_mb: [Some(MbAead::Burst(0)); 3],
};

// One of each, in the order in which errors and completion list them.
const AEADS: [Aead; 4] =
    [Aead::Gcm(Aes128), Aead::Ccm(Aes128), Aead::Gmac(Aes128), Aead::ChaCha20Poly1305];
const CIPHERS: [Cipher; 3] = [Cipher::Cbc(Aes128), Cipher::Ctr(Aes128), Cipher::Null];
#[rustfmt::skip]
const AUTHS: [Auth; 8] = [
    Auth::Hmac(Digest::Sha1, 20), Auth::Hmac(Digest::Sha256, 32), Auth::Hmac(Digest::Sha384, 48),
    Auth::Hmac(Digest::Sha512, 64), Auth::Hmac(Digest::Md5, 16), Auth::Xcbc, Auth::Cmac(Aes128), Auth::Null,
];

macro_rules! names {
    ($algorithms:ident) => {{
        let mut names = [""; $algorithms.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = $algorithms[at].names()[0];
            at += 1;
        }
        names
    }};
}
/// The kernel's names of AEADs, without aliases.
pub const AEAD_NAMES: &[&str] = &names!(AEADS);
/// The kernel's names of ciphers, without aliases.
pub const CIPHER_NAMES: &[&str] = &names!(CIPHERS);
/// The kernel's names of authentication algorithms, without aliases.
pub const AUTH_NAMES: &[&str] = &names!(AUTHS);

impl Transform {
    /// Transforms in common use by the short names of `uxfrm bench`, for measurements and tests.
    #[rustfmt::skip]
    pub const COMMON: &[(&str, Self)] = &[
        ("gcm128", Self { kind: Kind::Aead(Aead::Gcm(Aes128)), icv_len: 16 }),
        ("gcm256", Self { kind: Kind::Aead(Aead::Gcm(Aes256)), icv_len: 16 }),
        ("gmac128", Self { kind: Kind::Aead(Aead::Gmac(Aes128)), icv_len: 16 }),
        ("chacha20poly1305", Self { kind: Kind::Aead(Aead::ChaCha20Poly1305), icv_len: 16 }),
        ("ccm128", Self { kind: Kind::Aead(Aead::Ccm(Aes128)), icv_len: 16 }),
        ("cbc128-sha1", Self { kind: Kind::Pair(Cipher::Cbc(Aes128), Auth::Hmac(Digest::Sha1, 20)), icv_len: 12 }),
        ("cbc128-sha256", Self { kind: Kind::Pair(Cipher::Cbc(Aes128), Auth::Hmac(Digest::Sha256, 32)), icv_len: 16 }),
        ("cbc128-sha512", Self { kind: Kind::Pair(Cipher::Cbc(Aes128), Auth::Hmac(Digest::Sha512, 64)), icv_len: 32 }),
        ("cbc128-xcbc", Self { kind: Kind::Pair(Cipher::Cbc(Aes128), Auth::Xcbc), icv_len: 12 }),
        ("cbc128-cmac", Self { kind: Kind::Pair(Cipher::Cbc(Aes128), Auth::Cmac(Aes128)), icv_len: 12 }),
        ("ctr128-sha1", Self { kind: Kind::Pair(Cipher::Ctr(Aes128), Auth::Hmac(Digest::Sha1, 20)), icv_len: 12 }),
        ("null", Self { kind: Kind::Pair(Cipher::Null, Auth::Null), icv_len: 0 }),
    ];
}

impl Aead {
    /// The kernel looks up name and ICV length together.
    pub(super) fn by_name(name: &str, key_bits: usize, icv_bits: u32) -> Result<Self, Error> {
        let is_it =
            |spec: &&AeadSpec| spec.names.contains(&name) && spec.icv_bits.contains(&icv_bits);
        let spec = AEADS.into_iter().map(Self::spec).find(is_it);
        let spec = spec.ok_or_else(|| Error::AeadNotFound { name: name.to_owned(), icv_bits })?;
        let (algorithm, takes) = (spec.names[0], spec.key_bits);
        let mut sizes = [Aes128, Aes192, Aes256].map(spec.with_size).into_iter();
        let aead = sizes.find(|aead| aead.key_len() * 8 == key_bits);
        aead.ok_or(Error::KeyLength { algorithm, bits: key_bits, takes })
    }

    pub(super) const fn spec(self) -> &'static AeadSpec {
        match self {
            Self::Gcm(_) => &GCM,
            Self::Ccm(_) => &CCM,
            Self::Gmac(_) => &GMAC,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    /// `None` for a cipher other than AES; then the key has 32 bytes.
    pub(crate) fn aes_size(self) -> Option<AesSize> {
        match self {
            Self::Gcm(size) | Self::Ccm(size) | Self::Gmac(size) => Some(size),
            Self::ChaCha20Poly1305 => None,
        }
    }

    fn of_size<T: Copy>(self, by_size: [T; 3]) -> T {
        by_size[self.aes_size().unwrap_or(Aes256) as usize]
    }

    pub(crate) fn evp(self) -> Option<EvpAead> {
        self.spec().evp.map(|by_size| self.of_size(by_size))
    }

    pub(crate) fn ipsec_mb(self) -> Option<MbAead> {
        self.of_size(self.spec().ipsec_mb)
    }

    pub(super) const fn names(self) -> &'static [&'static str] {
        self.spec().names
    }

    pub(super) fn key_len(self) -> usize {
        self.aes_size().map_or(32, AesSize::bytes) + self.spec().salt_len
    }
}

impl Cipher {
    pub(super) fn by_name(name: &str, key_bits: usize) -> Result<Self, Error> {
        let cipher = CIPHERS.into_iter().find(|cipher| cipher.names().contains(&name));
        cipher.ok_or_else(|| Error::CipherNotFound { name: name.to_owned() })?.with_key(key_bits)
    }

    fn with_key(self, bits: usize) -> Result<Self, Error> {
        let (keyed, takes) = match self {
            Self::Null => ((bits == 0).then_some(self), "0"),
            Self::Cbc(_) => (AesSize::from_bits(bits).map(Self::Cbc), "128, 192 or 256"),
            Self::Ctr(_) => {
                let size = bits.checked_sub(32).and_then(AesSize::from_bits);
                (size.map(Self::Ctr), "160, 224 or 288")
            }
        };
        keyed.ok_or_else(|| Error::KeyLength { algorithm: self.names()[0], bits, takes })
    }

    /// The kernel's name, then its older alias.
    pub(super) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Null => &["ecb(cipher_null)", "cipher_null"],
            Self::Cbc(_) => &["cbc(aes)", "aes"],
            Self::Ctr(_) => &["rfc3686(ctr(aes))"],
        }
    }

    /// Bytes of the key, with the nonce.
    pub(super) fn key_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Cbc(size) => size.bytes(),
            Self::Ctr(size) => size.bytes() + 4,
        }
    }

    pub(super) fn iv_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Cbc(_) => 16,
            Self::Ctr(_) => 8,
        }
    }

    pub(super) fn block_len(self) -> usize {
        match self {
            Self::Cbc(_) => 16,
            Self::Null | Self::Ctr(_) => 1,
        }
    }
}

impl Auth {
    pub(super) fn by_name(name: &str, key_bits: usize, trunc: Option<u32>) -> Result<Self, Error> {
        let not_found = || match trunc {
            Some(_) => Error::AuthTruncNotFound { name: name.to_owned() },
            None => Error::AuthNotFound { name: name.to_owned() },
        };
        let auth = AUTHS.into_iter().find(|auth| auth.names().contains(&name));
        auth.ok_or_else(not_found)?.with_key(key_bits)
    }

    fn with_key(self, bits: usize) -> Result<Self, Error> {
        let (keyed, takes) = match self {
            Self::Null => (Some(self), ""),
            Self::Hmac(digest, _) => (Some(Self::Hmac(digest, bits.div_ceil(8))), ""),
            Self::Xcbc => ((bits == 128).then_some(self), "128"),
            Self::Cmac(_) => (AesSize::from_bits(bits).map(Self::Cmac), "128, 192 or 256"),
        };
        keyed.ok_or_else(|| Error::KeyLength { algorithm: self.names()[0], bits, takes })
    }

    /// Names: the kernel's, then its older alias. `(default, longest)` ICV in bits:
    /// `icv_truncbits` and `icv_fullbits` of `xfrm_algo.c`.
    const fn spec(self) -> (&'static [&'static str], (u32, u32)) {
        match self {
            Self::Null => (&["digest_null"], (0, 0)),
            Self::Hmac(Digest::Md5, _) => (&["hmac(md5)", "md5"], (96, 128)),
            Self::Hmac(Digest::Sha1, _) => (&["hmac(sha1)", "sha1"], (96, 160)),
            Self::Hmac(Digest::Sha256, _) => (&["hmac(sha256)", "sha256"], (96, 256)),
            Self::Hmac(Digest::Sha384, _) => (&["hmac(sha384)", "sha384"], (192, 384)),
            Self::Hmac(Digest::Sha512, _) => (&["hmac(sha512)", "sha512"], (256, 512)),
            Self::Xcbc => (&["xcbc(aes)"], (96, 128)),
            Self::Cmac(_) => (&["cmac(aes)"], (96, 128)),
        }
    }

    pub(super) const fn names(self) -> &'static [&'static str] {
        self.spec().0
    }

    pub(super) fn key_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Hmac(_, len) => len,
            Self::Xcbc => 16,
            Self::Cmac(size) => size.bytes(),
        }
    }

    pub(super) fn icv_len(self, trunc: Option<u32>) -> Result<u8, Error> {
        let (_, (default, longest)) = self.spec();
        match trunc {
            None => Ok(whole_bytes(default)),
            Some(bits) if (MIN_ICV_BITS..=longest).contains(&bits) && bits.is_multiple_of(8) => {
                Ok(whole_bytes(bits))
            }
            Some(bits) => Err(Error::TruncatedIcv { bits, longest }),
        }
    }
}

impl Digest {
    /// Bytes of a block: an HMAC key longer than this is hashed first (RFC 2104 §2).
    pub(crate) fn block_len(self) -> usize {
        match self {
            Self::Md5 | Self::Sha1 | Self::Sha256 => 64,
            Self::Sha384 | Self::Sha512 => 128,
        }
    }
}

impl AesSize {
    pub(super) fn from_bits(bits: usize) -> Option<Self> {
        match bits {
            128 => Some(Aes128),
            192 => Some(Aes192),
            256 => Some(Aes256),
            _ => None,
        }
    }

    /// Bytes of the key.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Aes128 => 16,
            Self::Aes192 => 24,
            Self::Aes256 => 32,
        }
    }

    /// Bits of the key.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Aes128 => 128,
            Self::Aes192 => 192,
            Self::Aes256 => 256,
        }
    }
}
