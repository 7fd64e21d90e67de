//! Memory mappings shared with the kernel.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::{NonNull, null_mut};

/// Pages that are mapped while this lives.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Zeroed pages of nobody else's.
    #[cfg(test)]
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: a new mapping, wherever the kernel wants it.
        Self::of(unsafe { libc::mmap(null_mut(), len, ACCESS, flags, -1, 0) }, len)
    }

    /// Maps a descriptor at an offset.
    pub(super) fn shared(
        descriptor: BorrowedFd<'_>,
        offset: libc::off_t,
        len: usize,
    ) -> io::Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let fd = descriptor.as_raw_fd();
        // SAFETY: a new mapping, wherever the kernel wants it.
        Self::of(unsafe { libc::mmap(null_mut(), len, ACCESS, flags, fd, offset) }, len)
    }

    fn of(start: *mut libc::c_void, len: usize) -> io::Result<Self> {
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Pointer to `count` values at offset `at`; `None` if they don't fit or are misaligned.
    pub(super) fn place<T>(&self, at: usize, count: usize) -> Option<NonNull<T>> {
        let end = size_of::<T>().checked_mul(count)?.checked_add(at)?;
        // SAFETY: not beyond the end of the mapping.
        let place = (end <= self.len).then(|| unsafe { self.start.add(at) })?;
        place.cast::<T>().is_aligned().then_some(place.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing that points into it outlives this.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

const ACCESS: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_place_checks_bounds_and_alignment() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(mapping.place::<u64>(4088, 1).is_some());
        assert!(mapping.place::<u64>(4088, 2).is_none());
        assert!(mapping.place::<u64>(4, 1).is_none());
        assert!(mapping.place::<u64>(usize::MAX, 1).is_none());
        assert!(mapping.place::<u64>(0, usize::MAX).is_none());
    }
}
