//! What a policy has for itself, in few bytes: there may be a million policies.

/// The words that a policy's [`FieldLayout`](super::layout::FieldLayout) says are its own.
#[derive(Clone, Debug)]
pub(crate) enum InlineFields {
    Inline([u8; INLINE_BYTES]),
    Boxed(Box<[u8]>),
}

/// Bytes of words that take no memory elsewhere.
pub(crate) const INLINE_BYTES: usize = 23;

impl InlineFields {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut words = [0; INLINE_BYTES];
        match words.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Self::Inline(words)
            }
            None => Self::Boxed(bytes.into()),
        }
    }

    /// All of them, and behind them what is none.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(words) => words,
            Self::Boxed(words) => words,
        }
    }
}
