//! A file mapped as words that outlive the process: stored words are in the file however the
//! process ends.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    ptr::null_mut,
    slice,
    sync::atomic::AtomicU64,
};

use nix::fcntl::{FallocateFlags, fallocate};

/// Words of a file. They stay mapped until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct MappedFile {
    words: &'static [AtomicU64],
}

impl MappedFile {
    /// Sets the file's length to `words` words and maps it. Only words with
    /// [room](MappedFile::make_room) may be touched.
    ///
    /// # Errors
    /// The kernel's.
    pub fn map(file: &File, words: usize) -> io::Result<Self> {
        let length = words * size_of::<AtomicU64>();
        file.set_len(length as u64)?;
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, wherever the kernel wants it.
        let memory = unsafe { libc::mmap(null_mut(), length, access, shared, file.as_raw_fd(), 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping has so many words, is aligned to a page, is never unmapped, and is
        // read and written by atomic operations alone. Where the file has no room a touch ends the
        // process by SIGBUS, which is no undefined behaviour.
        let words = unsafe { slice::from_raw_parts(memory.cast::<AtomicU64>(), words) };
        Ok(Self { words })
    }

    /// Makes the file system allocate the first `words` words.
    ///
    /// # Errors
    /// The kernel's, `ENOSPC` first of all.
    pub fn make_room(file: &File, words: usize) -> io::Result<()> {
        let length = i64::try_from(words * size_of::<AtomicU64>()).map_err(io::Error::other)?;
        Ok(fallocate(file.as_fd(), FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, length)?)
    }

    /// The words.
    #[must_use]
    pub const fn words(&self) -> &'static [AtomicU64] {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::atomic::Ordering};

    use super::*;

    #[test]
    fn stored_words_are_in_the_file() {
        let path = std::env::temp_dir().join(format!("uxfrm-mapped-{}", std::process::id()));
        let options = fs::OpenOptions::new().read(true).write(true).create(true).clone();
        let file = options.clone().truncate(true).open(&path).unwrap();
        let mapped = MappedFile::map(&file, 1 << 20).unwrap();
        MappedFile::make_room(&file, 512).unwrap();
        mapped.words()[3].store(0x0102_0304, Ordering::Relaxed);
        mapped.words()[3].fetch_max(0x0102_0305, Ordering::Relaxed);
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 8 << 20);
        assert_eq!(bytes[24..32], 0x0102_0305_u64.to_ne_bytes());
        fs::remove_file(path).unwrap();
    }
}
