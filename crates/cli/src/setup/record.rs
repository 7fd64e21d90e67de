//! What setup did: `/etc/uxfrm/setup.json`. It has no keys, only checksums of what was written.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::host::Host;

/// Where it is.
pub(super) const RECORD: &str = "/etc/uxfrm/setup.json";

/// All that was done, in its order.
#[derive(Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(super) struct Record {
    pub(super) done: Vec<Done>,
    /// Units to restart after undoing.
    pub(super) units: Vec<String>,
    /// AppArmor profiles to load anew then.
    pub(super) profiles: Vec<PathBuf>,
}

/// One thing that was done. Paths are the host's own.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Done {
    /// A directory was made.
    Directory(PathBuf),
    /// A file was written.
    File {
        path: PathBuf,
        /// CRC-32 of its bytes: tells whether somebody has changed it since.
        crc: u32,
    },
    /// Lines were added.
    Lines {
        path: PathBuf,
        text: String,
        /// Whether the file was made for them.
        created: bool,
    },
    /// A link was made.
    Link { path: PathBuf, target: PathBuf },
}

impl Record {
    /// The record of a host; empty where nothing was set up.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    pub(super) fn load(host: &Host) -> anyhow::Result<Self> {
        let path = host.path(RECORD);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} is no record of uxfrm setup", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).context(format!("can't read {}", path.display())),
        }
    }

    /// Writes it, as one whole.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn save(&self, host: &Host) -> anyhow::Result<()> {
        let path = host.path(RECORD);
        replace(&path, &serde_json::to_vec_pretty(self)?, 0o600)
            .with_context(|| format!("can't write {}", path.display()))
    }

    /// Whether a file with these bytes was written.
    pub(super) fn wrote(&self, path: &Path) -> bool {
        self.done.iter().any(|done| matches!(done, Done::File { path: own, .. } if own == path))
    }
}

/// Whether a file's bytes are those of the checksum.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Writes a file beside its place and moves it there: nobody sees half of it, nor wrong modes.
///
/// # Errors
/// The file system's.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let file = beside(path, bytes)?;
    put(file, path, mode)
}

/// The same with a file that is there: its mode and owners stay. It must be no link.
///
/// # Errors
/// The file system's.
pub(super) fn rewrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let before = fs::symlink_metadata(path)?;
    let file = beside(path, bytes)?;
    fchown(file.as_file(), Some(before.uid()), Some(before.gid()))?;
    put(file, path, before.mode() & 0o7777)
}

fn beside(path: &Path, bytes: &[u8]) -> io::Result<NamedTempFile> {
    let directory = path.parent().unwrap_or_else(|| Path::new("/"));
    let mut file = NamedTempFile::new_in(directory)?; // 0600
    io::Write::write_all(&mut file, bytes)?;
    Ok(file)
}

fn put(file: NamedTempFile, path: &Path, mode: u32) -> io::Result<()> {
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
