//! `sync FILE`: the text, in pieces that a gateway takes.

use std::io::Read;

use zeroize::Zeroizing;

use super::{Failure, SessionEnvironment};
use crate::grammar::{CliOptions, SyncArgs};

/// Bytes of a piece: a datagram that any socket's default buffer takes.
const PIECE: usize = 64 * 1024;

/// Bytes of the longest text; a gateway takes no longer one. 100,000 states with their policies
/// have about 30 MB.
const LONGEST: usize = 64 * 1024 * 1024;

/// A text with keys in it, wiped when it is dropped.
pub struct SyncText {
    /// Its name in errors.
    pub source: String,
    /// Its parts in order, none of them empty.
    pub pieces: Vec<Zeroizing<Vec<u8>>>,
}

/// Why a gateway does not do what a text says.
#[derive(Debug, thiserror::Error)]
pub enum SyncFailure {
    /// There is none to be asked.
    #[error("{0}")]
    NoConnection(String),
    /// It refuses, and has changed nothing; or it went away.
    #[error("{0}")]
    Refused(String),
}

impl SyncText {
    /// Bytes of all of it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum()
    }

    /// Whether it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn read(name: String, mut source: impl Read) -> std::io::Result<Self> {
        let mut text = Self { source: name, pieces: Vec::new() };
        loop {
            let mut piece = Zeroizing::new(Vec::with_capacity(PIECE));
            // Never more than there is room for: the bytes do not move.
            source.by_ref().take(PIECE as u64).read_to_end(&mut piece)?;
            if piece.is_empty() {
                return Ok(text);
            }
            text.pieces.push(piece);
            if text.len() > LONGEST {
                let why = format!("it has more than {LONGEST} bytes");
                return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, why));
            }
        }
    }
}

impl std::fmt::Debug for SyncText {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "SyncText({}, {} bytes)", self.source, self.len())
    }
}

/// Reads the text, and lets the gateway of `options` do what it says.
pub(super) fn run(
    sync: &SyncArgs,
    options: &CliOptions,
    world: &mut impl SessionEnvironment,
) -> Result<(), Failure> {
    let name = sync.file.display().to_string();
    let text = world.script(&sync.file).and_then(|source| SyncText::read(name.clone(), source));
    let text = text
        .map_err(|error| Failure::NoConnection(format!("Cannot read file \"{name}\": {error}")))?;
    Ok(world.sync(options, sync, &text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_text_is_read_in_pieces_up_to_its_limit() {
        let bytes: Vec<u8> = (0..251).cycle().take(3 * PIECE + 5).collect();
        let text = SyncText::read("x".to_owned(), &bytes[..]).unwrap();
        assert_eq!((text.pieces.len(), text.len()), (4, bytes.len()));
        assert_eq!(
            text.pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<_>>(),
            bytes
        );
        assert!(SyncText::read("x".to_owned(), &b""[..]).unwrap().is_empty());
        assert!(SyncText::read("x".to_owned(), std::io::repeat(b'#')).is_err());
    }
}
