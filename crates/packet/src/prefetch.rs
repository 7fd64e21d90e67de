//! Prefetching of memory.

/// Prefetches the first cache line of `target` into the L1 cache. A hint: nothing is read, nothing
/// waits.
#[inline]
pub fn prefetch<T>(target: &T) {
    fetch(core::ptr::from_ref(target).cast());
}

/// Like [`prefetch`], for every cache line of `target`.
#[inline]
pub fn prefetch_whole<T>(target: &T) {
    lines(target).for_each(fetch);
}

/// Like [`prefetch`], into the L2 cache: for many lines at once. L1 waits for a dozen or two lines
/// at a time, and then stalls or drops further requests; L2 waits for several times as many.
#[inline]
pub fn prefetch_far<T>(target: &T) {
    fetch_far(core::ptr::from_ref(target).cast());
}

/// Like [`prefetch_far`], for every cache line of `target`.
#[inline]
pub fn prefetch_far_whole<T>(target: &T) {
    lines(target).for_each(fetch_far);
}

/// Like [`prefetch_far`], for the first `count` cache lines of `target`.
#[inline]
pub fn prefetch_far_first<T>(target: &T, count: usize) {
    lines(target).take(count).for_each(fetch_far);
}

/// Like [`prefetch`], for `count` cache lines of a slice, from its first element on. Lines beyond
/// the slice are replaced by the last element's, and for an empty slice by any: always the same
/// work, without a branch.
#[inline]
pub fn prefetch_first<T>(targets: &[T], count: usize) {
    let (first, last) = (targets.as_ptr(), targets.len().wrapping_sub(1));
    for line in 0..count {
        fetch(first.wrapping_add(last.min(line * CACHE_LINE / size_of::<T>().max(1))).cast());
    }
}

/// Bytes per cache line.
const CACHE_LINE: usize = 64;

#[inline]
fn lines<T>(target: &T) -> impl Iterator<Item = *const u8> {
    let first = core::ptr::from_ref(target).cast::<u8>();
    (0..size_of::<T>()).step_by(CACHE_LINE).map(move |at| first.wrapping_add(at))
}

#[inline]
fn fetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the intrinsic takes a pointer")]
    // SAFETY: PREFETCHT0 never faults, whatever the address, and every x86-64 processor has it.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[inline]
fn fetch_far(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the intrinsic takes a pointer")]
    // SAFETY: PREFETCHT1 never faults, whatever the address, and every x86-64 processor has it.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
