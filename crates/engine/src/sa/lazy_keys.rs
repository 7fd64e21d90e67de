//! Keys of an SA as given, until a packet needs them expanded. They are wiped when dropped, never
//! printed, and copied only from heap to heap, so that no stack keeps them.

use std::fmt;

use uxfrm_crypto::KeyMaterial;
use zeroize::Zeroizing;

/// Encryption key followed by authentication key. Up to [`SHORT`] bytes (AES-128-GCM with its salt)
/// are stored inline.
pub(super) enum LazyKeys {
    Short { encryption: u8, len: u8, bytes: Zeroizing<[u8; SHORT]> },
    Long { encryption: u32, bytes: Zeroizing<Box<[u8]>> },
}

const SHORT: usize = 21;

impl LazyKeys {
    /// None yet.
    pub(super) fn none() -> Self {
        Self::Short { encryption: 0, len: 0, bytes: Zeroizing::default() }
    }

    /// Copies keys in place.
    pub(super) fn copy(&mut self, encryption: &[u8], authentication: &[u8]) {
        let (split, all) = (encryption.len(), encryption.len() + authentication.len());
        if all <= SHORT {
            *self = Self::none();
        } else {
            let bytes = Zeroizing::new(vec![0; all].into_boxed_slice());
            *self = Self::Long { encryption: u32::try_from(split).unwrap_or(u32::MAX), bytes };
        }
        let bytes = match self {
            Self::Short { encryption, len, bytes } => {
                // Both are at most `SHORT`.
                (*encryption, *len) = (split.to_le_bytes()[0], all.to_le_bytes()[0]);
                &mut bytes[..all]
            }
            Self::Long { bytes, .. } => &mut bytes[..],
        };
        bytes[..split].copy_from_slice(encryption);
        bytes[split..].copy_from_slice(authentication);
    }

    /// Both keys.
    pub(super) fn material(&self) -> (KeyMaterial, KeyMaterial) {
        let (encryption, authentication) = self.expose();
        (KeyMaterial::new(encryption), KeyMaterial::new(authentication))
    }

    pub(super) fn expose(&self) -> (&[u8], &[u8]) {
        match self {
            Self::Short { encryption, len, bytes } => {
                bytes[..usize::from(*len)].split_at(usize::from(*encryption))
            }
            Self::Long { encryption, bytes } => bytes.split_at(*encryption as usize),
        }
    }
}

impl fmt::Debug for LazyKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (encryption, authentication) = self.expose();
        write!(f, "Keys({} and {} bytes, redacted)", encryption.len(), authentication.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_length_round_trip() {
        let bytes: Vec<u8> = (0..=255).collect();
        for encryption in [0, 1, 16, 20, 21, 22, 36, 64] {
            for authentication in [0, 1, 5, 16, 21, 64, 128] {
                let mut keys = LazyKeys::none();
                keys.copy(&bytes[..encryption], &bytes[100..100 + authentication]);
                let given = (&bytes[..encryption], &bytes[100..100 + authentication]);
                assert_eq!(keys.expose(), given);
                let (one, other) = keys.material();
                assert_eq!((one.expose(), other.expose()), given);
            }
        }
        assert_eq!(size_of::<LazyKeys>(), 24);
    }
}
