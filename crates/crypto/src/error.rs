//! What can be wrong with an SA's algorithms and keys: found once, when the SA is made.

/// Why a transform or a key was refused. The texts are the kernel's where it has one
/// (`net/xfrm/xfrm_user.c: attach_*`, `net/ipv4/esp4.c: esp_init_state`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such AEAD, or not with this ICV length (the kernel looks up both together). ENOSYS.
    #[error("Requested AEAD algorithm not found")]
    AeadNotFound {
        /// The name as given.
        name: String,
        /// The ICV length as given, in bits.
        icv_bits: u32,
    },
    /// No such cipher. ENOSYS.
    #[error("Requested CRYPT algorithm not found")]
    CipherNotFound {
        /// The name as given.
        name: String,
    },
    /// No such authentication algorithm, given without a truncation length (`auth`). ENOSYS.
    #[error("Requested AUTH algorithm not found")]
    AuthNotFound {
        /// The name as given.
        name: String,
    },
    /// No such authentication algorithm, given with a truncation length (`auth-trunc`). ENOSYS.
    #[error("Requested AUTH_TRUNC algorithm not found")]
    AuthTruncNotFound {
        /// The name as given.
        name: String,
    },
    /// An ICV longer than the algorithm's output, shorter than 32 bits or not whole bytes. EINVAL.
    /// (The kernel refuses only the first; the floor is NIST SP 800-107's.)
    #[error("Invalid length requested for truncated ICV")]
    TruncatedIcv {
        /// The length as given, in bits.
        bits: u32,
        /// The algorithm's longest, in bits.
        longest: u32,
    },
    /// The key does not have a length the algorithm takes. EINVAL.
    #[error("Kernel was unable to initialize cryptographic operations")]
    KeyLength {
        /// The algorithm, by the kernel's name.
        algorithm: &'static str,
        /// The length as given, in bits; for an AEAD or CTR with its salt or nonce.
        bits: usize,
        /// What it takes.
        takes: &'static str,
    },
    /// A key's bytes are not as many as the transform was checked for.
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
    /// The backend was asked for by name and is not in this build or refused to start here.
    #[error("crypto backend {0} is not available on this machine")]
    BackendUnavailable(&'static str),
    /// The crypto library refused a key that had been checked: a bug or no memory.
    #[error("the crypto library refused a {0} key")]
    Library(&'static str),
}

impl Error {
    /// More than the kernel's words: what was given and what would be right. Empty when the text says it all.
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
