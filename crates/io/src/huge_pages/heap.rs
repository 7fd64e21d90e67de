//! Puts the system allocator's heap into huge pages once it is large.
//!
//! Does what glibc does under `GLIBC_TUNABLES=glibc.malloc.hugetlb=1`, which must be set before a
//! program starts and applies to small programs as well. Other C libraries' heaps stay as they are.

/// Passes a block through; a block beyond the known heap triggers `madvise` for the new part.
#[inline]
pub(super) fn with(block: *mut u8) -> *mut u8 {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    glibc::note_growth(block);
    block
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod glibc {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use crate::huge_pages::HUGE_PAGE;

    /// Start of the heap's part without `madvise`; 0 until the first block.
    static BEYOND: AtomicUsize = AtomicUsize::new(0);

    /// A smaller heap keeps normal pages.
    const SMALL: usize = 1 << 20;
    /// A large heap grows by this many untouched bytes.
    const STEP: usize = 64 << 20;

    #[inline]
    pub(super) fn note_growth(block: *mut u8) {
        let beyond = BEYOND.load(Relaxed);
        // Arenas of other threads and mapped blocks are far above the heap.
        if block.addr().wrapping_sub(beyond) < STEP || beyond == 0 {
            advise(beyond);
        }
    }

    #[cold]
    fn advise(beyond: usize) {
        // SAFETY: an increment of 0 only tells where the heap ends.
        let end = unsafe { libc::sbrk(0) }.addr();
        let next = if beyond == 0 { end + SMALL } else { end.max(beyond) };
        if BEYOND.compare_exchange(beyond, next, Relaxed, Relaxed).is_err() {
            return; // another thread does it
        }
        if beyond == 0 {
            // Threads' own arenas are mapped piecemeal; no thread here allocates so often that one
            // heap for all is a bottleneck. SAFETY: any value is allowed, and the allocator is not
            // in use by this thread.
            unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
            return;
        }
        // Setting one of these disables glibc's adaptation of the others, so all are set.
        for (parameter, bytes) in [
            (libc::M_TOP_PAD, STEP),
            (libc::M_TRIM_THRESHOLD, 4 * STEP),
            (libc::M_MMAP_THRESHOLD, HUGE_PAGE),
        ] {
            // SAFETY: as above.
            unsafe { libc::mallopt(parameter, i32::try_from(bytes).unwrap_or(i32::MAX)) };
        }
        let start = beyond.next_multiple_of(HUGE_PAGE);
        if let Some(len) = end.checked_sub(start) {
            let start = std::ptr::without_provenance_mut(start);
            // SAFETY: of the heap, which is mapped up to `end`; advice changes no content.
            unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
        }
    }
}
