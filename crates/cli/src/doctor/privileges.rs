//! Whether whoever asks may run a gateway: capabilities, and memory that is kept out of swap.

use nix::sys::resource::{Resource, getrlimit};

use crate::host::Host;

use super::finding::Finding;

/// Capabilities by their bits (`linux/capability.h`).
const NET_BIND_SERVICE: u8 = 10;
const NET_ADMIN: u8 = 12;
const NET_RAW: u8 = 13;
const IPC_LOCK: u8 = 14;

/// Without these no gateway starts.
const NEEDED: [(u8, &str); 2] = [(NET_ADMIN, "CAP_NET_ADMIN"), (NET_RAW, "CAP_NET_RAW")];

/// Without this it has no port below 1024.
const USEFUL: (u8, &str) = (NET_BIND_SERVICE, "CAP_NET_BIND_SERVICE");

/// The capabilities of the caller.
pub(super) fn capabilities(host: &Host) -> Finding {
    judge_capabilities(effective(&host.read("/proc/self/status").unwrap_or_default()))
}

/// The effective capabilities in a `/proc/PID/status`.
fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0)
}

const fn has(set: u64, bit: u8) -> bool {
    set >> bit & 1 == 1
}

fn judge_capabilities(set: u64) -> Finding {
    let check = "capabilities";
    let missing: Vec<_> =
        NEEDED.iter().filter(|(bit, _)| !has(set, *bit)).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        return Finding::warn(
            check,
            format!("you have no {}: a gateway of yours would not start", missing.join(", ")),
            "systemctl start uxfrm (which gives them), or sudo",
        );
    }
    if has(set, USEFUL.0) {
        return Finding::ok(check, "all that a gateway needs");
    }
    Finding::ok(check, format!("enough for a gateway; no {}: no ports below 1024", USEFUL.1))
}

/// Whether all memory can be kept out of swap, where keys are.
pub(super) fn memory_lock(host: &Host) -> Finding {
    let set = effective(&host.read("/proc/self/status").unwrap_or_default());
    let limit = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft);
    let swaps = host.read("/proc/swaps").unwrap_or_default().lines().count() > 1;
    judge_memory_lock(has(set, IPC_LOCK), limit, swaps)
}

/// `limit` in bytes.
fn judge_memory_lock(may_lock: bool, limit: u64, has_swap: bool) -> Finding {
    let check = "memory lock";
    if may_lock || limit == u64::MAX {
        return Finding::ok(check, "no limit: keys are kept out of swap");
    }
    let found = format!("{} KiB: a gateway of yours can't keep keys out of swap", limit / 1024);
    if has_swap {
        Finding::warn(check, found, "ulimit -l unlimited (LimitMEMLOCK=infinity in a unit)")
    } else {
        Finding::ok(check, format!("{found}; there is no swap"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn capabilities_are_read_from_their_mask() {
        let set = effective("Name:\tx\nCapInh:\t0\nCapEff:\t0000000000003400\n");
        assert_eq!(judge_capabilities(set).found, "all that a gateway needs");
        assert_eq!(judge_capabilities(0).severity, Severity::Warn);
        assert!(judge_capabilities(1 << NET_ADMIN).found.contains("no CAP_NET_RAW:"));
        let both = 1 << NET_ADMIN | 1 << NET_RAW;
        assert!(judge_capabilities(both).found.contains("1024"));
        assert_eq!(effective("nonsense"), 0);
    }

    #[test]
    fn a_limit_matters_where_there_is_swap() {
        assert_eq!(judge_memory_lock(true, 0, true).severity, Severity::Ok);
        assert_eq!(judge_memory_lock(false, u64::MAX, true).severity, Severity::Ok);
        assert_eq!(judge_memory_lock(false, 65536, true).severity, Severity::Warn);
        assert_eq!(judge_memory_lock(false, 65536, false).severity, Severity::Ok);
    }
}
