//! What a policy has for itself, in few bytes: there may be a million policies.

use crate::Selector;

/// Protocol and lengths of both prefixes of a selector, and the words that the policy's [`Form`](super::form::Form) says are its own.
#[derive(Clone, Debug)]
pub(super) enum Own {
    Here { lens: [u8; 2], protocol: u8, words: [u8; ROOM] },
    Apart { lens: [u8; 2], protocol: u8, words: Box<[u8]> },
}

/// Bytes of words that take no memory elsewhere.
pub(super) const ROOM: usize = 20;

impl Own {
    pub(super) fn of(selector: &Selector, bytes: &[u8]) -> Self {
        let lens = [selector.source, selector.destination].map(crate::Prefix::prefix_len);
        let protocol = selector.protocol;
        let mut words = [0; ROOM];
        match words.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Self::Here { lens, protocol, words }
            }
            None => Self::Apart { lens, protocol, words: bytes.into() },
        }
    }

    /// Of source and destination.
    pub(super) const fn lens(&self) -> [u8; 2] {
        let (Self::Here { lens, .. } | Self::Apart { lens, .. }) = self;
        *lens
    }

    pub(super) const fn protocol(&self) -> u8 {
        let (Self::Here { protocol, .. } | Self::Apart { protocol, .. }) = self;
        *protocol
    }

    /// All of them, and behind them what is none.
    pub(super) fn words(&self) -> &[u8] {
        match self {
            Self::Here { words, .. } => words,
            Self::Apart { words, .. } => words,
        }
    }
}
