//! Whether the kernel forwards what uxfrm decrypted, and lets it in.

use crate::host::Host;

use super::finding::Finding;

const CONFIGURATION: &str = "/proc/sys/net/ipv4/conf";

/// Forwarding of both families.
pub(super) fn forwarding(host: &Host) -> Finding {
    let is_on = |path: &str| host.word(path).is_some_and(|value| value != "0");
    judge_forwarding(
        is_on("/proc/sys/net/ipv4/ip_forward"),
        is_on("/proc/sys/net/ipv6/conf/all/forwarding"),
    )
}

fn judge_forwarding(v4: bool, v6: bool) -> Finding {
    let check = "forwarding";
    match (v4, v6) {
        (true, true) => Finding::ok(check, "on, IPv4 and IPv6"),
        (true, false) => {
            Finding::ok(check, "on for IPv4, off for IPv6 (net.ipv6.conf.all.forwarding = 0)")
        }
        (false, _) => Finding::warn(
            check,
            "net.ipv4.ip_forward = 0: tunnels serve this host itself, and no net behind it",
            "sysctl -w net.ipv4.ip_forward=1 (and a line in /etc/sysctl.d)",
        ),
    }
}

/// Interfaces whose check of ways back is strict.
pub(super) fn rp_filter(host: &Host) -> Finding {
    let value = |name: &str| {
        host.word(format!("{CONFIGURATION}/{name}/rp_filter"))
            .and_then(|word| word.parse().ok())
            .unwrap_or(0)
    };
    let names = host.names(CONFIGURATION);
    let each = names.iter().filter(|name| !["all", "default", "lo"].contains(&name.as_str()));
    let each: Vec<_> = each.map(|name| (name.as_str(), value(name))).collect();
    judge_rp_filter(value("all"), &each)
}

/// The kernel takes the larger of the interface's number and that of all (`ip-sysctl.rst`).
fn judge_rp_filter(all: u8, each: &[(&str, u8)]) -> Finding {
    let check = "rp_filter";
    let strict = each.iter().filter(|(_, own)| all.max(*own) == 1).map(|(name, _)| *name);
    let strict: Vec<_> = strict.collect();
    let Some(first) = strict.first() else {
        return Finding::ok(check, "strict on no interface");
    };
    Finding::warn(
        check,
        format!(
            "strict (1) on {}: where policies protect all traffic with a peer, its ESP and IKE are dropped",
            strict.join(", ")
        ),
        &format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", first.replace('.', "/")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn strict_is_the_larger_number_being_one() {
        for (all, own, severity) in [
            (0, 0, Severity::Ok),
            (0, 1, Severity::Warn),
            (1, 0, Severity::Warn),
            (1, 2, Severity::Ok),
            (2, 1, Severity::Ok),
        ] {
            assert_eq!(judge_rp_filter(all, &[("eth0", own)]).severity, severity, "{all} {own}");
        }
        let found = judge_rp_filter(1, &[("eth0.7", 0), ("eth1", 0)]);
        assert!(found.found.contains("on eth0.7, eth1:"));
        assert_eq!(found.mend.unwrap(), "sysctl -w net.ipv4.conf.eth0/7.rp_filter=2");
    }

    #[test]
    fn forwarding_off_is_a_warning() {
        assert_eq!(judge_forwarding(false, true).severity, Severity::Warn);
        assert_eq!(judge_forwarding(true, false).severity, Severity::Ok);
        assert_eq!(judge_forwarding(true, true).severity, Severity::Ok);
    }
}
