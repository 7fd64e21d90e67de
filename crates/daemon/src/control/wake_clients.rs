//! Wakes clients of an earlier gateway, which wait at names of their own
//! (`crates/redirect/src/wakeup_socket.rs`). Otherwise a key manager would learn only at its next
//! request that its states are gone.

use std::{fs, io, os::fd::AsRawFd as _};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendto, socket};
use uxfrm_control::greeting::QUIET;

/// Any user can have such names; so many are told.
const MOST: usize = 4096;

/// Wakes all that wait in this network namespace.
pub(crate) fn wake_waiting() {
    match try_wake() {
        Ok(0) => {}
        Ok(clients) => tracing::info!(clients, "clients of the gateway before hear of this one"),
        Err(error) => tracing::debug!(%error, "clients of the gateway before are not looked for"),
    }
}

fn try_wake() -> io::Result<usize> {
    let kind = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let from = socket(AddressFamily::Unix, SockType::Datagram, kind, None)?;
    let sockets = fs::read_to_string("/proc/thread-self/net/unix")?;
    let wake = |name: &&str| -> bool {
        let address = UnixAddr::new_abstract(name.as_bytes());
        address.is_ok_and(|to| sendto(from.as_raw_fd(), &[], &to, MsgFlags::MSG_DONTWAIT).is_ok())
    };
    Ok(waiting(&sockets).take(MOST).filter(wake).count())
}

/// The names in `/proc/net/unix`, without the `@` of abstract ones.
fn waiting(sockets: &str) -> impl Iterator<Item = &str> {
    sockets
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(7)?.strip_prefix('@'))
        .filter(|name| name.as_bytes().starts_with(QUIET))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_clients_are_found_in_proc_net_unix() {
        let sockets = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 17 /run/systemd/private
0000000000000000: 00000002 00000000 00000000 0002 01 18 @uxfrm/quiet/000004d200000007
0000000000000000: 00000002 00000000 00010000 0005 01 19 @uxfrm/xfrm
0000000000000000: 00000003 00000000 00000000 0001 03 20
";
        assert_eq!(waiting(sockets).collect::<Vec<_>>(), ["uxfrm/quiet/000004d200000007"]);
    }
}
