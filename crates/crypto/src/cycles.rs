//! The time-stamp counter, for benchmarks: reading it is `unsafe`, which the bench crate forbids.
//! x86-64 only; nothing else in this crate knows a clock.

/// The TSC: constant rate, not core cycles. Read after earlier loads and instructions have
/// finished.
#[must_use]
#[inline]
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has LFENCE and RDTSC; neither touches memory.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}
