//! Gateways whose supervisors were killed: the kernel kills them as well (`PR_SET_PDEATHSIG`), and a moment later all
//! that they had is free. Whoever starts a gateway right behind `kill -9` waits for that moment.

use std::{
    fs,
    time::{Duration, Instant},
};

/// What a gateway's process is called (`/proc/PID/comm`): its supervisor keeps the program's name.
pub(crate) const GATEWAY: &std::ffi::CStr = c"uxfrm-gateway";
const SUPERVISOR: &str = "uxfrm";

/// One that is killed is gone within milliseconds, and where very much memory is to be given back, within a second.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until no process of a killed gateway is left.
pub(super) fn wait_for_their_end() {
    let begun = Instant::now();
    while are_there() && begun.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
}

fn are_there() -> bool {
    let Ok(processes) = fs::read_dir("/proc") else { return false };
    processes
        .filter_map(Result::ok)
        .filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
        .filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| parse(&stat).map(|(name, parent)| (name.to_owned(), parent)))
        .any(|(name, parent)| name.as_bytes() == GATEWAY.to_bytes() && !is_supervisor(parent))
}

fn is_supervisor(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| parse(&stat).is_some_and(|(name, _)| name == SUPERVISOR))
}

/// A process's name and its parent: `PID (NAME) STATE PARENT …`.
fn parse(stat: &str) -> Option<(&str, u32)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    Some((name, tail.split_ascii_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_brackets_and_spaces() {
        assert_eq!(parse("12 (uxfrm-gateway) S 11 12 0"), Some(("uxfrm-gateway", 11)));
        assert_eq!(parse("12 (a) b) Z 1 12 0"), Some(("a) b", 1)));
        assert_eq!(parse("12"), None);
    }
}
