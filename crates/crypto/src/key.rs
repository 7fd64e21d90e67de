//! An SA's keys, expanded once for the hot path.

use core::fmt;

use crate::backend::Backend;
use crate::error::Error;
use crate::material::KeyMaterial;
use crate::portable::PortableKey;
use crate::transform::Transform;

/// Expanded keys of one SA: immutable, shared by all workers, wiped when dropped. Debug shows the transform only.
pub struct SaKey {
    pub(crate) transform: Transform,
    pub(crate) ready: PortableKey,
}

impl SaKey {
    /// Expands the keys. `enc` is the AEAD's or the cipher's key with its salt or nonce at the end, `auth` the
    /// authentication key; empty where the transform needs none.
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
        check_len(transform, "encryption", enc.len(), transform.key_len())?;
        check_len(transform, "authentication", auth.len(), transform.auth_key_len())?;
        if backend == Backend::IpsecMb && !crate::ipsec_mb::available() {
            return Err(Error::BackendUnavailable(backend.name()));
        }
        Ok(Self { transform: *transform, ready: PortableKey::new(transform, enc, auth)? })
    }

    /// What the keys are for.
    #[must_use]
    pub fn transform(&self) -> &Transform {
        &self.transform
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
