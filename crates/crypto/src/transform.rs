//! Parses the kernel's algorithm names into a [`Transform`], and owns every length that algorithms
//! give an ESP packet; mirrors the tables of `net/xfrm/xfrm_algo.c` (names, compat names, ICV
//! lengths).

mod algorithm;

use crate::error::Error;

pub use algorithm::{AEAD_NAMES, AUTH_NAMES, CIPHER_NAMES};
pub(crate) use algorithm::{Aead, AesSize, Auth, Cipher, Digest, MbAead};

/// An SA's algorithms, validated, without keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transform {
    pub(crate) kind: Kind,
    pub(crate) icv_len: u8,
}

/// An AEAD, or a pair of cipher and authentication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Aead(Aead),
    Pair(Cipher, Auth),
}

/// SPI and sequence number.
pub(crate) const HEADER_LEN: usize = 8;
/// The longest ICV of any transform (`hmac(sha512)`, untruncated).
pub(crate) const MAX_ICV_LEN: usize = 64;

impl Transform {
    /// An AEAD by the kernel's name; `key_bits` includes the salt as in `XFRMA_ALG_AEAD`
    /// (`rfc4106(gcm(aes))` with AES-128: 160).
    ///
    /// # Errors
    /// [`Error::AeadNotFound`] for an unknown name or an ICV length that is not in the kernel's
    /// table, [`Error::KeyLength`] for an unsupported key length.
    pub fn aead(name: &str, key_bits: usize, icv_bits: u32) -> Result<Self, Error> {
        let aead = Aead::by_name(name, key_bits, icv_bits)?;
        Ok(Self { kind: Kind::Aead(aead), icv_len: whole_bytes(icv_bits) })
    }

    /// A cipher and an authentication algorithm, each by the kernel's name or its older alias;
    /// `None` is the null one. Without truncation bits (or with 0, as in the kernel) the ICV has
    /// the kernel's default length, which for `hmac(sha256)` is 96 bits: RFC 4868's is 128.
    ///
    /// # Errors
    /// An unknown name, an unsupported key length, an impossible ICV length.
    pub fn cipher_auth(
        cipher: Option<(&str, usize)>,
        auth: Option<(&str, usize, Option<u32>)>,
    ) -> Result<Self, Error> {
        let cipher =
            cipher.map_or(Ok(Cipher::Null), |(name, key_bits)| Cipher::by_name(name, key_bits))?;
        let Some((name, key_bits, trunc)) = auth else {
            return Ok(Self { kind: Kind::Pair(cipher, Auth::Null), icv_len: 0 });
        };
        let auth = Auth::by_name(name, key_bits, trunc)?;
        let icv_len = auth.icv_len(trunc.filter(|bits| *bits != 0))?;
        Ok(Self { kind: Kind::Pair(cipher, auth), icv_len })
    }

    /// Bytes of IV in the packet, between sequence number and payload.
    #[must_use]
    pub fn iv_len(&self) -> usize {
        match self.kind {
            Kind::Aead(_) => 8,
            Kind::Pair(cipher, _) => cipher.iv_len(),
        }
    }

    /// Bytes of ICV at the packet's end.
    #[must_use]
    pub fn icv_len(&self) -> usize {
        usize::from(self.icv_len)
    }

    /// The cipher's block length in bytes; ESP aligns payload and trailer to this or 4, whichever
    /// is more (RFC 4303 §2.4).
    #[must_use]
    pub fn block_len(&self) -> usize {
        match self.kind {
            Kind::Aead(_) => 1,
            Kind::Pair(cipher, _) => cipher.block_len(),
        }
    }

    /// Bytes around payload and trailer: SPI, sequence number, IV and ICV.
    #[must_use]
    pub fn overhead(&self) -> usize {
        HEADER_LEN + self.iv_len() + self.icv_len()
    }

    /// Bytes of the encryption key, with salt or nonce.
    #[must_use]
    pub fn key_len(&self) -> usize {
        match self.kind {
            Kind::Aead(aead) => aead.key_len(),
            Kind::Pair(cipher, _) => cipher.key_len(),
        }
    }

    /// Bytes of the authentication key; 0 for an AEAD.
    #[must_use]
    pub fn auth_key_len(&self) -> usize {
        match self.kind {
            Kind::Aead(_) => 0,
            Kind::Pair(_, auth) => auth.key_len(),
        }
    }

    /// Bytes of the nonce that are in an AEAD's key and not in the packet.
    pub(crate) fn salt_len(&self) -> usize {
        match self.kind {
            Kind::Aead(aead) => aead.spec().salt_len,
            Kind::Pair(..) => 0,
        }
    }

    /// Whether it detects changed packets: false only for the null authentication algorithm.
    #[must_use]
    pub const fn authenticates(&self) -> bool {
        self.icv_len != 0
    }

    /// Whether it encrypts the payload: false for the null cipher and for GMAC.
    #[must_use]
    pub fn encrypts(&self) -> bool {
        !matches!(self.kind, Kind::Aead(Aead::Gmac(_)) | Kind::Pair(Cipher::Null, _))
    }

    /// The kernel's name: of the AEAD, or `cipher/auth`.
    #[must_use]
    pub fn name(&self) -> String {
        match self.kind {
            Kind::Aead(aead) => aead.names()[0].to_owned(),
            Kind::Pair(cipher, auth) => format!("{}/{}", cipher.names()[0], auth.names()[0]),
        }
    }
}

/// Every table above has at most 512 bits.
fn whole_bytes(bits: u32) -> u8 {
    u8::try_from(bits / 8).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aead_lengths_are_the_kernels() {
        let gcm = Transform::aead("rfc4106(gcm(aes))", 160, 128).unwrap();
        assert_eq!(
            (gcm.iv_len(), gcm.icv_len(), gcm.block_len(), gcm.key_len(), gcm.overhead()),
            (8, 16, 1, 20, 32)
        );
        let ccm = Transform::aead("rfc4309(ccm(aes))", 280, 64).unwrap();
        assert_eq!((ccm.iv_len(), ccm.icv_len(), ccm.key_len()), (8, 8, 35));
        let gmac = Transform::aead("rfc4543(gcm(aes))", 224, 128).unwrap();
        assert!(gmac.authenticates() && !gmac.encrypts());
        assert_eq!(
            Transform::aead("rfc7539esp(chacha20,poly1305)", 288, 128).unwrap().key_len(),
            36
        );
    }

    #[test]
    fn an_aead_is_looked_up_by_name_and_icv_together() {
        for (name, bits, icv) in [
            ("rfc4106(gcm(aes))", 160, 32),
            ("rfc4543(gcm(aes))", 160, 96),
            ("rfc7539esp(chacha20,poly1305)", 288, 96),
            ("gcm(aes)", 160, 128),
        ] {
            assert_eq!(
                Transform::aead(name, bits, icv),
                Err(Error::AeadNotFound { name: name.to_owned(), icv_bits: icv })
            );
        }
        for (name, bits) in [
            ("rfc4106(gcm(aes))", 128),
            ("rfc4106(gcm(aes))", 0),
            ("rfc4309(ccm(aes))", 160),
            ("rfc7539esp(chacha20,poly1305)", 160),
        ] {
            assert!(
                matches!(Transform::aead(name, bits, 128), Err(Error::KeyLength { .. })),
                "{name} {bits}"
            );
        }
    }

    #[test]
    fn pair_lengths_are_the_kernels() {
        for (auth, key, trunc, icv) in [
            ("hmac(sha1)", 128, None, 12),
            ("sha1", 160, Some(0), 12),
            ("hmac(sha256)", 256, None, 12),
            ("hmac(sha256)", 256, Some(128), 16),
            ("hmac(sha384)", 384, None, 24),
            ("hmac(sha512)", 512, None, 32),
            ("xcbc(aes)", 128, None, 12),
            ("cmac(aes)", 256, None, 12),
            ("hmac(md5)", 128, None, 12),
            ("digest_null", 0, None, 0),
        ] {
            let transform =
                Transform::cipher_auth(Some(("aes", 128)), Some((auth, key, trunc))).unwrap();
            assert_eq!(
                (transform.iv_len(), transform.block_len(), transform.icv_len()),
                (16, 16, icv),
                "{auth}"
            );
            assert_eq!(transform.authenticates(), icv != 0);
        }
    }

    #[test]
    fn errors_have_kernel_texts() {
        let pair = |cipher, auth| Transform::cipher_auth(cipher, auth).unwrap_err().to_string();
        assert_eq!(pair(Some(("cbc(des)", 64)), None), "Requested CRYPT algorithm not found");
        assert_eq!(pair(None, Some(("hmac(sm3)", 64, None))), "Requested AUTH algorithm not found");
        assert_eq!(
            pair(None, Some(("hmac(sm3)", 64, Some(96)))),
            "Requested AUTH_TRUNC algorithm not found"
        );
        assert_eq!(
            pair(None, Some(("sha1", 160, Some(168)))),
            "Invalid length requested for truncated ICV"
        );
        assert_eq!(
            pair(Some(("aes", 120)), None),
            "Kernel was unable to initialize cryptographic operations"
        );
    }

    #[test]
    fn transform_names_are_canonical() {
        let transform =
            Transform::cipher_auth(Some(("aes", 128)), Some(("sha1", 160, None))).unwrap();
        assert_eq!(transform.name(), "cbc(aes)/hmac(sha1)");
        assert_eq!(
            Transform::cipher_auth(None, None).unwrap().name(),
            "ecb(cipher_null)/digest_null"
        );
    }

    #[test]
    fn common_transforms_are_what_their_names_parse_to() {
        for (name, common) in Transform::COMMON {
            let (icv_bits, key_bits) = (u32::from(common.icv_len) * 8, common.key_len() * 8);
            let parsed = match common.kind {
                Kind::Aead(aead) => Transform::aead(aead.names()[0], key_bits, icv_bits),
                Kind::Pair(cipher, auth) => Transform::cipher_auth(
                    Some((cipher.names()[0], key_bits)),
                    Some((auth.names()[0], common.auth_key_len() * 8, Some(icv_bits))),
                ),
            };
            assert_eq!(parsed.as_ref(), Ok(common), "{name}");
        }
    }

    #[test]
    fn every_aead_and_cipher_is_common() {
        let names: Vec<String> = Transform::COMMON.iter().map(|(_, t)| t.name()).collect();
        for name in AEAD_NAMES.iter().chain(CIPHER_NAMES) {
            assert!(names.iter().any(|common| common.starts_with(name)), "{name}");
        }
    }

    /// What errors and completion showed first stays first.
    #[test]
    fn names_keep_their_order() {
        let aeads = ["rfc4106(gcm(aes))", "rfc4309(ccm(aes))", "rfc4543(gcm(aes))"];
        assert!(AEAD_NAMES.starts_with(&aeads), "{AEAD_NAMES:?}");
        assert_eq!(AEAD_NAMES[3], "rfc7539esp(chacha20,poly1305)");
        let ciphers = ["cbc(aes)", "rfc3686(ctr(aes))", "ecb(cipher_null)"];
        assert!(CIPHER_NAMES.starts_with(&ciphers), "{CIPHER_NAMES:?}");
        let auths = ["hmac(sha1)", "hmac(sha256)", "hmac(sha384)", "hmac(sha512)", "hmac(md5)"];
        assert!(AUTH_NAMES.starts_with(&auths), "{AUTH_NAMES:?}");
        assert_eq!(AUTH_NAMES[5..8], ["xcbc(aes)", "cmac(aes)", "digest_null"]);
    }
}
