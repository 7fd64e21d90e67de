//! The other end of a UNIX socket: taking a connection, and whose it is (`unix(7)`).

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::sys::socket::{SockFlag, accept4};

/// Groups that are read at the first attempt; most users have fewer.
const USUAL: usize = 64;

/// Takes a connection that waits at a listener; it does not block, and no program inherits it. One
/// system call, `accept4`.
///
/// # Errors
/// The kernel's: `EAGAIN` when nobody waits at a listener that does not block.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let taken = accept4(listener.as_raw_fd(), SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(taken) })
}

/// The supplementary groups that the process at the other end had when it connected
/// (`SO_PEERGROUPS`). Its own group is not among them.
///
/// # Errors
/// The kernel's: `ENOPROTOOPT` before Linux 4.13.
pub fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; USUAL];
    loop {
        let mut length = bytes(groups.len())?;
        // SAFETY: the pointers are to as many live bytes as the length says, and to the length.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let found = usize::try_from(length).map_err(io::Error::other)? / size_of::<u32>();
        if result == 0 {
            groups.truncate(found);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel says how much room it needs.
        if error.raw_os_error() != Some(libc::ERANGE) || found <= groups.len() {
            return Err(error);
        }
        groups.resize(found, 0);
    }
}

fn bytes(groups: usize) -> io::Result<libc::socklen_t> {
    libc::socklen_t::try_from(groups * size_of::<u32>()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn peer_has_the_groups_of_its_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        let own = nix::unistd::getgroups().unwrap();
        let own: Vec<_> = own.into_iter().map(|group| group.as_raw()).collect();
        assert_eq!(groups(near.as_fd()).unwrap(), own);
    }
}
