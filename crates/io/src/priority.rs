//! CPU priority of threads.

use std::io;

/// Highest nice value (`nice(2)`).
const LAST: i32 = 19;
/// Nice value at which a thread gets about a tenth of a core that others keep busy.
const BACKGROUND: i32 = 10;

/// Gives the calling thread the lowest priority; only privileges can undo that.
///
/// # Errors
/// The kernel's.
pub fn lower_priority() -> io::Result<()> {
    set_nice(LAST)
}

/// Gives the calling thread a low priority at which somebody may wait for it: a tenth of a busy
/// core, where the lowest is a seventieth. Only privileges can undo that.
///
/// # Errors
/// The kernel's.
pub fn background_priority() -> io::Result<()> {
    set_nice(BACKGROUND)
}

fn set_nice(nice: i32) -> io::Result<()> {
    // SAFETY: takes three numbers; on Linux a `who` of 0 with PRIO_PROCESS is the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
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
            background_priority().unwrap();
            let background = niceness();
            lower_priority().unwrap();
            (background, niceness())
        });
        assert_eq!(there.join().unwrap(), (BACKGROUND, LAST));
        assert_eq!(niceness(), before);
    }
}
