//! CPU priority of threads.

use std::io;

/// Highest nice value (`nice(2)`).
const LAST: i32 = 19;

/// Gives the calling thread the lowest priority; only privileges can undo that.
///
/// # Errors
/// The kernel's.
pub fn lower_priority() -> io::Result<()> {
    // SAFETY: takes three numbers; on Linux a `who` of 0 with PRIO_PROCESS is the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LAST) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        // SAFETY: takes two numbers.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn lowered_priority_affects_only_calling_thread() {
        let before = niceness();
        let there = std::thread::spawn(|| {
            lower_priority().unwrap();
            niceness()
        });
        assert_eq!((there.join().unwrap(), niceness()), (LAST, before));
    }
}
