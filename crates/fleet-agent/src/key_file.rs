//! The fleet's keys, and other secrets, in files that nobody else reads.
//!
//! A key is a line `uxfrm-fleet-key-1 HEX`. The first one seals, all of them open: two while keys
//! change. What follows `#` is a comment.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use uxfrm_fleet::seal::{FleetKey, Keyring};
use zeroize::Zeroizing;

use crate::whole_file;

/// What a line of a key begins with.
const FORM: &str = "uxfrm-fleet-key-1";
/// Bytes of a key.
const LENGTH: usize = 32;
/// The largest file of a secret.
const LARGEST: u64 = 64 << 10;

/// Reads a keyring.
///
/// # Errors
/// A sentence that names the file, and what is wrong with it.
pub fn read_keyring(path: &Path) -> Result<Keyring, String> {
    let mut keys = read_keys(path)?.into_iter();
    // There is one, or it would have been an error.
    let first = keys.next().ok_or_else(|| format!("{}: no key", path.display()))?;
    Ok(Keyring::new(first, keys))
}

/// The same, as the keys themselves.
///
/// # Errors
/// As [`read_keyring`].
pub fn read_keys(path: &Path) -> Result<Vec<FleetKey>, String> {
    Ok(read_lines(path)?.into_iter().map(FleetKey::new).collect())
}

type KeyBytes = Zeroizing<[u8; LENGTH]>;

/// The keys of a file as bytes, for what writes it anew.
pub(crate) fn read_lines(path: &Path) -> Result<Vec<KeyBytes>, String> {
    let text = read_secret(path)?;
    let wrong = |number: usize| {
        let line = number + 1;
        let hex = LENGTH * 2;
        format!("{}: line {line}: `{FORM} ` and {hex} hex digits would be right", path.display())
    };
    let mut keys = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            keys.push(key_of(line).ok_or_else(|| wrong(number))?);
        }
    }
    if keys.is_empty() {
        return Err(format!("{}: no key; `uxfrm fleet init` makes one", path.display()));
    }
    Ok(keys)
}

fn key_of(line: &str) -> Option<KeyBytes> {
    let hex = line.strip_prefix(FORM)?.trim().as_bytes();
    if hex.len() != LENGTH * 2 {
        return None;
    }
    let mut key = Zeroizing::new([0; LENGTH]);
    for (byte, digits) in key.iter_mut().zip(hex.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(digits[0])? << 4 | digit(digits[1])?).ok()?;
    }
    Some(key)
}

/// A new key, from the kernel's random numbers.
///
/// # Errors
/// Where the kernel has none.
pub(crate) fn draw() -> io::Result<KeyBytes> {
    let mut key = Zeroizing::new([0; LENGTH]);
    getrandom::fill(&mut *key).map_err(io::Error::other)?;
    Ok(key)
}

/// The text of a file with these keys.
fn text_of(keys: &[KeyBytes]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(keys.len() * 128));
    for key in keys {
        text.push_str(FORM);
        text.push(' ');
        for byte in key.iter() {
            let digit = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
            text.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        text.push('\n');
    }
    text
}

/// Writes a file of keys where there is none, mode 0600.
///
/// # Errors
/// Where it is there, or can't be written.
pub(crate) fn create(path: &Path, keys: &[KeyBytes]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text_of(keys).as_bytes())?;
    file.sync_all()
}

/// Writes a file of keys in the place of another one, with that one's owner and mode.
///
/// # Errors
/// The file system's.
pub(crate) fn replace(path: &Path, keys: &[KeyBytes]) -> io::Result<()> {
    whole_file::replace_on_disk(path, text_of(keys).as_bytes())
}

/// A file that others may not read.
///
/// # Errors
/// A sentence that names the file, and what is wrong with it.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<String>, String> {
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let file = fs::File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.mode() & 0o007 != 0 {
        return Err(format!(
            "{}: mode {:04o}: every user may read it; `chmod 0600` it, or 0640 with a group",
            path.display(),
            about.mode() & 0o7777
        ));
    }
    // At its full size at once, so that no copy of a secret stays behind.
    let size = usize::try_from(about.len().min(LARGEST)).unwrap_or_default();
    let mut text = Zeroizing::new(String::with_capacity(size + 1));
    file.take(LARGEST).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn keys_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.key");
        let keys = [draw().unwrap(), draw().unwrap()];
        create(&path, &keys[..1]).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert!(create(&path, &keys).is_err(), "a file that is there stays");
        replace(&path, &keys).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(read_lines(&path).unwrap(), keys);
        let ids: Vec<_> = read_keys(&path).unwrap().iter().map(FleetKey::id).collect();
        assert_ne!(ids[0], ids[1]);
    }

    #[test]
    fn comments_and_blank_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.key");
        create(&path, &[draw().unwrap()]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("# of 2026\n\n  {} # old\n", text.trim_end())).unwrap();
        assert_eq!(read_keys(&path).unwrap().len(), 1);
    }

    #[test]
    fn mistakes_are_named_without_the_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fleet.key");
        create(&path, &[draw().unwrap()]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read_keys(&path).unwrap_err().contains("mode 0644: every user may read it"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(&path, "\nuxfrm-fleet-key-1 0123\n").unwrap();
        let why = read_keys(&path).unwrap_err();
        assert!(why.contains("line 2: `uxfrm-fleet-key-1 `") && !why.contains("0123"), "{why}");
        fs::write(&path, "# nothing\n").unwrap();
        assert!(read_keys(&path).unwrap_err().contains("no key; `uxfrm fleet init`"));
    }
}
