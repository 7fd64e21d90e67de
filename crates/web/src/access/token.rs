//! The token that clients have to know.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::Uid;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// The shortest token, in characters.
const SHORTEST: usize = 32;
/// The longest one.
const LONGEST: usize = 1024;
/// Mode bits that a token's file may not have: others' all, and writing and execution of the group.
const TOO_OPEN: u32 = 0o037;

/// A token; never shown.
pub struct AccessToken(Zeroizing<Vec<u8>>);

/// Why a file has no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It can't be read.
    #[error("can't read the token in {0}: {1}")]
    Io(PathBuf, io::Error),
    /// It is no plain file.
    #[error("{0} is no regular file")]
    Kind(PathBuf),
    /// Others may read it.
    #[error("others may read the token in {path} (mode {mode:04o}): chmod 0600 {path}", path = .0.display(), mode = .1)]
    Mode(PathBuf, u32),
    /// It is another user's, who could put another token there.
    #[error("the token in {path} is user {owner}'s: chown root {path}", path = .0.display(), owner = .1)]
    Owner(PathBuf, Uid),
    /// It is short, long, or not printable.
    #[error(
        "the token in {0} is not one line of {SHORTEST} to {LONGEST} printable characters: openssl rand -hex 32 >{0}"
    )]
    Form(PathBuf),
}

impl AccessToken {
    /// Reads a file with one line.
    ///
    /// # Errors
    /// Why that is no token, and what would be.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |error| TokenError::Io(path.to_owned(), error);
        // Opening a FIFO would wait.
        let file = File::options().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
        let file = file.map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(TokenError::Kind(path.to_owned()));
        }
        if about.mode() & TOO_OPEN != 0 {
            return Err(TokenError::Mode(path.to_owned(), about.mode() & 0o7777));
        }
        let owner = Uid::from_raw(about.uid());
        if !is_trusted(owner, Uid::effective()) {
            return Err(TokenError::Owner(path.to_owned(), owner));
        }
        // No larger than this, so that it is not moved while it is read.
        let mut text = Zeroizing::new(Vec::with_capacity(LONGEST + 2));
        file.take(LONGEST as u64 + 2).read_to_end(&mut text).map_err(failed)?;
        Self::parse(&text).ok_or_else(|| TokenError::Form(path.to_owned()))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let token = text.trim_ascii();
        let fits = (SHORTEST..=LONGEST).contains(&token.len());
        let is_printable = token.iter().all(u8::is_ascii_graphic);
        (fits && is_printable).then(|| Self(Zeroizing::new(token.to_vec())))
    }

    /// Whether this is the token, in a time that tells nothing but its length.
    pub(super) fn matches(&self, other: &[u8]) -> bool {
        self.0.ct_eq(other).into()
    }
}

/// Whether a file of this owner says what we, or root for us, have written.
fn is_trusted(owner: Uid, own: Uid) -> bool {
    owner.is_root() || owner == own
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("AccessToken")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn token_by_table() {
        for (text, is_token) in [
            (TOKEN, true),
            (&format!("{TOKEN}\n"), true),
            ("", false),
            (&TOKEN[1..], false),
            (&format!("{TOKEN} {TOKEN}"), false),
            (&format!("{TOKEN}\u{e9}"), false),
            (&"x".repeat(1024), true),
            (&"x".repeat(1025), false),
        ] {
            let token = AccessToken::parse(text.as_bytes());
            assert_eq!(token.is_some(), is_token, "{text:?}");
        }
        let token = AccessToken::parse(TOKEN.as_bytes()).unwrap();
        assert!(token.matches(TOKEN.as_bytes()));
        assert!(!token.matches(b"0123456789abcdef0123456789abcdee") && !token.matches(b""));
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn file_that_others_may_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, TOKEN).unwrap();
        for (mode, is_right) in [
            (0o600, true),
            (0o640, true),
            (0o400, true),
            (0o644, false),
            (0o660, false),
            (0o604, false),
        ] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let read = AccessToken::read(&path);
            assert_eq!(read.is_ok(), is_right, "{mode:o} {read:?}");
        }
        assert!(matches!(AccessToken::read(directory.path()), Err(TokenError::Kind(_))));
        let nowhere = AccessToken::read(&directory.path().join("none"));
        assert!(matches!(nowhere, Err(TokenError::Io(..))));
    }

    #[test]
    fn file_of_another_user_is_refused() {
        let [root, own, other] = [0, 1000, 1001].map(Uid::from_raw);
        for (owner, reader, is_right) in [
            (root, root, true),
            (root, own, true),
            (own, own, true),
            (own, root, false),
            (other, own, false),
        ] {
            assert_eq!(is_trusted(owner, reader), is_right, "{owner} {reader}");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, TOKEN).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        AccessToken::read(&path).unwrap();
        if Uid::effective().is_root() {
            nix::unistd::chown(&path, Some(other), None).unwrap();
            let error = AccessToken::read(&path).unwrap_err();
            assert!(matches!(error, TokenError::Owner(_, owner) if owner == other), "{error}");
            assert!(error.to_string().contains("chown root"), "{error}");
        }
    }
}
