//! Why a change was refused, with the kernel's errno and words.

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is one already.
    #[error("File exists")]
    Exists,
}
