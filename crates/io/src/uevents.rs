//! Word from the kernel that the virtual machine goes on from a snapshot, perhaps as one of several (`drivers/virt/vmgenid.c`, Linux 6.10).
//!
//! It is a uevent of a device with `NEW_VMGENID=1`. Network namespaces of containers with users of their own are not told (`lib/kobject_uevent.c`).

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

/// Listens; its descriptor is readable when there is something to [take](Uevents::take_new_generation).
#[derive(Debug)]
pub struct Uevents {
    socket: Socket,
}

impl Uevents {
    /// Listens from now on, in the network namespace that the thread is in.
    ///
    /// # Errors
    /// The kernel's, as where a container may not.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_KOBJECT_UEVENT)?;
        socket.bind(&SocketAddr::new(0, KERNEL))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// Whether the kernel has said so since this was asked last. Who may send to the group has `CAP_NET_ADMIN`, and is believed.
    #[must_use]
    pub fn take_new_generation(&self) -> bool {
        let (mut is_new, mut event) = (false, [0; LONGEST]);
        loop {
            match self.socket.recv(&mut &mut event[..], 0) {
                Ok(length) => {
                    is_new |= tells_of_generation(event.get(..length).unwrap_or_default())
                }
                // So many that some were lost, and it may have been among them.
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

/// Whether a uevent says so: `change@DEVPATH`, and variables, with a zero byte behind each.
fn tells_of_generation(event: &[u8]) -> bool {
    event.split(|byte| *byte == 0).skip(1).any(|variable| variable == SAID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_is_told_from_all_others() {
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
