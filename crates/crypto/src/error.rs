//! Errors in an SA's algorithms and keys, found when the SA is created.

/// Why a transform or a key was refused. The texts are the kernel's where it has one
/// (`net/xfrm/xfrm_user.c: attach_*`, `net/ipv4/esp4.c: esp_init_state`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such AEAD, or not with this ICV length (the kernel looks up both together). ENOSYS.
    #[error("Requested AEAD algorithm not found")]
    AeadNotFound {
        /// The given name.
        name: String,
        /// The given ICV length in bits.
        icv_bits: u32,
    },
    /// No such cipher. ENOSYS.
    #[error("Requested CRYPT algorithm not found")]
    CipherNotFound {
        /// The given name.
        name: String,
    },
    /// No such authentication algorithm, given without a truncation length (`auth`). ENOSYS.
    #[error("Requested AUTH algorithm not found")]
    AuthNotFound {
        /// The given name.
        name: String,
    },
    /// No such authentication algorithm, given with a truncation length (`auth-trunc`). ENOSYS.
    #[error("Requested AUTH_TRUNC algorithm not found")]
    AuthTruncNotFound {
        /// The given name.
        name: String,
    },
    /// An ICV longer than the algorithm's output, shorter than 32 bits or not whole bytes. EINVAL.
    /// (The kernel refuses only the first; the minimum is NIST SP 800-107's.)
    #[error("Invalid length requested for truncated ICV")]
    TruncatedIcv {
        /// The given length in bits.
        bits: u32,
        /// The algorithm's longest ICV in bits.
        longest: u32,
    },
    /// The algorithm does not take a key of this length. EINVAL.
    #[error("Kernel was unable to initialize cryptographic operations")]
    KeyLength {
        /// The algorithm, by the kernel's name.
        algorithm: &'static str,
        /// The given length in bits; for an AEAD or CTR with its salt or nonce.
        bits: usize,
        /// Valid lengths.
        takes: &'static str,
    },
    /// A key's length differs from the one that the transform was checked for.
    #[error("{which} key has {has} bytes, the transform {transform} needs {needs}")]
    KeyMismatch {
        /// `"encryption"` or `"authentication"`.
        which: &'static str,
        /// The transform's name.
        transform: String,
        /// Bytes given.
        has: usize,
        /// Bytes needed.
        needs: usize,
    },
    /// The requested backend is not in this build or failed to start.
    #[error("crypto backend {0} is not available on this machine")]
    BackendUnavailable(&'static str),
    /// The library refused a checked key: a bug or no memory.
    #[error("the crypto library refused a {0} key")]
    Library(&'static str),
}

impl Error {
    /// Details beyond the kernel's text: the given value and valid ones. Empty if there are none.
    #[must_use]
    pub fn detail(&self) -> String {
        match self {
            Self::AeadNotFound { name, icv_bits } => {
                format!("{name} with an ICV of {icv_bits} bits")
            }
            Self::CipherNotFound { name }
            | Self::AuthNotFound { name }
            | Self::AuthTruncNotFound { name } => name.clone(),
            Self::TruncatedIcv { bits, longest } => {
                format!("{bits} bits asked for, 32 to {longest} in whole bytes would do")
            }
            Self::KeyLength { algorithm, bits, takes } => {
                format!("{algorithm} takes a key of {takes} bits, not {bits}")
            }
            Self::KeyMismatch { .. } | Self::BackendUnavailable(_) | Self::Library(_) => {
                String::new()
            }
        }
    }
}
