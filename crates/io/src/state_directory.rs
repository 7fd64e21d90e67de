//! A directory owned by one process, for files that outlive it.
//!
//! The lock is on the directory's inode, so no other path, symbolic link or removed lock file
//! admits a second process; a replaced directory is detected ([`StateDirectory::is_in_place`]).

use std::{
    fs::{DirBuilder, File, OpenOptions, TryLockError},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{FallocateFlags, OFlag, fallocate, openat, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, unlinkat},
};

/// A locked directory.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    directory: File,
}

impl StateDirectory {
    /// Creates the directory if necessary, for its owner alone, and locks it.
    ///
    /// # Errors
    /// `EWOULDBLOCK` when another process has it; `ENOTDIR` where `path` is a file or a symbolic
    /// link; the kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let directory = open_directory(path)?;
        match directory.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), directory }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Continues with a predecessor's lock.
    ///
    /// # Errors
    /// `EWOULDBLOCK` when the descriptor does not hold it; the kernel's.
    pub fn of_lock(path: &Path, directory: OwnedFd) -> io::Result<Self> {
        let directory = File::from(directory);
        match directory.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), directory }),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The descriptor with the lock, for a successor process.
    #[must_use]
    pub fn lock(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its path still leads to it.
    ///
    /// # Errors
    /// The kernel's, except that nothing is there.
    pub fn is_here(&self) -> io::Result<bool> {
        is_at(&self.path, &self.directory)
    }

    /// Whether its path still leads to it, and its file `name` is still `file`.
    ///
    /// # Errors
    /// The kernel's, except that nothing is there.
    pub fn is_in_place(&self, name: &str, file: &File) -> io::Result<bool> {
        Ok(self.is_here()? && is_at(&self.path.join(name), file)?)
    }

    /// Opens a file for reading; `None` if it is missing. Does not wait for a FIFO.
    ///
    /// # Errors
    /// The kernel's; [`io::ErrorKind::InvalidInput`] if it is no regular file.
    pub fn read(&self, name: &str) -> io::Result<Option<File>> {
        self.open_regular(name, OFlag::O_RDONLY)
    }

    /// Opens a file for reading and writing; `None` where there is none.
    ///
    /// # Errors
    /// As [`StateDirectory::read`].
    pub fn open_again(&self, name: &str) -> io::Result<Option<File>> {
        self.open_regular(name, OFlag::O_RDWR)
    }

    fn open_regular(&self, name: &str, access: OFlag) -> io::Result<Option<File>> {
        let flags = access | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(nix::Error::ENOENT) => return Ok(None),
            Err(nix::Error::ELOOP) => return Err(irregular(&self.path, name)),
            Err(error) => return Err(error.into()),
        };
        if file.metadata()?.is_file() { Ok(Some(file)) } else { Err(irregular(&self.path, name)) }
    }

    /// Creates an empty file for its owner alone. An existing one is removed unopened, as it may be
    /// a FIFO.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(&self, name: &str) -> io::Result<File> {
        match unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::Error::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        Ok(openat(&self.directory, name, flags, mode)?.into())
    }

    /// Renames a file over an existing one, and syncs that to the disk.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        renameat(&self.directory, from, &self.directory, to)?;
        self.directory.sync_all()
    }
}

/// Allocates the first `length` bytes of a file on disk, zeros where nothing was written.
///
/// # Errors
/// The kernel's, `ENOSPC` first of all. File systems without that feature do nothing, without an
/// error.
pub fn preallocate(file: &File, length: u64) -> io::Result<()> {
    let length = i64::try_from(length).map_err(io::Error::other)?;
    match fallocate(file.as_fd(), FallocateFlags::empty(), 0, length) {
        Ok(()) | Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn irregular(directory: &Path, name: &str) -> io::Error {
    let place = directory.join(name);
    let message = format!("{} has to be a regular file: `rm` what is there", place.display());
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
}

fn is_at(path: &Path, file: &File) -> io::Result<bool> {
    let here = file.metadata()?;
    match path.symlink_metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (here.dev(), here.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("uxfrm-{name}-{}", std::process::id()));
        let _none_yet = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn directory_has_one_owner_by_whatever_path() {
        let scratch = scratch("owner");
        let (path, other) = (scratch.join("deep/gw"), scratch.join("alias"));
        let first = StateDirectory::open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        symlink(scratch.join("deep"), &other).unwrap();
        for again in [&path, &other.join("gw")] {
            let error = StateDirectory::open(again).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        drop(first);
        StateDirectory::open(&other.join("gw")).unwrap();
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn symbolic_link_or_file_is_no_directory() {
        let scratch = scratch("link");
        let (path, link, file) = (scratch.join("gw"), scratch.join("link"), scratch.join("file"));
        fs::create_dir(&path).unwrap();
        symlink(&path, &link).unwrap();
        fs::write(&file, "").unwrap();
        for wrong in [link, file] {
            let error = StateDirectory::open(&wrong).unwrap_err();
            assert!(
                matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists),
                "{error:?}"
            );
        }
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn non_regular_file_is_refused_without_blocking() {
        let scratch = scratch("irregular");
        let directory = StateDirectory::open(&scratch.join("gw")).unwrap();
        let elsewhere = scratch.join("elsewhere");
        fs::write(&elsewhere, "kept").unwrap();
        let fifo = |path: &Path| nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap();
        let link = |path: &Path| symlink(&elsewhere, path).unwrap();
        let device = |path: &Path| symlink("/dev/zero", path).unwrap();
        let makes: [&dyn Fn(&Path); 3] = [&fifo, &link, &device];
        for make in makes {
            make(&directory.path().join("a"));
            for opened in [directory.read("a"), directory.open_again("a")] {
                assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            }
            assert!(directory.create("a").unwrap().metadata().unwrap().is_file());
            fs::remove_file(directory.path().join("a")).unwrap();
        }
        fs::create_dir(directory.path().join("a")).unwrap();
        assert_eq!(directory.read("a").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(fs::read(&elsewhere).unwrap(), b"kept");
        fs::remove_dir_all(scratch).unwrap();
    }

    #[test]
    fn replaced_state_directory_is_detected() {
        let scratch = scratch("replaced");
        let path = scratch.join("gw");
        let directory = StateDirectory::open(&path).unwrap();
        let file = directory.create("a").unwrap();
        let in_place = || directory.is_in_place("a", &file).unwrap();
        assert!(in_place());
        fs::rename(path.join("a"), path.join("b")).unwrap();
        assert!(!in_place(), "the file has another name");
        fs::write(path.join("a"), "").unwrap();
        assert!(!in_place(), "another file has its name");
        fs::rename(path.join("b"), path.join("a")).unwrap();
        assert!(in_place());
        fs::rename(&path, scratch.join("moved")).unwrap();
        assert!(!in_place(), "the directory has another name");
        fs::create_dir(&path).unwrap();
        assert!(!in_place(), "another directory has its name");
        fs::remove_dir_all(scratch).unwrap();
    }
}
