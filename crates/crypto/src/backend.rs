//! Selection of the crypto library.

/// A crypto backend, or automatic selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Backend {
    /// ipsec-mb where available, except for batches too small for it; portable everywhere else.
    #[default]
    Auto,
    /// Intel's multi-buffer library (x86-64), for every transform it has and any batch.
    IpsecMb,
    /// aws-lc, one packet at a time.
    Portable,
}

impl Backend {
    /// Backends available in this build on this machine, fastest first, without `Auto`.
    #[must_use]
    pub fn available() -> &'static [Self] {
        if crate::ipsec_mb::available() {
            &[Self::IpsecMb, Self::Portable]
        } else {
            &[Self::Portable]
        }
    }

    /// `auto`, `ipsec-mb` or `portable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::IpsecMb => "ipsec-mb",
            Self::Portable => "portable",
        }
    }
}
