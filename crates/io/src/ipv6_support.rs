//! IP versions that the kernel lacks: IPv6 where it was booted with `ipv6.disable=1`.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use nix::sys::eventfd::{EfdFlags, EventFd};
use uxfrm_packet::{Batch, Pool, Version};

use crate::port::{Accepts, Port, Transmitted, wire_packets};
use crate::socket;

/// Whether the kernel lacks an IP version. A program without permission for its sockets is not
/// enough: the host may have it.
#[must_use]
pub fn is_missing(version: Version) -> bool {
    let unsupported = |error: io::Error| error.raw_os_error() == Some(libc::EAFNOSUPPORT);
    match version {
        Version::V4 => false,
        Version::V6 => {
            !Path::new("/proc/net/if_inet6").exists()
                && socket::open(libc::AF_INET6, libc::SOCK_DGRAM, 0).is_err_and(unsupported)
        }
    }
}

/// A port in place of one of a missing version: it receives nothing and refuses all packets.
#[derive(Debug)]
pub struct MissingIpPort {
    /// Never readable.
    never: EventFd,
}

impl MissingIpPort {
    /// A port that does nothing.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { never: EventFd::from_flags(EfdFlags::EFD_CLOEXEC)? })
    }
}

impl Port for MissingIpPort {
    fn receive(&mut self, _pool: &mut Pool, _into: &mut Batch) -> io::Result<usize> {
        Ok(0)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut transmitted = Transmitted::default();
        for packet in batch.drain() {
            let refused = io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
            transmitted.refuse(wire_packets(&packet), &refused);
            pool.give(packet);
        }
        transmitted
    }

    fn accepts(&self) -> Accepts {
        Accepts::PLAIN
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.never.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use uxfrm_packet::PacketBuf;

    use super::*;

    #[test]
    fn missing_ip_version_port_refuses_with_eafnosupport() {
        let (mut pool, mut batch) = (Pool::new(), Batch::new());
        let mut port = MissingIpPort::new().unwrap();
        assert_eq!(port.receive(&mut pool, &mut batch).unwrap(), 0);
        (0..3).for_each(|_| batch.push(PacketBuf::from_slice(&[0x60; 60])));
        let transmitted = port.transmit(&mut batch, &mut pool);
        assert_eq!((transmitted.packets, transmitted.refused.failed), (0, 3));
        assert_eq!(transmitted.refused.errno, Some(libc::EAFNOSUPPORT));
        assert!(batch.is_empty());
    }

    #[test]
    fn ipv6_support_matches_socket_availability() {
        assert!(!is_missing(Version::V4));
        let has = socket::open(libc::AF_INET6, libc::SOCK_DGRAM, 0).is_ok();
        assert!(!(has && is_missing(Version::V6)));
    }
}
