//! Files by whose locks (`flock`) gateways of a user keep out of each other's way.
//!
//! Any user may lock a file or directory that may be opened, for as long as it likes: nobody but
//! the owner may open these.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    libc,
    unistd::Uid,
};

/// Mode bits of a lock file that nobody but its owner may open.
const OWNER_ALONE: u32 = 0o600;
/// Those that it must not have.
const OTHERS: u32 = 0o077;

/// The file whose lock a gateway has that has the directory.
pub(super) fn of(directory: &Path) -> PathBuf {
    directory.with_extension("lock")
}

/// Locks a file for us alone, once nobody has it.
///
/// # Errors
/// The kernel's.
pub(super) fn wait(path: &Path) -> io::Result<Flock<File>> {
    let mut file = open(path)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(locked) => return Ok(locked),
            Err((same, Errno::EINTR)) => file = same,
            Err((_, errno)) => return Err(errno.into()),
        }
    }
}

/// Locks a file, if nobody else has it.
///
/// # Errors
/// `EAGAIN` when somebody has; the kernel's.
pub(super) fn at_once(path: &Path, how: FlockArg) -> io::Result<Flock<File>> {
    Flock::lock(open(path)?, how).map_err(|(_, errno)| errno.into())
}

/// Opens it, in a directory that is ours alone. What an earlier owner of the directory has left
/// there, or what others may open, is replaced; whatever else fails leaves it, as somebody may have
/// its lock.
fn open(path: &Path) -> io::Result<File> {
    open_own(path).or_else(|error| match error.raw_os_error().map(Errno::from_raw) {
        // No file of ours alone; a link; a file of somebody else's.
        Some(Errno::EPERM | Errno::ELOOP | Errno::EACCES) => {
            fs::remove_file(path)?;
            open_own(path)
        }
        Some(_) | None => Err(error),
    })
}

fn open_own(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.write(true).create(true).mode(OWNER_ALONE).custom_flags(libc::O_NOFOLLOW);
    let file = how.open(path)?;
    let found = file.metadata()?;
    let own = Uid::effective().as_raw();
    let safe = found.is_file() && found.uid() == own && found.mode() & OTHERS == 0;
    if safe { Ok(file) } else { Err(Errno::EPERM.into()) }
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn nobody_but_the_owner_may_open_a_lock_file() {
        let place = tempfile::tempdir().unwrap();
        let path = of(&place.path().join("4026531833"));
        assert!(path.ends_with("4026531833.lock"));
        let held = at_once(&path, FlockArg::LockSharedNonblock).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, OWNER_ALONE);
        assert!(at_once(&path, FlockArg::LockSharedNonblock).is_ok(), "a successor");
        let alone = at_once(&path, FlockArg::LockExclusiveNonblock);
        assert_eq!(alone.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        drop(wait(&path).unwrap());
    }

    #[test]
    fn a_file_that_others_may_lock_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("lock");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let others = Flock::lock(File::open(&path).unwrap(), FlockArg::LockExclusive).unwrap();
        assert!(at_once(&path, FlockArg::LockExclusiveNonblock).is_ok());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, OWNER_ALONE);
        drop(others);
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(at_once(&path, FlockArg::LockExclusiveNonblock).is_ok());
        assert!(!place.path().join("elsewhere").exists(), "no link is followed");
    }
}
