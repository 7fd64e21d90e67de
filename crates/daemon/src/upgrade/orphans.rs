//! Gateways whose supervisors were killed: the kernel kills them as well (`PR_SET_PDEATHSIG`), and
//! a moment later all that they had is free. Whoever starts a gateway right behind `kill -9` waits
//! for that moment.

use std::{
    fs,
    time::{Duration, Instant},
};

use nix::unistd::Uid;

/// What a gateway's process is called (`/proc/PID/comm`): its supervisor keeps the program's name.
pub(crate) const GATEWAY: &std::ffi::CStr = c"uxfrm-gateway";
const SUPERVISOR: &str = "uxfrm";
/// The last of its threads in this state has given back all that the process had, and waits to be
/// reaped, which not every process 1 does.
const ZOMBIE: &str = "Z";

/// One that is killed is gone within milliseconds, and where very much memory is to be given back,
/// within a second.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

/// Waits until no process of a killed gateway is left.
pub(super) fn wait_for_exit() {
    let begun = Instant::now();
    while are_there() && begun.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
}

/// The process of the gateway that `uxfrm run` supervises as a process of this number, once it is
/// there: what the gateway uses of the machine is told by that.
#[must_use]
pub fn gateway_of(supervisor: u32) -> Option<u32> {
    gateways().find(|(_, parent)| *parent == supervisor).map(|(process, _)| process)
}

fn are_there() -> bool {
    gateways().any(|(_, parent)| !is_supervisor(parent))
}

/// All gateways' processes that hold something, each with its parent.
fn gateways() -> impl Iterator<Item = (u32, u32)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter_map(|process| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (name, state, parent) = parse(&stat)?;
        let is_gateway = name.as_bytes() == GATEWAY.to_bytes() && is_ours(process);
        (is_gateway && !(state == ZOMBIE && threads(process) <= 1)).then_some((process, parent))
    })
}

fn threads(process: u32) -> usize {
    fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count)
}

/// Any user can give a process that name.
fn is_ours(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    status.ok().and_then(|status| user(&status)) == Some(Uid::effective().as_raw())
}

/// The effective one: `Uid: REAL EFFECTIVE SAVED FILES`.
fn user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn is_supervisor(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| parse(&stat).is_some_and(|(name, ..)| name == SUPERVISOR))
}

/// A process's name, state and parent: `PID (NAME) STATE PARENT …`.
fn parse(stat: &str) -> Option<(&str, &str, u32)> {
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1;
    let mut words = tail.split_ascii_whitespace();
    Some((name, words.next()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_with_odd_name_is_parsed() {
        assert_eq!(parse("12 (uxfrm-gateway) S 11 12 0"), Some(("uxfrm-gateway", "S", 11)));
        assert_eq!(parse("12 (a) b) Z 1 12 0"), Some(("a) b", "Z", 1)));
        assert_eq!(parse("12"), None);
    }

    #[test]
    fn proc_status_yields_effective_user() {
        assert_eq!(user("Name:\tuxfrm-gateway\nUid:\t0\t65534\t0\t0\nGid:\t0"), Some(65534));
        assert_eq!(user("Name:\tuxfrm-gateway\n"), None);
        assert!(is_ours(std::process::id()));
    }
}
