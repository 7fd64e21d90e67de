//! Key bytes between the control plane and an [`SaKey`](crate::SaKey): wiped when dropped, never
//! printed, compared in constant time.

use core::fmt;

use aws_lc_sys as aws;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Prefix of the key in [`KeyMaterial::fingerprint`], which separates it from other hashes of a
/// key, such as HMAC's of long keys.
const FINGERPRINT_LABEL: &[u8] = b"uxfrm key fingerprint";

/// A key as given by the control plane, salt and nonce at its end as in the kernel.
pub struct KeyMaterial(Zeroizing<Box<[u8]>>);

impl KeyMaterial {
    /// Copies the bytes; the caller wipes its own.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }

    /// No key: for the null algorithms and an AEAD's authentication key.
    #[must_use]
    pub fn empty() -> Self {
        Self::new(&[])
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The secret itself: only for answers to dumps that ask for keys.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// Identifies this key without holding it: half of a SHA-256 digest. A reader can test guesses,
    /// so guessable keys should not be published in this form either.
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        let text = Zeroizing::new([FINGERPRINT_LABEL, self.expose()].concat());
        let mut digest = [0; 32];
        // SAFETY: the text is as long as said, and a SHA-256 digest is 32 bytes.
        unsafe { aws::SHA256(text.as_ptr(), text.len(), digest.as_mut_ptr()) };
        digest[..16].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }
}

impl From<Vec<u8>> for KeyMaterial {
    fn from(bytes: Vec<u8>) -> Self {
        // The vector may be larger than its bytes, and converting it into a box would leave a copy
        // behind.
        Self::new(&Zeroizing::new(bytes))
    }
}

impl PartialEq for KeyMaterial {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for KeyMaterial {}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyMaterial({} bytes, redacted)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_equality_compares_bytes() {
        assert_eq!(KeyMaterial::new(b"abc"), KeyMaterial::from(b"abc".to_vec()));
        assert_ne!(KeyMaterial::new(b"abc"), KeyMaterial::new(b"abd"));
        assert_ne!(KeyMaterial::new(b"abc"), KeyMaterial::new(b"ab"));
        assert!(KeyMaterial::empty().is_empty());
    }

    #[test]
    fn fingerprints_tell_keys_apart() {
        // printf 'uxfrm key fingerprintabc' | sha256sum
        let fingerprint = KeyMaterial::new(b"abc").fingerprint();
        assert_eq!(fingerprint, 0x240f_7781_5545_c007_66da_3e36_0107_1457);
        assert_ne!(fingerprint, KeyMaterial::new(b"abd").fingerprint());
        assert_ne!(fingerprint, KeyMaterial::empty().fingerprint());
    }

    #[test]
    fn debug_shows_no_key() {
        let shown = format!("{:?}", KeyMaterial::new(b"secret"));
        assert_eq!(shown, "KeyMaterial(6 bytes, redacted)");
    }
}
