//! Which process owns a gateway's socket name: another user's gateway, or a process that only took
//! the name.
//!
//! Any user can have the name; only a gateway may do to this network namespace what a gateway does
//! (`CAP_NET_ADMIN`). Who has that by a user namespace of his own may not. Programs that anybody
//! can run with it do not count either: those with a set-user-ID bit are of another user than who
//! took the name, and those with file capabilities have it by being executed. A gateway has it from
//! whoever started it: as an ambient capability, which an executed file's capabilities clear, until
//! it gives that up together with ever getting one by a file (`no_new_privs`).

use std::{fmt, fs, io, os::fd::AsFd, os::unix::fs::MetadataExt as _};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// `CAP_NET_ADMIN`
const NET_ADMIN: u64 = 1 << 12;

/// A process that runs a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketOwner {
    process: i32,
    user: u32,
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {}, of user {}", self.process, self.user)
    }
}

impl SocketOwner {
    /// Who listens at the other end of a connection, if that is a gateway. Where we may not look it
    /// counts as none.
    pub(crate) fn of(connection: &impl AsFd) -> Option<Self> {
        let peer = getsockopt(connection, PeerCredentials).ok()?;
        let found = Self { process: peer.pid(), user: peer.uid() };
        found.is_a_gateway().ok().filter(|is_one| *is_one).map(|_| found)
    }

    fn is_a_gateway(self) -> io::Result<bool> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process))?;
        Ok(self.is_in_our_user_namespace()? && may_administer(&status, self.user))
    }

    fn is_in_our_user_namespace(self) -> io::Result<bool> {
        let ours = fs::metadata("/proc/self/ns/user")?;
        match fs::metadata(format!("/proc/{}/ns/user", self.process)) {
            Ok(theirs) => Ok((theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino())),
            // Without CAP_SYS_PTRACE, as in containers. Anybody may read which users a namespace
            // has, and nobody makes another that has all of ours.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let theirs = fs::read_to_string(format!("/proc/{}/uid_map", self.process))?;
                Ok(theirs == fs::read_to_string("/proc/self/uid_map")?)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether a process's status is that of a program that is this user's through and through, and may
/// administer networks, though not by what file it executes.
fn may_administer(status: &str, user: u32) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let is_the_users = field("Uid:").is_some_and(|users| {
        let mut users = users.split_ascii_whitespace().map(str::parse);
        users.clone().count() == 4 && users.all(|known| known == Ok(user))
    });
    let may_in = |set| {
        let bits = field(set).and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        bits.is_some_and(|bits| bits & NET_ADMIN != 0)
    };
    let gains_none = field("NoNewPrivs:").is_some_and(|set| set.trim() == "1");
    is_the_users && may_in("CapEff:") && (gains_none || may_in("CapAmb:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_owner_needs_own_user_and_net_admin() {
        let status = |users: &str, bits: &str| {
            format!(
                "Name:\tuxfrm\nUid:\t{users}\nGid:\t2\t2\t2\t2\nCapPrm:\tffff\nCapEff:\t{bits}\n\
                 CapAmb:\t0000000000000000\nNoNewPrivs:\t1\n"
            )
        };
        let may = |users, bits| may_administer(&status(users, bits), 2);
        assert!(may("2\t2\t2\t2", "0000000000003000"));
        assert!(!may("2\t2\t2\t2", "0000000000002000"), "CAP_NET_RAW alone, as ping has");
        assert!(!may("2\t0\t0\t0", "000001ffffffffff"), "as su has");
        assert!(!may("0\t0\t0\t0", "000001ffffffffff"), "a number that another process has by now");
        assert!(!may_administer("", 2));
    }

    #[test]
    fn socket_owner_has_net_admin_from_whoever_started_it() {
        let may = |ambient: &str, gains_none: &str| {
            let status = format!(
                "Uid:\t2\t2\t2\t2\nCapInh:\t0\nCapEff:\t3000\nCapAmb:\t{ambient}\n{gains_none}"
            );
            may_administer(&status, 2)
        };
        assert!(may("3000", "NoNewPrivs:\t0\n"), "a gateway that starts, or has no sandbox");
        assert!(may("0", "NoNewPrivs:\t1\n"), "one that runs");
        assert!(!may("0", "NoNewPrivs:\t0\n"), "a file's, as dumpcap has");
        assert!(!may("2000", "NoNewPrivs:\t0\n"), "CAP_NET_RAW alone is ambient");
        assert!(!may("0", ""));
    }
}
