//! What the kernel has of what uxfrm uses: TUN, AF_XDP, and what its release brings.

use std::fs::OpenOptions;
use std::io;

use nix::errno::Errno;

use crate::host::Host;

use super::finding::Finding;

/// `NETLINK_XFRM` in the list of netlink sockets.
const NETLINK_XFRM: &str = "6";

const TUN_DEVICE: &str = "/dev/net/tun";

/// Features by the release that brought them, and what is different before it.
const SINCE: &[((u32, u32), &str)] = &[
    ((5, 13), "no Landlock: a gateway that was broken into reads all files of its user"),
    ((6, 4), "no upgrade without loss with AF_XDP"),
    ((6, 9), "`nft flush ruleset` removes the guard for some milliseconds"),
];

/// Whether the kernel speaks XFRM itself. Programs without `uxfrm exec` speak with it.
pub(super) fn netlink_xfrm(host: &Host) -> Finding {
    let sockets = host.read("/proc/net/netlink").unwrap_or_default();
    let is_there = sockets.lines().any(|line| line.split_whitespace().nth(1) == Some(NETLINK_XFRM));
    let found = if is_there {
        "the kernel has NETLINK_XFRM: `ip xfrm` alone shows the kernel's states, not uxfrm's"
    } else {
        "the kernel's is not there or not loaded; uxfrm brings its own"
    };
    Finding::ok("NETLINK_XFRM", found)
}

/// Whether the TUN device can be opened.
pub(super) fn tun(host: &Host) -> Finding {
    let opened = OpenOptions::new().read(true).write(true).open(host.path(TUN_DEVICE));
    judge_tun(opened.err().map(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0))))
}

fn judge_tun(failed: Option<Errno>) -> Finding {
    let check = "TUN";
    match failed {
        None => Finding::ok(check, format!("{TUN_DEVICE} can be opened")),
        Some(Errno::ENOENT) => Finding::fail(
            check,
            format!("no {TUN_DEVICE}"),
            "modprobe tun (for a container: --device /dev/net/tun)",
        ),
        Some(Errno::ENODEV | Errno::ENXIO) => {
            Finding::fail(check, format!("{TUN_DEVICE} has no driver behind it"), "modprobe tun")
        }
        Some(errno @ (Errno::EACCES | Errno::EPERM)) => Finding::fail(
            check,
            format!("{TUN_DEVICE}: {}", io::Error::from(errno)),
            "chmod 0666 /dev/net/tun (for a container: --device /dev/net/tun)",
        ),
        Some(errno) => {
            let found = format!("{TUN_DEVICE}: {}", io::Error::from(errno));
            Finding::fail(check, found, "modprobe tun")
        }
    }
}

/// Whether the kernel has AF_XDP sockets, for `[wire] af_xdp` and inline mode.
pub(super) fn af_xdp(host: &Host) -> Finding {
    judge_af_xdp(&host.read("/proc/net/protocols").unwrap_or_default())
}

fn judge_af_xdp(protocols: &str) -> Finding {
    if protocols.lines().any(|line| line.starts_with("XDP ")) {
        Finding::ok("AF_XDP", "there, for `[wire] af_xdp` and inline mode")
    } else {
        Finding::ok("AF_XDP", "not in this kernel: raw sockets and packet sockets carry all")
    }
}

/// What the kernel's release lacks.
pub(super) fn version(host: &Host) -> Finding {
    judge_version(&host.word("/proc/sys/kernel/osrelease").unwrap_or_default())
}

fn judge_version(release: &str) -> Finding {
    let check = "kernel";
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return Finding::ok(check, format!("release {release:?}, which tells no version"));
    };
    let lacks = SINCE.iter().filter(|(since, _)| (major, minor) < *since);
    let lacks: Vec<_> =
        lacks.map(|((major, minor), what)| format!("before {major}.{minor} {what}")).collect();
    Finding::ok(
        check,
        std::iter::once(release.to_owned()).chain(lacks).collect::<Vec<_>>().join("; "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Severity;

    #[test]
    fn tun_that_cannot_be_opened_is_a_failure_with_a_mend() {
        assert_eq!(judge_tun(None).severity, Severity::Ok);
        for errno in [Errno::ENOENT, Errno::ENODEV, Errno::EPERM, Errno::EIO] {
            let found = judge_tun(Some(errno));
            assert_eq!(found.severity, Severity::Fail);
            assert!(found.mend.is_some(), "{errno}");
        }
    }

    #[test]
    fn version_tells_only_what_comes_later() {
        for (release, lacking) in [
            ("6.12.0-1-amd64", 0),
            ("6.9.0", 0),
            ("6.8.12", 1),
            ("6.1.0-44-cloud", 2),
            ("5.10.0", 3),
        ] {
            assert_eq!(
                judge_version(release).found.matches("before").count(),
                lacking,
                "{release}"
            );
        }
        assert_eq!(judge_version("odd").severity, Severity::Ok);
    }

    #[test]
    fn af_xdp_is_a_protocol() {
        assert!(judge_af_xdp("protocol  size\nXDP       1088\n").found.starts_with("there"));
        assert!(judge_af_xdp("protocol  size\nUDP       1088\n").found.starts_with("not"));
    }
}
