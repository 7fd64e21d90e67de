//! Who holds the UDP ports of IKE and of ESP in UDP.

use std::fs;

use crate::host::Host;

use super::finding::Finding;

/// IKE, and ESP in UDP with IKE beside it.
const PORTS: [u16; 2] = [500, 4500];

/// The name of the gateway's process.
const GATEWAY: &str = "uxfrm-gateway";

/// A process with a socket at a port.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Holder {
    pid: u32,
    name: String,
    /// Whether the preload library is loaded in it.
    is_under_exec: bool,
}

/// What is known of a port.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Holding {
    Free,
    /// A process that we may not look at.
    Hidden,
    By(Holder),
}

/// A finding for each port.
pub(super) fn check(host: &Host) -> Vec<Finding> {
    let sockets =
        ["/proc/net/udp", "/proc/net/udp6"].map(|path| host.read(path).unwrap_or_default());
    PORTS
        .into_iter()
        .map(|port| {
            let inodes: Vec<_> = sockets.iter().flat_map(|text| inodes_at(text, port)).collect();
            judge(port, &holding(host, &inodes))
        })
        .collect()
}

/// The inodes of sockets bound to a port, in a table of `/proc/net/udp`.
fn inodes_at(table: &str, port: u16) -> Vec<u64> {
    let lines = table.lines().skip(1).filter_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (_, own) = words.get(1)?.rsplit_once(':')?;
        (u16::from_str_radix(own, 16) == Ok(port)).then(|| words.get(9)?.parse().ok()).flatten()
    });
    lines.collect()
}

fn holding(host: &Host, inodes: &[u64]) -> Holding {
    if inodes.is_empty() {
        return Holding::Free;
    }
    let names: Vec<_> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
    let processes = host.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let holder = processes.into_iter().find(|pid| {
        let Ok(descriptors) = fs::read_dir(host.path(format!("/proc/{pid}/fd"))) else {
            return false;
        };
        let mut links = descriptors.flatten().filter_map(|one| fs::read_link(one.path()).ok());
        links.any(|link| names.iter().any(|name| link.as_os_str() == name.as_str()))
    });
    holder.map_or(Holding::Hidden, |pid| {
        let name = host.word(format!("/proc/{pid}/comm")).unwrap_or_default();
        let maps = host.read(format!("/proc/{pid}/maps")).unwrap_or_default();
        Holding::By(Holder { pid, name, is_under_exec: maps.contains("libuxfrm_redirect.so") })
    })
}

fn judge(port: u16, holding: &Holding) -> Finding {
    let check = format!("UDP port {port}");
    match holding {
        Holding::Free => Finding::ok(check, "free"),
        Holding::Hidden => {
            Finding::warn(check, "held by a process of another user", "sudo uxfrm doctor")
        }
        Holding::By(holder) if holder.name == GATEWAY || holder.is_under_exec => {
            Finding::ok(check, format!("held by {} (pid {})", holder.name, holder.pid))
        }
        Holding::By(Holder { pid, name, .. }) => Finding::fail(
            check,
            format!("held by {name} (pid {pid}), which does not run under uxfrm exec"),
            &mend(name, *pid),
        ),
    }
}

fn mend(name: &str, pid: u32) -> String {
    match name {
        "charon" | "charon-systemd" => "uxfrm setup strongswan".to_owned(),
        "pluto" => "uxfrm setup libreswan".to_owned(),
        _other => format!("stop it: systemctl status {pid} names its unit"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  1: 00000000:01F4 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 0
  2: 0100007F:1194 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 0
";

    #[test]
    fn sockets_are_found_by_their_port() {
        assert_eq!(inodes_at(TABLE, 500), [4711]);
        assert_eq!(inodes_at(TABLE, 4500), [4712]);
        assert_eq!(inodes_at(TABLE, 53), [0; 0]);
        assert_eq!(inodes_at("header\nnonsense\n", 500), [0; 0]);
    }

    #[test]
    fn a_daemon_beside_uxfrm_is_a_failure() {
        let by = |name: &str, is_under_exec| {
            Holding::By(Holder { pid: 7, name: name.to_owned(), is_under_exec })
        };
        for (holding, severity) in [
            (Holding::Free, Severity::Ok),
            (Holding::Hidden, Severity::Warn),
            (by(GATEWAY, false), Severity::Ok),
            (by("charon", true), Severity::Ok),
            (by("charon", false), Severity::Fail),
            (by("openvpn", false), Severity::Fail),
        ] {
            assert_eq!(judge(4500, &holding).severity, severity, "{holding:?}");
        }
        assert_eq!(judge(500, &by("pluto", false)).mend.unwrap(), "uxfrm setup libreswan");
    }
}
