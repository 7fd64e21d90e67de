//! Memory use of this process.

use std::fs;

/// Resident bytes without files; `None` if the system does not tell.
#[must_use]
pub fn resident() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Returns freed memory to the kernel; otherwise [`resident`] shows new allocations only beyond it.
/// Does nothing without glibc.
pub fn release_free() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "calls the C library")]
    // SAFETY: it is given no memory, and touches only what nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}
