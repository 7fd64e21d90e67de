//! Where the witness lies: memory that outlives the process but not the machine. The store asks for
//! it by [`WitnessStorage`], so that a simulation has a machine of its own.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::atomic::AtomicU64,
};

use nix::libc;
use uxfrm_io::mapped_file::MappedFile;

/// Where the witness of this run and of the last one lie.
pub(crate) trait WitnessStorage: Debug + Send + Sync {
    /// Its name, for people.
    fn name(&self) -> String;

    /// What tells a boot of the machine from all others.
    fn boot(&self) -> Option<u128>;

    /// What the last run left, if it left anything.
    fn read(&self) -> Option<Box<dyn Read>>;

    /// Makes the memory of this run, of so many words at the most, beside that of the last.
    ///
    /// # Errors
    /// The kernel's: where there is no `/run` to write to, stores do without.
    fn create(&self, most: usize) -> io::Result<Box<dyn WitnessMemory>>;
}

/// The witness of one run. What is stored stays, however the process ends.
pub(crate) trait WitnessMemory: Debug + Send + Sync {
    /// The words; only those for which there is room may be touched.
    fn words(&self) -> &'static [AtomicU64];

    /// Makes room for so many.
    ///
    /// # Errors
    /// The kernel's, `ENOSPC` first of all.
    fn make_room(&self, words: usize) -> io::Result<()>;

    /// Takes the place of the last run's.
    ///
    /// # Errors
    /// The kernel's.
    fn settle(&self) -> io::Result<()>;

    /// Gives back all but so many words: nobody touches the others any more.
    ///
    /// # Errors
    /// The kernel's.
    fn shrink(&self, words: usize) -> io::Result<()>;
}

/// A file in `/run`.
#[derive(Debug)]
pub(crate) struct RunFile(pub(super) PathBuf);

#[derive(Debug)]
struct MappedRunFile {
    path: PathBuf,
    file: File,
    words: &'static [AtomicU64],
}

impl WitnessStorage for RunFile {
    fn name(&self) -> String {
        self.0.display().to_string()
    }

    fn boot(&self) -> Option<u128> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    }

    fn read(&self) -> Option<Box<dyn Read>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.0).ok()?;
        file.metadata().ok()?.is_file().then(|| Box::new(file) as Box<dyn Read>)
    }

    fn create(&self, most: usize) -> io::Result<Box<dyn WitnessMemory>> {
        if let Some(directory) = self.0.parent() {
            fs::create_dir_all(directory)?;
        }
        let place = beside(&self.0);
        // What is left of another is not opened: it may be a FIFO, or lead elsewhere.
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(place)?;
        let words = MappedFile::map(&file, most)?.words();
        Ok(Box::new(MappedRunFile { path: self.0.clone(), file, words }))
    }
}

impl WitnessMemory for MappedRunFile {
    fn words(&self) -> &'static [AtomicU64] {
        self.words
    }

    fn make_room(&self, words: usize) -> io::Result<()> {
        MappedFile::make_room(&self.file, words)
    }

    fn settle(&self) -> io::Result<()> {
        fs::rename(beside(&self.path), &self.path)
    }

    fn shrink(&self, words: usize) -> io::Result<()> {
        self.file.set_len((words * size_of::<u64>()) as u64)
    }
}

/// The name that the file has until it takes the other's place.
fn beside(path: &std::path::Path) -> PathBuf {
    path.with_extension("windows.new")
}
