//! Expanded keys of an SA.

use core::fmt;

use uxfrm_packet::prefetch_far;

use crate::backend::Backend;
use crate::error::Error;
use crate::ipsec_mb::{self, BurstKey, DirectKey};
use crate::material::KeyMaterial;
use crate::portable::PortableKey;
use crate::transform::Transform;

/// Expanded keys of one SA: immutable, shared by all workers, wiped when dropped. Debug shows the
/// transform only.
// The first cache line has what most packets need.
#[repr(C, align(64))]
pub struct SaKey {
    pub(crate) shape: Shape,
    pub(crate) expanded: ExpandedKeys,
    pub(crate) transform: Transform,
}

/// Lengths of a transform, computed once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    overhead: u8,
    icv_len: u8,
    /// The cipher's block length, a power of two, less one.
    block_mask: u8,
}

impl Shape {
    /// Overhead is at most 8 + 16 + 32 bytes, a block 16.
    fn of(transform: &Transform) -> Self {
        let narrow = |len: usize| u8::try_from(len).unwrap_or(u8::MAX);
        Self {
            overhead: narrow(transform.overhead()),
            icv_len: narrow(transform.icv_len()),
            block_mask: narrow(transform.block_len() - 1),
        }
    }

    /// Bytes of text in `esp_len` bytes; `None` without whole blocks, or without room for a
    /// trailer.
    #[inline(always)]
    pub(crate) fn text_len(self, esp_len: usize) -> Option<usize> {
        let len = esp_len.checked_sub(self.overhead.into())?;
        (len >= TRAILER_LEN && len & usize::from(self.block_mask) == 0).then_some(len)
    }

    #[inline(always)]
    pub(crate) fn icv_len(self) -> usize {
        self.icv_len.into()
    }
}

/// Pad length and next header, the shortest trailer.
const TRAILER_LEN: usize = 2;

/// Keys expanded for a backend.
pub(crate) enum ExpandedKeys {
    /// aws-lc, always.
    Portable(PortableKey),
    /// ipsec-mb, one packet at a time.
    Direct(DirectKey),
    /// ipsec-mb in bursts; aws-lc for what does not fit one.
    Burst { burst: BurstKey, portable: PortableKey, small: SmallBursts },
}

/// Treatment of a burst too small to be worthwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SmallBursts {
    /// By aws-lc ([`Backend::Auto`]).
    Portable,
    /// By ipsec-mb all the same ([`Backend::IpsecMb`]).
    Burst,
}

impl SaKey {
    /// Expands the keys. `enc` is the AEAD's or the cipher's key with its salt or nonce at the end,
    /// `auth` the authentication key; empty where the transform needs none. Transforms that
    /// ipsec-mb lacks (AES-CCM and CMAC with 192 bits, HMAC-MD5, XCBC with an ICV of more than 96
    /// bits, null with null) use the portable backend in any case.
    ///
    /// # Errors
    /// [`Error::KeyMismatch`] for a key of another length than the transform's,
    /// [`Error::BackendUnavailable`] when `IpsecMb` is requested and missing.
    pub fn new(
        transform: &Transform,
        enc: &KeyMaterial,
        auth: &KeyMaterial,
        backend: Backend,
    ) -> Result<Self, Error> {
        Self::verify(transform, enc, auth, backend)?;
        let small = match backend {
            Backend::Portable => {
                let expanded = ExpandedKeys::Portable(PortableKey::new(transform, enc, auth)?);
                return Ok(Self { transform: *transform, shape: Shape::of(transform), expanded });
            }
            Backend::IpsecMb => SmallBursts::Burst,
            Backend::Auto => SmallBursts::Portable,
        };
        let expanded = ExpandedKeys::fastest(transform, enc, auth, small)?;
        Ok(Self { transform: *transform, shape: Shape::of(transform), expanded })
    }

    /// Checks these keys as [`SaKey::new`] does, without expanding them.
    ///
    /// # Errors
    /// As [`SaKey::new`].
    pub fn verify(
        transform: &Transform,
        enc: &KeyMaterial,
        auth: &KeyMaterial,
        backend: Backend,
    ) -> Result<(), Error> {
        check_len(transform, "encryption", enc.len(), transform.key_len())?;
        check_len(transform, "authentication", auth.len(), transform.auth_key_len())?;
        if backend == Backend::IpsecMb && !ipsec_mb::available() {
            return Err(Error::BackendUnavailable(backend.name()));
        }
        Ok(())
    }

    /// The keys' transform.
    #[must_use]
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// The backend of the keys; of `Auto`, the one for large batches.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self.expanded {
            ExpandedKeys::Portable(_) => Backend::Portable,
            ExpandedKeys::Direct(_) | ExpandedKeys::Burst { .. } => Backend::IpsecMb,
        }
    }

    /// Prefetches the pointers to the expanded keys.
    #[inline]
    pub fn prefetch_head(&self) {
        prefetch_far(self);
    }

    /// Prefetches what short packets need of the expanded keys.
    pub fn prefetch(&self) {
        match &self.expanded {
            ExpandedKeys::Direct(key) => key.prefetch(),
            ExpandedKeys::Burst { burst, .. } => burst.prefetch(),
            ExpandedKeys::Portable(_) => {}
        }
    }

    pub(crate) fn burst(&self) -> Option<&BurstKey> {
        match &self.expanded {
            ExpandedKeys::Burst { burst, .. } => Some(burst),
            ExpandedKeys::Portable(_) | ExpandedKeys::Direct(_) => None,
        }
    }

    /// Encrypts a block under the cipher's key; zeros for a key without AES-CBC.
    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        self.portable().and_then(|key| key.encrypt_block(block)).unwrap_or([0; 16])
    }

    pub(crate) fn portable(&self) -> Option<&PortableKey> {
        match &self.expanded {
            ExpandedKeys::Burst { portable, .. } | ExpandedKeys::Portable(portable) => {
                Some(portable)
            }
            ExpandedKeys::Direct(_) => None,
        }
    }
}

impl ExpandedKeys {
    fn fastest(
        transform: &Transform,
        enc: &KeyMaterial,
        auth: &KeyMaterial,
        small: SmallBursts,
    ) -> Result<Self, Error> {
        if let Some(direct) = DirectKey::new(transform, enc) {
            return Ok(Self::Direct(direct));
        }
        let portable = PortableKey::new(transform, enc, auth)?;
        Ok(match BurstKey::new(transform, enc, auth) {
            Some(burst) => Self::Burst { burst, portable, small },
            None => Self::Portable(portable),
        })
    }
}

fn check_len(
    transform: &Transform,
    which: &'static str,
    has: usize,
    needs: usize,
) -> Result<(), Error> {
    if has == needs {
        return Ok(());
    }
    Err(Error::KeyMismatch { which, transform: transform.name(), has, needs })
}

impl fmt::Debug for SaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaKey({}, redacted)", self.transform.name())
    }
}
