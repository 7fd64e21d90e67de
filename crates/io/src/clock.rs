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
    }
}
