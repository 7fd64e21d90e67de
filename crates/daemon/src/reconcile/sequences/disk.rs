//! Where the journal of sequence numbers lies. The store asks for all it needs of a disk by
//! [`Disk`], so that a simulated one can be full, torn, lost, rolled back or slow.

use std::{
    fmt::Debug,
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    path::{Path, PathBuf},
    time::Duration,
};

use uxfrm_io::{
    state_directory::{StateDirectory, preallocate},
    text_file,
};

/// The journal's file, which one gateway has to itself.
pub(crate) trait Disk: Debug + Send {
    /// All of the file; `None` where there is none.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Has `bytes` stand in the file's place, with room for `room` bytes, and lasting when this
    /// returns. After an error the old file stands.
    fn replace(&mut self, bytes: &[u8], room: u64) -> io::Result<()>;

    /// All of the file that another process has written until now, to be written to from now on;
    /// `None` where there is none.
    fn resume(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Writes at a place of the file, lasting when this returns. After an error any part of it may
    /// be there.
    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Keeps room for a file of `room` bytes.
    fn make_room(&mut self, room: u64) -> io::Result<()>;

    /// Whether the file that is written is still what others find under its name; before the first
    /// [`Disk::replace`], the directory.
    fn is_in_place(&mut self) -> io::Result<bool>;

    /// Makes the directory anew where it was removed or replaced; the next call is
    /// [`Disk::replace`].
    fn reopen(&mut self) -> io::Result<()>;
}

/// The journal's name in its directory.
const NAME: &str = "sequences";
const NEW: &str = "sequences.new";

/// How often, and how long between, the lock is tried that another process has.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A directory of the file system.
#[derive(Debug)]
pub(crate) struct LocalDisk {
    path: PathBuf,
    directory: StateDirectory,
    file: Option<File>,
}

impl LocalDisk {
    /// Makes the directory and locks it.
    ///
    /// # Errors
    /// What keeps it from being this gateway's, and what would be right.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut directory = lock(path);
        // One that was killed, and with it its supervisor, may be about to let go of it.
        for _ in 0..LOOKS {
            match &directory {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    std::thread::sleep(PAUSE);
                    directory = lock(path);
                }
                Ok(_) | Err(_) => break,
            }
        }
        Ok(Self { path: path.to_owned(), directory: directory?, file: None })
    }

    /// The one that another process has locked until now.
    ///
    /// # Errors
    /// As [`LocalDisk::open`].
    pub(crate) fn of_lock(path: &Path, lock: OwnedFd) -> io::Result<Self> {
        let directory = StateDirectory::of_lock(path, lock)?;
        Ok(Self { path: path.to_owned(), directory, file: None })
    }

    /// The lock, for the process that goes on.
    pub(crate) fn lock(&self) -> BorrowedFd<'_> {
        self.directory.lock()
    }

    /// The journal in a directory, for who only looks; `None` where there is none.
    pub(super) fn peek(path: &Path) -> io::Result<Option<Vec<u8>>> {
        let place = path.join(NAME);
        match place.symlink_metadata() {
            // As for who runs, which follows none.
            Ok(about) if about.is_symlink() => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} has to be a regular file: `rm` what is there", place.display()),
            )),
            Ok(_) => text_file::read(&place).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("the file was not written yet"))
    }
}

impl Disk for LocalDisk {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(mut file) = self.directory.read(NAME)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn replace(&mut self, bytes: &[u8], room: u64) -> io::Result<()> {
        let file = self.directory.create(NEW)?;
        preallocate(&file, room)?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()?;
        self.directory.rename(NEW, NAME)?;
        self.file = Some(file);
        Ok(())
    }

    fn resume(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(mut file) = self.directory.open_again(NAME)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        self.file = Some(file);
        Ok(Some(bytes))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file()?;
        file.write_all_at(bytes, at)?;
        file.sync_data()
    }

    fn make_room(&mut self, room: u64) -> io::Result<()> {
        preallocate(self.file()?, room)
    }

    fn is_in_place(&mut self) -> io::Result<bool> {
        match &self.file {
            Some(file) => self.directory.is_in_place(NAME, file),
            None => self.directory.is_here(),
        }
    }

    fn reopen(&mut self) -> io::Result<()> {
        self.file = None;
        match lock(&self.path) {
            Ok(directory) => self.directory = directory,
            // The directory is the same, and the file alone was replaced: it is locked by this
            // gateway.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.is_same()? => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl LocalDisk {
    fn is_same(&self) -> io::Result<bool> {
        self.directory.is_here()
    }
}

fn lock(path: &Path) -> io::Result<StateDirectory> {
    StateDirectory::open(path).map_err(|error| {
        let kind = error.kind();
        let reason = if kind == io::ErrorKind::WouldBlock {
            "another uxfrm that runs has it; `[xfrm] sequences` names a directory for each"
                .to_owned()
        } else if matches!(kind, io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists) {
            "it must be a directory, and no symbolic link; `[xfrm] sequences` names another"
                .to_owned()
        } else {
            format!("{error}; `[xfrm] sequences` names another directory")
        };
        io::Error::new(error.kind(), reason)
    })
}
