//! How much of the processors a thread asks for beside others.

use std::io;

/// The least that a thread can ask for (`nice(2)`).
const LAST: i32 = 19;

/// Lets the calling thread run where others leave time; it cannot be taken back without privileges.
///
/// # Errors
/// The kernel's.
pub fn stand_back() -> io::Result<()> {
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
    fn only_the_calling_thread_stands_back() {
        let before = niceness();
        let there = std::thread::spawn(|| {
            stand_back().unwrap();
            niceness()
        });
        assert_eq!((there.join().unwrap(), niceness()), (LAST, before));
    }
}
