//! The time-stamp counter, for benchmarks: here, because reading it is `unsafe` and the bench crate has none of that.
//! On x86-64 only; nothing else in this crate knows a clock.

/// The TSC now: constant rate, not core cycles. Earlier loads and instructions have finished when it is read.
#[must_use]
#[inline]
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has LFENCE and RDTSC; neither touches memory.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}
