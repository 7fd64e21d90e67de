//! Whether the wall clock can be believed: lifetimes in seconds and certificates depend on it.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::host::Host;

use super::finding::Finding;

const CHECK: &str = "clock";

/// 2026-01-01: no release is older.
const FIRST_RELEASE: Duration = Duration::from_secs(1_767_225_600);

/// A difference that no slewing makes.
const STEP: Duration = Duration::from_secs(2);

/// What was read.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// Since 1970.
    now: Duration,
    /// The moment of boot, as the wall clock has it now (`btime`).
    boot: Duration,
    /// When the newest of the gateway's own files was written.
    newest_file: Option<Duration>,
    /// Whether a time service says that it has set the clock.
    is_synchronised: bool,
    /// Whether a time service runs.
    has_service: bool,
}

/// Compares the wall clock with what it must not be before.
pub(super) fn check(host: &Host) -> Option<Finding> {
    let since_1970 = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
    let stat = host.read("/proc/stat")?;
    let boot = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let service = |name: &str| host.has(Path::new("/run").join(name));
    Some(judge(&Reading {
        now: since_1970(SystemTime::now())?,
        boot: Duration::from_secs(boot),
        newest_file: newest(&host.path("/var/lib/uxfrm")).and_then(since_1970),
        is_synchronised: service("systemd/timesync/synchronized"),
        has_service: ["chrony", "ntpd.pid", "openntpd", "systemd/timesync"]
            .into_iter()
            .any(service),
    }))
}

/// The time of the newest file below a directory.
fn newest(directory: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let times = entries.filter_map(|entry| {
        let found = entry.metadata().ok()?;
        let below = found.is_dir().then(|| newest(&entry.path())).flatten();
        below.into_iter().chain(found.is_file().then(|| found.modified().ok()).flatten()).max()
    });
    times.max()
}

fn judge(reading: &Reading) -> Finding {
    let mend = "timedatectl set-ntp true (or chronyc makestep)";
    if reading.now < FIRST_RELEASE {
        return Finding::fail(
            CHECK,
            "before 2026: certificates are not valid yet, and lifetimes jump when it is set",
            mend,
        );
    }
    if let Some(newest) = reading.newest_file.filter(|newest| *newest > reading.now + STEP) {
        let seconds = (newest - reading.now).as_secs();
        let found = format!("set back: the gateway's files are {seconds} s in the future");
        return Finding::warn(CHECK, found, mend);
    }
    if reading.boot > reading.now + STEP {
        return Finding::fail(CHECK, "the boot is in the future: the clock is being stepped", mend);
    }
    if reading.is_synchronised {
        return Finding::ok(CHECK, "synchronised by systemd-timesyncd");
    }
    if reading.has_service {
        return Finding::ok(CHECK, "a time service runs");
    }
    Finding::ok(CHECK, "plausible; no time service is known to run here")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn clocks_that_cannot_be_right_are_told() {
        let now = FIRST_RELEASE + Duration::from_secs(1_000_000);
        let good = Reading {
            now,
            boot: now - Duration::from_secs(1000),
            newest_file: Some(now),
            is_synchronised: false,
            has_service: false,
        };
        let later = now + Duration::from_secs(3600);
        for (reading, severity) in [
            (good, Severity::Ok),
            (Reading { is_synchronised: true, ..good }, Severity::Ok),
            (Reading { now: Duration::from_secs(5), ..good }, Severity::Fail),
            (Reading { newest_file: Some(later), ..good }, Severity::Warn),
            (Reading { boot: later, ..good }, Severity::Fail),
        ] {
            assert_eq!(judge(&reading).severity, severity, "{reading:?}");
        }
    }
}
