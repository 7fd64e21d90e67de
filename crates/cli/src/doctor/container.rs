//! Whether this is a container, and what it may not set.

use nix::sys::statvfs::{FsFlags, statvfs};

use crate::host::Host;

use super::finding::Finding;

const CHECK: &str = "container";

/// Reads the marks that container engines leave.
pub(super) fn check(host: &Host) -> Finding {
    let is_container = ["/run/.containerenv", "/.dockerenv", "/run/systemd/container"]
        .into_iter()
        .any(|mark| host.has(mark));
    let flags = statvfs(&host.path("/proc/sys")).map(|found| found.flags());
    judge(is_container, flags.is_ok_and(|flags| flags.contains(FsFlags::ST_RDONLY)))
}

fn judge(is_container: bool, settings_are_read_only: bool) -> Finding {
    match (is_container, settings_are_read_only) {
        (_, true) => Finding::warn(
            CHECK,
            "/proc/sys is read-only: uxfrm can't set forwarding and rp_filter of its TUN",
            "give the container --sysctl net.ipv4.ip_forward=1 --sysctl net.ipv4.conf.default.rp_filter=2",
        ),
        (true, false) => Finding::ok(CHECK, "yes, and /proc/sys can be written"),
        (false, false) => Finding::ok(CHECK, "no"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn settings_that_cannot_be_written_are_a_warning() {
        assert_eq!(judge(true, true).severity, Severity::Warn);
        assert_eq!(judge(false, true).severity, Severity::Warn);
        assert_eq!(judge(true, false).severity, Severity::Ok);
        assert_eq!(judge(false, false).severity, Severity::Ok);
    }
}
