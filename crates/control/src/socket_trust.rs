//! Whether the listener at a path may receive keys.
//!
//! Root may, and the client's own user, wherever they listen. Other users may where only they and
//! root could have created the socket: a gateway of an ordinary user, in a directory of its own.
//! Each directory of the path must be theirs or root's, and not writable for others: in `/tmp` any
//! user can replace a gateway that has ended.

use crate::fallback_socket::DIRECTORY;
use crate::greeting::is_gateway_user;

/// Mode bits that let others than the owner write.
const SHARED: u32 = 0o022;

/// The kernel's placeholder for users outside a user namespace: two of them need not be the same.
const UNKNOWN: u32 = 65_534;

/// Owner and mode of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryOwner {
    /// Its owner.
    pub owner: u32,
    /// Its mode.
    pub mode: u32,
}

/// Whether `listener`, at the other end of a connection to `path`, is a gateway for a client of
/// user `own`. `look` returns directories' owners; relative paths cannot be verified.
pub fn is_trusted(
    listener: u32,
    own: u32,
    path: &[u8],
    mut look: impl FnMut(&[u8]) -> Option<DirectoryOwner>,
) -> bool {
    let is_theirs = |directory: DirectoryOwner| {
        (directory.owner == 0 || directory.owner == listener) && directory.mode & SHARED == 0
    };
    is_gateway_user(listener, own)
        || path.first() == Some(&b'/')
            && directories(path).all(|directory| look(directory).is_some_and(is_theirs))
}

/// Whether a datagram of user `sender` is from the gateway whose control socket is at `path`. Other
/// than of a listener, nothing shows that the sender had to do with the path: the socket must be
/// the sender's own file, where only the sender and root could have made it.
pub fn is_sender_trusted(
    sender: u32,
    own: u32,
    path: &[u8],
    mut look: impl FnMut(&[u8]) -> Option<DirectoryOwner>,
) -> bool {
    is_gateway_user(sender, own)
        || sender != UNKNOWN
            && look(path).is_some_and(|socket| socket.owner == sender)
            && is_trusted(sender, own, path, look)
}

/// Whether `listener` is the user to whom root has given [`DIRECTORY`], as systemd does for a unit:
/// its gateways are also trusted at their abstract names.
pub fn is_owner_of_run_directory(
    listener: u32,
    mut look: impl FnMut(&[u8]) -> Option<DirectoryOwner>,
) -> bool {
    let mut is_of = |path: &[u8], owner| {
        look(path).is_some_and(|found| found.owner == owner && found.mode & SHARED == 0)
    };
    let directory = DIRECTORY.as_bytes();
    listener != UNKNOWN
        && is_of(directory, listener)
        && directories(directory).all(|above| is_of(above, 0))
}

/// All parent directories of a file.
fn directories(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = (0..path.len()).filter(|at| path[*at] == b'/');
    slashes.map(|at| if at == 0 { &path[..1] } else { &path[..at] })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: u32 = 990;
    const OTHER: u32 = 991;

    /// Where all directories are root's, anybody would be trusted who was not asked for the file.
    #[test]
    fn sender_is_trusted_only_as_owner_of_the_socket() {
        let path = b"/etc/uxfrm/control.socket";
        let told = |sender, socket: Option<u32>, mode| {
            is_sender_trusted(sender, 1000, path, |looked| {
                let owner = if looked == path { socket? } else { 0 };
                Some(DirectoryOwner { owner, mode })
            })
        };
        for (sender, socket, mode, expected) in [
            (OTHER, Some(0), 0o755, false),
            (OTHER, Some(GATEWAY), 0o755, false),
            (OTHER, None, 0o755, false),
            (GATEWAY, Some(GATEWAY), 0o755, true),
            (GATEWAY, Some(GATEWAY), 0o777, false),
            (UNKNOWN, Some(UNKNOWN), 0o755, false),
            (0, None, 0o777, true),
            (1000, None, 0o777, true),
        ] {
            assert_eq!(told(sender, socket, mode), expected, "{sender} {socket:?} {mode:o}");
        }
    }

    fn believed(listener: u32, path: &str, of: impl Fn(&str) -> Option<(u32, u32)>) -> bool {
        let look = |directory: &[u8]| {
            let (owner, mode) = of(std::str::from_utf8(directory).unwrap())?;
            Some(DirectoryOwner { owner, mode })
        };
        is_trusted(listener, 1000, path.as_bytes(), look)
    }

    #[test]
    fn root_and_own_user_are_trusted_anywhere() {
        for listener in [0, 1000] {
            assert!(believed(listener, "/tmp/uxfrm", |_| Some((0, 0o1777))));
            assert!(believed(listener, "uxfrm", |_| None));
        }
    }

    #[test]
    fn other_user_is_trusted_in_own_directory_only() {
        let run = |directory: &str| Some((if directory == "/run/uxfrm" { 990 } else { 0 }, 0o755));
        assert!(believed(GATEWAY, "/run/uxfrm/xfrm", run));
        assert!(!believed(OTHER, "/run/uxfrm/xfrm", run), "a third one's directory");
        assert!(believed(GATEWAY, "/xfrm", |directory| (directory == "/").then_some((0, 0o755))));
        for mode in [0o1777, 0o775, 0o757] {
            let of = |directory: &str| match directory {
                "/tmp" => Some((0, mode)),
                _ => Some((if directory == "/tmp/own" { GATEWAY } else { 0 }, 0o755)),
            };
            assert!(!believed(GATEWAY, "/tmp/xfrm", of), "{mode:o}");
            assert!(!believed(GATEWAY, "/tmp/own/xfrm", of), "{mode:o}: who removed it before?");
        }
        assert!(!believed(GATEWAY, "run/xfrm", |_| Some((0, 0o755))), "what is above is not known");
        assert!(!believed(GATEWAY, "/run/xfrm", |_| None));
    }

    #[test]
    fn owner_of_run_directory_is_trusted_at_abstract_name() {
        let appointed = |listener, directory: Option<(u32, u32)>, above: (u32, u32)| {
            is_owner_of_run_directory(listener, |path| {
                let (owner, mode) = if path == b"/run/uxfrm" { directory? } else { above };
                Some(DirectoryOwner { owner, mode })
            })
        };
        let roots = (0, 0o755);
        assert!(appointed(GATEWAY, Some((GATEWAY, 0o755)), roots));
        assert!(!appointed(OTHER, Some((GATEWAY, 0o755)), roots));
        assert!(!appointed(GATEWAY, Some(roots), roots), "root's own is nobody else's");
        assert!(!appointed(GATEWAY, Some((GATEWAY, 0o777)), roots));
        assert!(!appointed(GATEWAY, Some((GATEWAY, 0o755)), (0, 0o1777)), "who removed it?");
        assert!(!appointed(GATEWAY, Some((GATEWAY, 0o755)), (GATEWAY, 0o755)));
        assert!(!appointed(GATEWAY, None, roots));
        assert!(!appointed(UNKNOWN, Some((UNKNOWN, 0o755)), roots), "of another user namespace");
    }
}
