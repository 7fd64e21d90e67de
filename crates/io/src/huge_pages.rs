//! A global allocator that puts large tables and large heaps into huge pages.
//!
//! Random reads of a table touch about one page per entry: with 4 KiB pages the TLB miss costs more
//! than the read. The crates that own such tables make no system calls, so the program's allocator
//! does it, for large blocks and for many small ones: trees of policies are small blocks all over
//! the heap.

mod heap;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;

/// An allocator for `#[global_allocator]`: blocks of 2 MiB and more begin on a huge page, are
/// mapped on first touch, and ask for huge pages (`/sys/kernel/mm/transparent_hugepage/enabled`:
/// `always` or `madvise`). Others are the system allocator's, whose heap grows by many huge pages
/// and asks for them beyond 1 MiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct HugePages;

/// On x86-64, and on AArch64 with 4 KiB pages.
const HUGE_PAGE: usize = 2 << 20;

// SAFETY: a layout alone decides who has a block, so that each block is given back to where it came
// from; both give blocks as long and as aligned as the layout says.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promises are the system allocator's.
        heap::with(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: as in `alloc`.
        heap::with(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: `map` or `move_to` gave these pages for a layout of this size.
            unsafe { libc::munmap(block.cast(), whole(layout.size())) };
            return;
        }
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises that `size` fits a layout of this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (is_large(layout), is_large(new)) {
            // SAFETY: as in `alloc`.
            (false, false) => unsafe { System.realloc(block, layout, size) },
            // SAFETY: `block` is of `layout`, and `new` is what the caller asks for.
            (false, true) | (true, false) | (true, true) => unsafe {
                self.move_to(block, layout, new)
            },
        }
    }
}

impl HugePages {
    /// Moves a block to the allocator of its new size.
    ///
    /// # Safety
    /// `block` is of this allocator and of layout `old`.
    unsafe fn move_to(self, block: *mut u8, old: Layout, new: Layout) -> *mut u8 {
        // SAFETY: no block has size 0: the caller of `realloc` promises that.
        let to = unsafe { self.alloc(new) };
        if !to.is_null() {
            // SAFETY: both blocks are at least as long, and a new one overlaps no other.
            unsafe { to.copy_from_nonoverlapping(block, old.size().min(new.size())) };
            // SAFETY: the caller's promise; nobody uses the old block any more.
            unsafe { self.dealloc(block, old) };
        }
        to
    }
}

const fn is_large(layout: Layout) -> bool {
    layout.size() >= HUGE_PAGE && layout.align() <= HUGE_PAGE
}

/// At least any system's page size.
const PAGE: usize = 64 << 10;

/// Size of a block in whole huge pages, except the few bytes that power-of-two tables have behind
/// their slots. `is_large` layouts are below `isize::MAX`, so it does not overflow.
const fn whole(size: usize) -> usize {
    let is_little_more = size % HUGE_PAGE <= PAGE;
    size.next_multiple_of(if is_little_more { PAGE } else { HUGE_PAGE })
}

/// Zeroed pages from a huge page's boundary on; null where there are none.
fn map(size: usize) -> *mut u8 {
    let (len, more) = (whole(size), whole(size).saturating_add(HUGE_PAGE));
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that
    // exists.
    let start = unsafe { libc::mmap(null_mut(), more, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return null_mut();
    }
    let start = start.cast::<u8>();
    let before = start.addr().wrapping_neg() % HUGE_PAGE;
    // SAFETY: less than a huge page, and the mapping is longer than one; the same for what is left
    // behind the block.
    let (block, behind) = unsafe { (start.add(before), start.add(before + len)) };
    for (unused, len) in [(start, before), (behind, HUGE_PAGE - before)] {
        if len != 0 {
            // SAFETY: of the mapping just made, outside the block; its ends are whole pages.
            unsafe { libc::munmap(unused.cast(), len) };
        }
    }
    // SAFETY: the block is inside the mapping. Advice that is not taken does no harm.
    unsafe { libc::madvise(block.cast(), len, libc::MADV_HUGEPAGE) };
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 7] = [
        1,
        4096,
        HUGE_PAGE - 1,
        HUGE_PAGE,
        HUGE_PAGE + 1,
        2 * HUGE_PAGE + 123_456,
        3 * HUGE_PAGE + 12_345,
    ];

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 64).unwrap()
    }

    fn bytes(block: *mut u8, size: usize) -> &'static mut [u8] {
        assert!(!block.is_null());
        // SAFETY: the tests use a block only between its allocation and its end.
        unsafe { std::slice::from_raw_parts_mut(block, size) }
    }

    #[test]
    fn blocks_are_zeroed_aligned_and_their_own() {
        for size in SIZES {
            // SAFETY: the size is not 0.
            let blocks = [(); 2].map(|()| unsafe { HugePages.alloc_zeroed(layout(size)) });
            for (block, number) in blocks.into_iter().zip(1..) {
                let whole_page = if size >= HUGE_PAGE { HUGE_PAGE } else { 64 };
                assert!(block.addr().is_multiple_of(whole_page));
                assert!(bytes(block, size).iter().all(|byte| *byte == 0));
                bytes(block, size).fill(number);
            }
            for (block, number) in blocks.into_iter().zip(1..) {
                assert!(bytes(block, size).iter().all(|byte| *byte == number));
                // SAFETY: allocated above with this layout.
                unsafe { HugePages.dealloc(block, layout(size)) };
            }
        }
    }

    #[test]
    fn block_slightly_above_huge_pages_takes_no_extra_page() {
        for (size, bytes) in [(0, 0), (16, PAGE), (PAGE + 1, HUGE_PAGE)] {
            assert_eq!(whole(3 * HUGE_PAGE + size), 3 * HUGE_PAGE + bytes);
        }
    }

    #[test]
    fn realloc_moves_content() {
        for from in SIZES {
            for to in SIZES {
                // SAFETY: the size is not 0.
                let block = unsafe { HugePages.alloc(layout(from)) };
                let content = |at: usize| at.to_le_bytes()[0] ^ at.to_le_bytes()[1];
                bytes(block, from)
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, byte)| *byte = content(at));
                // SAFETY: allocated above with this layout.
                let moved = unsafe { HugePages.realloc(block, layout(from), to) };
                let kept = &bytes(moved, to)[..from.min(to)];
                assert!(kept.iter().enumerate().all(|(at, byte)| *byte == content(at)));
                // SAFETY: moved there by `realloc`.
                unsafe { HugePages.dealloc(moved, layout(to)) };
            }
        }
    }

    #[test]
    fn allocation_beyond_memory_returns_null() {
        let huge = Layout::from_size_align(isize::MAX as usize & !(HUGE_PAGE - 1), 64).unwrap();
        // SAFETY: the size is not 0.
        assert!(unsafe { HugePages.alloc(huge) }.is_null());
    }
}
