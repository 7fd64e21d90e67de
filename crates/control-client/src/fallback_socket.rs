//! Finds the files that replace a gateway's abstract socket names
//! ([`uxfrm_control::fallback_socket`]).

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use nix::errno::Errno;
use uxfrm_control::fallback_socket::{DIRECTORY, LENGTH, NAMESPACE, path};

/// Where a client looks for the gateway that has `name` in this thread's network namespace, before
/// it looks there; `None` where no gateway has ever needed to be elsewhere.
#[must_use]
pub fn find(name: &[u8]) -> Option<PathBuf> {
    Path::new(DIRECTORY).exists().then(|| file(name).ok()).flatten()
}

/// The file that replaces `name` in this thread's network namespace, whether it is there or not.
///
/// # Errors
/// The kernel's; `ENAMETOOLONG` for a name that no gateway has.
pub fn file(name: &[u8]) -> io::Result<PathBuf> {
    let namespace = fs::metadata(NAMESPACE)?.ino();
    let mut bytes = [0; LENGTH];
    let length = path(namespace, name, &mut bytes).ok_or(Errno::ENAMETOOLONG)?;
    Ok(OsStr::from_bytes(&bytes[..length]).into())
}
