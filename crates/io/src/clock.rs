//! Clocks for callers that take time as an argument.

/// Nanoseconds since the machine started, time asleep included (`CLOCK_BOOTTIME`): it never steps,
/// and lifetimes run on while the machine sleeps, as the kernel's do.
#[must_use]
pub fn boot_nanoseconds() -> u64 {
    read(libc::CLOCK_BOOTTIME)
}

/// Nanoseconds since 1970 (`CLOCK_REALTIME`), for capture files and for people; it may step.
#[must_use]
pub fn wall_nanoseconds() -> u64 {
    read(libc::CLOCK_REALTIME)
}

/// Processor time of the calling thread in nanoseconds, in the kernel too
/// (`CLOCK_THREAD_CPUTIME_ID`): a system call, unlike the others here.
#[must_use]
pub fn thread_nanoseconds() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The processor's time-stamp counter: of constant rate, not core cycles. `None` on machines
/// without.
#[must_use]
pub fn time_stamp_counter() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has RDTSC, and it touches no memory.
    return Some(unsafe { core::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec. It cannot fail for these clocks.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on() {
        let before = boot_nanoseconds();
        assert!(before > 0 && boot_nanoseconds() >= before);
        assert!(wall_nanoseconds() > 1_700_000_000_000_000_000);
        let before = time_stamp_counter();
        assert!(time_stamp_counter() >= before);
    }

    #[test]
    fn processor_time_is_the_threads_own() {
        let spin = || {
            let begin = thread_nanoseconds();
            while thread_nanoseconds() == begin {}
            thread_nanoseconds()
        };
        let mine = spin();
        let others = std::thread::spawn(thread_nanoseconds).join().unwrap();
        assert!(mine > 0 && others > 0 && spin() > mine);
    }
}
