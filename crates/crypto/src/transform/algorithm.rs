//! Algorithms: names, and lengths of keys, IVs and ICVs.

use super::whole_bytes;
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

/// Properties of an AEAD that do not depend on the key size.
struct AeadSpec {
    name: &'static str,
    icv_bits: &'static [u32],
    /// Valid key lengths with the salt, as error text.
    key_bits: &'static str,
    with_size: fn(AesSize) -> Aead,
}

const GCM: AeadSpec = AeadSpec {
    name: "rfc4106(gcm(aes))",
    icv_bits: &[64, 96, 128],
    key_bits: "160, 224 or 288",
    with_size: Aead::Gcm,
};
const CCM: AeadSpec = AeadSpec {
    name: "rfc4309(ccm(aes))",
    icv_bits: &[64, 96, 128],
    key_bits: "152, 216 or 280",
    with_size: Aead::Ccm,
};
const GMAC: AeadSpec =
    AeadSpec { name: "rfc4543(gcm(aes))", icv_bits: &[128], with_size: Aead::Gmac, ..GCM };
const CHACHA20_POLY1305: AeadSpec = AeadSpec {
    name: "rfc7539esp(chacha20,poly1305)",
    icv_bits: &[128],
    key_bits: "288",
    with_size: |_| Aead::ChaCha20Poly1305,
};
/// All AEADs, by the kernel's names.
const AEADS: [AeadSpec; 4] = [GCM, CCM, GMAC, CHACHA20_POLY1305];

impl Aead {
    /// The kernel looks up name and ICV length together.
    pub(super) fn by_name(name: &str, key_bits: usize, icv_bits: u32) -> Result<Self, Error> {
        let spec = AEADS.iter().find(|spec| spec.name == name && spec.icv_bits.contains(&icv_bits));
        let not_found = || Error::AeadNotFound { name: name.to_owned(), icv_bits };
        let AeadSpec { with_size, .. } = spec.ok_or_else(not_found)?;
        with_size(AesSize::Aes256).key_size(key_bits).map(with_size)
    }

    fn spec(self) -> &'static AeadSpec {
        match self {
            Self::Gcm(_) => &GCM,
            Self::Ccm(_) => &CCM,
            Self::Gmac(_) => &GMAC,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.spec().name
    }

    /// Bytes of salt at the key's end, the implicit part of the nonce.
    pub(super) fn salt_len(self) -> usize {
        match self {
            Self::Gcm(_) | Self::Gmac(_) | Self::ChaCha20Poly1305 => 4,
            Self::Ccm(_) => 3,
        }
    }

    pub(super) fn key_len(self) -> usize {
        let key = match self {
            Self::Gcm(size) | Self::Ccm(size) | Self::Gmac(size) => size.bytes(),
            Self::ChaCha20Poly1305 => 32,
        };
        key + self.salt_len()
    }

    fn key_size(self, key_bits: usize) -> Result<AesSize, Error> {
        let takes = self.spec().key_bits;
        let wrong = || Error::KeyLength { algorithm: self.name(), bits: key_bits, takes };
        let size = key_bits
            .checked_sub(self.salt_len() * 8)
            .and_then(AesSize::from_bits)
            .ok_or_else(wrong)?;
        match (self, size) {
            (Self::ChaCha20Poly1305, AesSize::Aes128 | AesSize::Aes192) => Err(wrong()),
            (Self::ChaCha20Poly1305, AesSize::Aes256)
            | (Self::Gcm(_) | Self::Ccm(_) | Self::Gmac(_), _) => Ok(size),
        }
    }
}

impl Cipher {
    pub(super) fn by_name(name: &str, key_bits: usize) -> Result<Self, Error> {
        let wrong = |algorithm, takes| Error::KeyLength { algorithm, bits: key_bits, takes };
        match name {
            "cbc(aes)" | "aes" => AesSize::from_bits(key_bits)
                .map(Self::Cbc)
                .ok_or_else(|| wrong("cbc(aes)", "128, 192 or 256")),
            "rfc3686(ctr(aes))" => key_bits
                .checked_sub(32)
                .and_then(AesSize::from_bits)
                .map(Self::Ctr)
                .ok_or_else(|| wrong("rfc3686(ctr(aes))", "160, 224 or 288")),
            "ecb(cipher_null)" | "cipher_null" if key_bits == 0 => Ok(Self::Null),
            "ecb(cipher_null)" | "cipher_null" => Err(wrong("ecb(cipher_null)", "0")),
            _ => Err(Error::CipherNotFound { name: name.to_owned() }),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Null => "ecb(cipher_null)",
            Self::Cbc(_) => "cbc(aes)",
            Self::Ctr(_) => "rfc3686(ctr(aes))",
        }
    }

    pub(super) fn iv_len(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Cbc(_) => 16,
            Self::Ctr(_) => 8,
        }
    }
}

impl Auth {
    pub(super) fn by_name(name: &str, key_bits: usize, trunc: Option<u32>) -> Result<Self, Error> {
        let wrong = |algorithm, takes| Error::KeyLength { algorithm, bits: key_bits, takes };
        let hmac = |digest| Self::Hmac(digest, key_bits.div_ceil(8));
        match name {
            "hmac(md5)" | "md5" => Ok(hmac(Digest::Md5)),
            "hmac(sha1)" | "sha1" => Ok(hmac(Digest::Sha1)),
            "hmac(sha256)" | "sha256" => Ok(hmac(Digest::Sha256)),
            "hmac(sha384)" | "sha384" => Ok(hmac(Digest::Sha384)),
            "hmac(sha512)" | "sha512" => Ok(hmac(Digest::Sha512)),
            "xcbc(aes)" if key_bits == 128 => Ok(Self::Xcbc),
            "xcbc(aes)" => Err(wrong("xcbc(aes)", "128")),
            "cmac(aes)" => AesSize::from_bits(key_bits)
                .map(Self::Cmac)
                .ok_or_else(|| wrong("cmac(aes)", "128, 192 or 256")),
            "digest_null" => Ok(Self::Null),
            _ if trunc.is_some() => Err(Error::AuthTruncNotFound { name: name.to_owned() }),
            _ => Err(Error::AuthNotFound { name: name.to_owned() }),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Null => "digest_null",
            Self::Hmac(Digest::Md5, _) => "hmac(md5)",
            Self::Hmac(Digest::Sha1, _) => "hmac(sha1)",
            Self::Hmac(Digest::Sha256, _) => "hmac(sha256)",
            Self::Hmac(Digest::Sha384, _) => "hmac(sha384)",
            Self::Hmac(Digest::Sha512, _) => "hmac(sha512)",
            Self::Xcbc => "xcbc(aes)",
            Self::Cmac(_) => "cmac(aes)",
        }
    }

    /// `(default, longest)` in bits: `icv_truncbits` and `icv_fullbits` of `xfrm_algo.c`.
    fn icv_bits(self) -> (u32, u32) {
        match self {
            Self::Null => (0, 0),
            Self::Hmac(Digest::Md5, _) | Self::Xcbc | Self::Cmac(_) => (96, 128),
            Self::Hmac(Digest::Sha1, _) => (96, 160),
            Self::Hmac(Digest::Sha256, _) => (96, 256),
            Self::Hmac(Digest::Sha384, _) => (192, 384),
            Self::Hmac(Digest::Sha512, _) => (256, 512),
        }
    }

    pub(super) fn icv_len(self, trunc: Option<u32>) -> Result<u8, Error> {
        let (default, longest) = self.icv_bits();
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
            128 => Some(Self::Aes128),
            192 => Some(Self::Aes192),
            256 => Some(Self::Aes256),
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
