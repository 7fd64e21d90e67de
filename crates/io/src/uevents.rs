//! Notices that the virtual machine was restored from a snapshot, perhaps as one of several
//! (`drivers/virt/vmgenid.c`, Linux 6.10).
//!
//! They are device uevents with `NEW_VMGENID=1`. Network namespaces of containers with their own
//! user namespace do not receive them (`lib/kobject_uevent.c`).

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_KOBJECT_UEVENT};
use nix::libc;

/// The kernel's own uevents; udev repeats them in another group.
const KERNEL: u32 = 1;
/// `UEVENT_BUFFER_SIZE`, and the line before it.
const LONGEST: usize = 4096;
const SAID: &[u8] = b"NEW_VMGENID=1";

/// A listening socket; readable when there is something to [take](Uevents::take_new_generation).
#[derive(Debug)]
pub struct Uevents {
    socket: Socket,
}

impl Uevents {
    /// Listens from now on, in the thread's network namespace.
    ///
    /// # Errors
    /// The kernel's, as in a container without permission.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_KOBJECT_UEVENT)?;
        socket.bind(&SocketAddr::new(0, KERNEL))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// Whether such a notice came since the last call. Senders to the group have `CAP_NET_ADMIN`,
    /// and are trusted.
    #[must_use]
    pub fn take_new_generation(&self) -> bool {
        let (mut is_new, mut event) = (false, [0; LONGEST]);
        loop {
            match self.socket.recv(&mut &mut event[..], 0) {
                Ok(length) => {
                    is_new |= tells_of_generation(event.get(..length).unwrap_or_default())
                }
                // Notices were lost, perhaps such ones.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => is_new = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_nothing) => return is_new,
            }
        }
    }
}

impl AsFd for Uevents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Parses a uevent: `change@DEVPATH`, and variables, each with a zero byte behind it.
fn tells_of_generation(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).skip(1).any(|variable| variable == SAID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vmgenid_uevent_is_recognised() {
        let event = |last: &str| {
            format!(
                "change@/devices/LNXSYSTM:00/VMGENCTR:00\0ACTION=change\0SUBSYSTEM=platform\0{last}\0SEQNUM=7\0"
            )
        };
        assert!(tells_of_generation(event("NEW_VMGENID=1").as_bytes()));
        for other in ["NEW_VMGENID=0", "NEW_VMGENID=", "xNEW_VMGENID=1", "NEW_VMGENID=11", ""] {
            assert!(!tells_of_generation(event(other).as_bytes()), "{other}");
        }
        for short in [&b""[..], b"NEW_VMGENID=1", b"\0", b"libudev\0\xfe\xed\xca\xfe"] {
            assert!(!tells_of_generation(short));
        }
    }
}
