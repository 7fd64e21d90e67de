//! A policy's own fields, stored inline if short: there may be a million policies.

/// Encoded fields that a policy's [`FieldLayout`](super::layout::FieldLayout) does not share.
#[derive(Clone, Debug)]
pub(crate) enum InlineFields {
    Inline([u8; INLINE_BYTES]),
    Boxed(Box<[u8]>),
}

/// Bytes that fit inline.
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

    /// The encoded fields, with padding behind.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(words) => words,
            Self::Boxed(words) => words,
        }
    }
}
