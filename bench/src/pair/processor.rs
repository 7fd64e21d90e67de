//! CPU time and memory of processes, CPU time of threads and of the whole machine, from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, anyhow};
use nix::unistd::{SysconfVar, sysconf};

/// CPU time used since the start of a process, or of the machine.
pub type CpuTime = Duration;

/// A process or a thread that uses CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuTask {
    /// A process and all its threads, by its number.
    Process(u32),
    /// One thread of this process, by its number.
    Thread(u32),
}

/// User and system time of a process or a thread.
///
/// # Errors
/// When it is gone.
pub fn of(task: CpuTask) -> anyhow::Result<CpuTime> {
    match task {
        CpuTask::Process(pid) => of_process(pid),
        CpuTask::Thread(tid) => from_stat(&format!("/proc/self/task/{tid}/stat")),
    }
}

/// User and system time of the process `pid` and all its threads.
///
/// # Errors
/// When it is gone.
pub fn of_process(pid: u32) -> anyhow::Result<CpuTime> {
    from_stat(&format!("/proc/{pid}/stat"))
}

/// Time that all processors of the machine were not idle (`/proc/stat`, first line).
///
/// # Errors
/// When there is no `/proc`.
pub fn of_machine() -> anyhow::Result<CpuTime> {
    let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
    in_time(busy_ticks(&text).ok_or_else(|| anyhow!("/proc/stat is not as proc(5) says"))?)
}

/// The most memory that the process `pid` ever had resident, in bytes (`/proc/PID/status`,
/// `VmHWM`).
///
/// # Errors
/// When it is gone.
pub fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| anyhow!("{path} has no VmHWM"))? * 1024)
}

/// CPU time from fields 14 and 15 of a file like `/proc/PID/stat`.
fn from_stat(path: &str) -> anyhow::Result<CpuTime> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    in_time(task_ticks(&text).ok_or_else(|| anyhow!("{path} is not as proc(5) says"))?)
}

/// The ticks of a process or a thread in a text like `/proc/PID/stat`.
fn task_ticks(stat: &str) -> Option<u64> {
    // The second field is the command in parentheses, and may hold blanks and parentheses itself.
    let behind_command = &stat[stat.rfind(')')? + 1..];
    let mut fields = behind_command.split_ascii_whitespace().skip(14 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

/// The ticks in which any processor worked, in a text like `/proc/stat`.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; the fields after that are part of user.
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

fn in_time(ticks: u64) -> anyhow::Result<CpuTime> {
    let per_second = sysconf(SysconfVar::CLK_TCK)?
        .and_then(|rate| u64::try_from(rate).ok())
        .filter(|rate| *rate > 0)
        .ok_or_else(|| anyhow!("the kernel does not tell its clock ticks per second"))?;
    let nanoseconds = u128::from(ticks) * 1_000_000_000 / u128::from(per_second);
    Ok(Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_with_parentheses_is_skipped() {
        let stat = "7 (a) 1 (b c) S 1 7 7 0 -1 4194304 10 0 0 0 123 45 6 7 20 0 1 0";
        assert_eq!(task_ticks(stat), Some(168));
        assert_eq!(task_ticks("7 (a) S 1 7 7 0 -1 4194304 10 0 0 0 123"), None);
        assert_eq!(task_ticks("nothing"), None);
    }

    #[test]
    fn idle_iowait_and_steal_are_not_busy() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 1000 7 7\ncpu0 9 9 9 9"), Some(31));
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7"), None);
        assert_eq!(busy_ticks("cpu  1 2 3"), None);
    }

    #[test]
    fn process_time_is_at_most_machine_time() {
        let machine = of_machine().unwrap();
        assert!(of_process(std::process::id()).unwrap() <= machine);
        assert!(peak_memory(std::process::id()).unwrap() > 4096);
    }

    #[test]
    fn thread_time_is_at_most_process_time() {
        let tid = nix::unistd::gettid().as_raw().unsigned_abs();
        let thread = of(CpuTask::Thread(tid)).unwrap();
        assert!(thread <= of(CpuTask::Process(std::process::id())).unwrap());
        assert!(of(CpuTask::Thread(0)).is_err());
    }
}
