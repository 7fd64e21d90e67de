//! What a policy has for itself, in few bytes: there may be a million policies.

/// The words that a policy's [`Form`](super::layout::Form) says are its own.
#[derive(Clone, Debug)]
pub(crate) enum Own {
    Here([u8; ROOM]),
    Apart(Box<[u8]>),
}

/// Bytes of words that take no memory elsewhere.
pub(crate) const ROOM: usize = 23;

impl Own {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut words = [0; ROOM];
        match words.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Self::Here(words)
            }
            None => Self::Apart(bytes.into()),
        }
    }

    /// All of them, and behind them what is none.
    pub(crate) fn words(&self) -> &[u8] {
        match self {
            Self::Here(words) => words,
            Self::Apart(words) => words,
        }
    }
}
