//! Fetching memory before it is needed.

/// Asks the processor to bring what `target` begins with into its first-level cache. A hint: nothing is read, nothing waits.
#[inline]
pub fn prefetch<T>(target: &T) {
    fetch(core::ptr::from_ref(target).cast());
}

/// As [`prefetch`], of every cache line of `target`.
#[inline]
pub fn prefetch_whole<T>(target: &T) {
    lines(target).for_each(fetch);
}

/// As [`prefetch`], into the second-level cache: for many at once. The first level waits for few lines at a time, a dozen or two, and then holds up
/// whoever asks for more, or forgets them; the second one waits for several times as many.
#[inline]
pub fn prefetch_far<T>(target: &T) {
    fetch_far(core::ptr::from_ref(target).cast());
}

/// As [`prefetch_far`], of every cache line of `target`.
#[inline]
pub fn prefetch_far_whole<T>(target: &T) {
    lines(target).for_each(fetch_far);
}

/// As [`prefetch_far`], of the first cache lines of `target`, so many of them.
#[inline]
pub fn prefetch_far_first<T>(target: &T, count: usize) {
    lines(target).take(count).for_each(fetch_far);
}

/// As [`prefetch`], of so many cache lines of a slice from its first element on; in place of those that it has not of the one with its last element,
/// and for an empty slice of whatever is there: always as much work, without a branch.
#[inline]
pub fn prefetch_first<T>(targets: &[T], count: usize) {
    let (first, last) = (targets.as_ptr(), targets.len().wrapping_sub(1));
    for line in 0..count {
        fetch(first.wrapping_add(last.min(line * CACHE_LINE / size_of::<T>().max(1))).cast());
    }
}

/// Bytes that come at once.
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
