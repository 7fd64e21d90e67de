//! Fetching memory before it is needed.

/// Asks the processor to bring what `target` begins with into its first-level cache. A hint: nothing is read, nothing waits.
#[inline]
pub fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the intrinsic is unsafe for arbitrary pointers only")]
    // SAFETY: PREFETCHT0 never faults, and every x86-64 processor has it; `target` is a valid address besides.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(target).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
