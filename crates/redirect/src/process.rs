//! The process that this library's memory belongs to, and whether the calling thread is one of it.
//!
//! A child of `vfork` runs in its parent's memory until `exec`, with its own descriptors: closing
//! one leaves the parent's open. Programs that start others close many (Python's `subprocess`), so
//! what such a child does to its descriptors must not be noted here.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Bytes of a page, or less.
const PAGE: usize = 4096;

/// This process's number, as long as it is known to the C library as a process.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// This process's number, in a page that is zero after any fork and shared with children of
/// `vfork`.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());

/// This process's number; 0 or another one's where it was forked behind the C library's back.
pub(crate) fn number() -> u32 {
    NUMBER.load(Ordering::Relaxed)
}

/// Notes which process this is, when it begins.
pub(crate) fn know() {
    NUMBER.store(current(), Ordering::Relaxed);
    if let Some(owner) = owner() {
        owner.store(current(), Ordering::Relaxed);
    }
}

/// Makes the page, once. Without one, children of `vfork` are not known.
pub(crate) fn prepare() {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, wherever the kernel wants it; it stays to the end of the process.
    unsafe {
        let page = libc::mmap(null_mut(), PAGE, access, kind, -1, 0);
        if page != libc::MAP_FAILED && libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) == 0 {
            OWNER.store(page.cast(), Ordering::Relaxed);
        }
    }
}

/// Whether the calling thread is a child's that only borrows this memory.
pub(crate) fn is_borrowed() -> bool {
    let known = owner().map_or(0, |owner| owner.load(Ordering::Relaxed));
    known != 0 && known != current()
}

/// Whether the calling thread is surely one of this process.
pub(crate) fn is_own() -> bool {
    current() == number()
}

fn owner() -> Option<&'static AtomicU32> {
    // SAFETY: null, or a page that is mapped to the end of the process, of which any bytes are a
    // valid number.
    unsafe { OWNER.load(Ordering::Relaxed).as_ref() }
}

fn current() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { libc::getpid() }.unsigned_abs()
}
