//! Tables too large for the processor's address caches, in huge pages where the system has them.
//!
//! A table that is read at random has a page for each entry, as good as: with pages of 4 KiB, finding the page costs more than the read.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use zerocopy::FromZeros;

/// A fixed number of elements that begin as zeros, aligned to a cache line. A large one takes memory only where it is written, and in
/// huge pages if `/sys/kernel/mm/transparent_hugepage/enabled` says `always` or `madvise`.
pub struct ZeroedTable<T> {
    elements: NonNull<T>,
    len: usize,
    home: Home,
    owned: PhantomData<T>,
}

/// Where its memory is from.
#[derive(Clone, Copy, Debug)]
enum Home {
    /// Nowhere: it has no bytes.
    None,
    Heap(Layout),
    /// Pages of its own: address, and bytes.
    #[cfg(target_os = "linux")]
    Pages(NonNull<u8>, usize),
}

/// From so many bytes on, pages of its own.
#[cfg(target_os = "linux")]
const HUGE_PAGE: usize = 2 << 20;
const CACHE_LINE: usize = 64;

impl<T: FromZeros + Copy> ZeroedTable<T> {
    /// So many elements.
    ///
    /// # Panics
    /// When `len` elements are more bytes than there are addresses. Ends the process when there is no memory, as collections do.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let layout = Layout::array::<T>(len).and_then(|layout| layout.align_to(CACHE_LINE));
        let Ok(layout) = layout else { panic!("a table of {len} elements has no address") };
        let (memory, home) = match layout.size() {
            0 => (NonNull::<T>::dangling().cast(), Home::None),
            #[cfg(target_os = "linux")]
            HUGE_PAGE.. if layout.align() <= HUGE_PAGE => pages(layout),
            _ => heap(layout),
        };
        Self { elements: memory.cast(), len, home, owned: PhantomData }
    }
}

impl<T> Deref for ZeroedTable<T> {
    type Target = [T];

    #[inline]
    #[expect(unsafe_code, reason = "memory of its own")]
    fn deref(&self) -> &[T] {
        // SAFETY: `elements` is aligned for `T` and begins `len` of them, which were zeroed (`FromZeros`) and are this table's alone.
        unsafe { std::slice::from_raw_parts(self.elements.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for ZeroedTable<T> {
    #[inline]
    #[expect(unsafe_code, reason = "memory of its own")]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.elements.as_ptr(), self.len) }
    }
}

impl<T> Drop for ZeroedTable<T> {
    #[expect(unsafe_code, reason = "memory of its own")]
    fn drop(&mut self) {
        match self.home {
            Home::None => {}
            // SAFETY: this memory came from `alloc_zeroed` with this layout; elements are `Copy` and need no drop.
            Home::Heap(layout) => unsafe { dealloc(self.elements.as_ptr().cast(), layout) },
            #[cfg(target_os = "linux")]
            Home::Pages(start, len) => {
                // SAFETY: exactly what `mmap` gave, and nothing refers to it any more. It cannot fail then.
                unsafe { libc::munmap(start.as_ptr().cast(), len) };
            }
        }
    }
}

#[expect(unsafe_code, reason = "memory of its own is what the type is for")]
// SAFETY: it owns its elements as a `Box<[T]>` does.
unsafe impl<T: Send> Send for ZeroedTable<T> {}

#[expect(unsafe_code, reason = "memory of its own is what the type is for")]
// SAFETY: shared references give shared references to elements only, as with a `Box<[T]>`.
unsafe impl<T: Sync> Sync for ZeroedTable<T> {}

impl<T> fmt::Debug for ZeroedTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZeroedTable").field("len", &self.len).field("home", &self.home).finish()
    }
}

#[expect(unsafe_code, reason = "memory of its own")]
fn heap(layout: Layout) -> (NonNull<u8>, Home) {
    // SAFETY: the layout's size is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    match NonNull::new(memory) {
        Some(memory) => (memory, Home::Heap(layout)),
        None => handle_alloc_error(layout),
    }
}

/// From a huge page's boundary on, with what it takes to get there before it and behind it: memory that is not written costs nothing.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "memory of its own")]
fn pages(layout: Layout) -> (NonNull<u8>, Home) {
    let whole = layout.size().next_multiple_of(HUGE_PAGE);
    let len = whole.saturating_add(HUGE_PAGE);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    let start = match NonNull::new(start.cast::<u8>()) {
        Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => start,
        Some(_) | None => handle_alloc_error(layout),
    };
    let before = start.as_ptr().addr().wrapping_neg() % HUGE_PAGE;
    // SAFETY: less than a huge page, and the mapping is longer than one.
    let memory = unsafe { start.add(before) };
    // SAFETY: the range is inside the mapping. Advice that is not taken does no harm.
    unsafe { libc::madvise(memory.as_ptr().cast(), whole, libc::MADV_HUGEPAGE) };
    (memory, Home::Pages(start, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_all_sizes_are_zero_aligned_and_their_own() {
        for len in [0, 1, 7, 4096, (2 << 20) / 8 - 1, (2 << 20) / 8, 1_000_003] {
            let mut tables = [ZeroedTable::<u64>::new(len), ZeroedTable::new(len)];
            for (table, number) in tables.iter_mut().zip(1..) {
                assert_eq!(table.len(), len);
                assert!(table.iter().all(|word| *word == 0));
                assert!(len == 0 || table.as_ptr().addr().is_multiple_of(CACHE_LINE));
                table.fill(number);
            }
            assert!(tables.iter().zip(1..).all(|(table, n)| table.iter().all(|word| *word == n)));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn large_tables_begin_on_a_huge_page() {
        let table = ZeroedTable::<u32>::new(HUGE_PAGE);
        assert!(table.as_ptr().addr().is_multiple_of(HUGE_PAGE));
    }
}
