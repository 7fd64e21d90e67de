//! What memory this process has.

use std::fs;

/// Bytes of memory that the process has now, its files apart; `None` where the system does not tell.
#[must_use]
pub fn resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Gives back to the kernel what was freed and is kept for later: else what is taken next shows in [`resident`] only as far as it is more than that.
/// With a C library other than glibc it does nothing.
pub fn release_free() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "calls the C library")]
    // SAFETY: it is given no memory, and touches only what nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}
