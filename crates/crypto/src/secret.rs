//! A box for expanded keys: aligned as its type requires, filled in place (no copy stays on a
//! stack), every byte wiped before the memory is freed.

use core::fmt;
use core::ops::{Deref, DerefMut};

/// Types that are plain bytes.
///
/// # Safety
/// All zeroes must be a valid value, and the type must own nothing (no heap memory, no drop glue),
/// so that wiping its bytes wipes all of it. Sharing `&T` between threads must be sound.
pub(crate) unsafe trait Flat {}

/// One flat secret on the heap.
pub(crate) struct Secret<T: Flat>(Box<T>);

impl<T: Flat> Secret<T> {
    /// A zeroed value.
    pub(crate) fn zeroed() -> Self {
        let mut place = Box::<T>::new_uninit();
        // SAFETY: the box has room for one T; all zeroes is a valid T, says `Flat`.
        Self(unsafe {
            place.as_mut_ptr().write_bytes(0, 1);
            place.assume_init()
        })
    }

    fn wipe(&mut self) {
        // SAFETY: T is flat: no drop glue will read it afterwards, and zeroes are a valid T.
        unsafe { zeroize::zeroize_flat_type(&raw mut *self.0) };
    }
}

// SAFETY: `Flat` says that a shared T may be read from any thread; it owns nothing that is bound to
// one.
unsafe impl<T: Flat> Send for Secret<T> {}
// SAFETY: as above.
unsafe impl<T: Flat> Sync for Secret<T> {}

impl<T: Flat> Deref for Secret<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Flat> DerefMut for Secret<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Flat> Drop for Secret<T> {
    fn drop(&mut self) {
        #[cfg(test)]
        let before = witness::nonzero_bytes(&*self.0);
        self.wipe();
        #[cfg(test)]
        witness::record(before, witness::nonzero_bytes(&*self.0));
    }
}

impl<T: Flat> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Observes what `Drop` does to the bytes, as freed memory cannot be inspected.
#[cfg(test)]
pub(crate) mod witness {
    use std::cell::RefCell;

    thread_local!(static WIPED: RefCell<Vec<(usize, usize)>> = const { RefCell::new(Vec::new()) });

    pub(super) fn nonzero_bytes<T>(value: &T) -> usize {
        let start = core::ptr::from_ref(value).cast::<u8>();
        // SAFETY: every key was zeroed as a whole, padding included, before it was filled; reads
        // stay inside it.
        (0..size_of::<T>()).filter(|i| unsafe { start.add(*i).read_volatile() } != 0).count()
    }

    pub(super) fn record(before: usize, after: usize) {
        WIPED.with_borrow_mut(|wiped| wiped.push((before, after)));
    }

    /// Non-zero bytes `(before, after)` of each secret dropped on this thread since the last call.
    pub(crate) fn taken() -> Vec<(usize, usize)> {
        WIPED.take()
    }
}
