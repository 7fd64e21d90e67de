//! An SA's keys, expanded once for the hot path.

use core::fmt;

use uxfrm_packet::prefetch_far;

use crate::backend::Backend;
use crate::error::Error;
use crate::ipsec_mb::{self, BurstKey, DirectKey};
use crate::material::KeyMaterial;
use crate::portable::PortableKey;
use crate::transform::Transform;

/// Expanded keys of one SA: immutable, shared by all workers, wiped when dropped. Debug shows the transform only.
// What most packets need stands in its first cache line.
#[repr(C, align(64))]
pub struct SaKey {
    pub(crate) shape: Shape,
    pub(crate) ready: Ready,
    pub(crate) transform: Transform,
}

/// A transform's lengths, worked out once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    overhead: u8,
    icv_len: u8,
    /// The cipher's block, a power of two, less one.
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

    /// Bytes of text in `esp_len` bytes; `None` when they hold no whole blocks, or not even a trailer.
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

/// Pad length and next header, at the least.
const TRAILER_LEN: usize = 2;

/// For whom the keys are expanded.
pub(crate) enum Ready {
    /// aws-lc, always.
    Portable(PortableKey),
    /// ipsec-mb, one packet at a time.
    Direct(DirectKey),
    /// ipsec-mb in bursts; aws-lc for what does not fit one.
    Burst { burst: BurstKey, portable: PortableKey, small: SmallBursts },
}

/// What becomes of a burst too small to pay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SmallBursts {
    /// aws-lc does it ([`Backend::Auto`]).
    Portable,
    /// ipsec-mb does it all the same ([`Backend::IpsecMb`]).
    Burst,
}

impl SaKey {
    /// Expands the keys. `enc` is the AEAD's or the cipher's key with its salt or nonce at the end, `auth` the
    /// authentication key; empty where the transform needs none. A transform that ipsec-mb has not (AES-CCM and CMAC
    /// with 192 bits, HMAC-MD5, XCBC with more than 96 bits of ICV, null with null) is done by the portable backend whatever was asked for.
    ///
    /// # Errors
    /// [`Error::KeyMismatch`] when a key has not the transform's length, [`Error::BackendUnavailable`] when
    /// `IpsecMb` is asked for and is not here.
    pub fn new(
        transform: &Transform,
        enc: &KeyMaterial,
        auth: &KeyMaterial,
        backend: Backend,
    ) -> Result<Self, Error> {
        Self::verify(transform, enc, auth, backend)?;
        let small = match backend {
            Backend::Portable => {
                let ready = Ready::Portable(PortableKey::new(transform, enc, auth)?);
                return Ok(Self { transform: *transform, shape: Shape::of(transform), ready });
            }
            Backend::IpsecMb => SmallBursts::Burst,
            Backend::Auto => SmallBursts::Portable,
        };
        let ready = Ready::fastest(transform, enc, auth, small)?;
        Ok(Self { transform: *transform, shape: Shape::of(transform), ready })
    }

    /// Whether [`SaKey::new`] takes these keys, without expanding them.
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

    /// What the keys are for.
    #[must_use]
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// Who works with the keys; of `Auto`, who does when a batch is large enough.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self.ready {
            Ready::Portable(_) => Backend::Portable,
            Ready::Direct(_) | Ready::Burst { .. } => Backend::IpsecMb,
        }
    }

    /// Asks for what leads to all that packets need of it.
    #[inline]
    pub fn prefetch_head(&self) {
        prefetch_far(self);
    }

    /// Asks for what short packets need of it: soon to be used.
    pub fn prefetch(&self) {
        match &self.ready {
            Ready::Direct(key) => key.prefetch(),
            Ready::Burst { burst, .. } => burst.prefetch(),
            Ready::Portable(_) => {}
        }
    }

    pub(crate) fn burst(&self) -> Option<&BurstKey> {
        match &self.ready {
            Ready::Burst { burst, .. } => Some(burst),
            Ready::Portable(_) | Ready::Direct(_) => None,
        }
    }

    /// A block under the cipher's key; zeroes for a key without AES-CBC.
    pub(crate) fn encrypt_block(&self, block: &[u8; 16]) -> [u8; 16] {
        self.portable().and_then(|key| key.encrypt_block(block)).unwrap_or([0; 16])
    }

    pub(crate) fn portable(&self) -> Option<&PortableKey> {
        match &self.ready {
            Ready::Burst { portable, .. } | Ready::Portable(portable) => Some(portable),
            Ready::Direct(_) => None,
        }
    }
}

impl Ready {
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
