//! Socket options, addresses and path MTUs. System calls that `nix` wraps only by type are made
//! here by number.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZeroU32;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::PathMtu;

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct SocketName {
    bytes: [u8; 28],
}

impl SocketName {
    /// Bytes of the largest name.
    pub(crate) const ROOM: u32 = 28;

    /// A name without an address.
    pub(crate) const EMPTY: Self = Self { bytes: [0; 28] };

    /// The name of an address.
    pub(crate) fn of(address: SocketAddr) -> Self {
        let mut name = Self::EMPTY;
        name.bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                name.bytes[..2].copy_from_slice(&2_u16.to_ne_bytes());
                name.bytes[4..8].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                name.bytes[..2].copy_from_slice(&10_u16.to_ne_bytes());
                name.bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                name.bytes[8..24].copy_from_slice(&v6.ip().octets());
                name.bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        name
    }

    /// The address, if it is IPv4 or IPv6.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        let b = &self.bytes;
        let port = u16::from_be_bytes([b[2], b[3]]);
        match u16::from_ne_bytes([b[0], b[1]]) {
            2 => Some(SocketAddrV4::new(Ipv4Addr::new(b[4], b[5], b[6], b[7]), port).into()),
            10 => {
                let ip = <[u8; 16]>::try_from(&b[8..24]).ok()?;
                let scope = u32::from_ne_bytes([b[24], b[25], b[26], b[27]]);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into())
            }
            _other_family => None,
        }
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u32 {
        if u16::from_ne_bytes([self.bytes[0], self.bytes[1]]) == 2 { 16 } else { Self::ROOM }
    }

    /// For a `msghdr`.
    pub(crate) fn as_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }
}

/// A non-blocking, close-on-exec socket.
pub(crate) fn open(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the result is checked before it is owned.
    let fd =
        unsafe { libc::socket(family, kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The socket family of an address.
pub(crate) fn family(address: IpAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// Sets an option whose value is an `int`.
pub(crate) fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is to a live i32 and the length says so.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), 4)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option whose value is an `int`.
pub(crate) fn option(socket: BorrowedFd<'_>, level: i32, option: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut length = 4;
    // SAFETY: the pointers are to a live i32 and its length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Packets lost in a packet socket's full queue since the last call (`PACKET_STATISTICS`).
pub(crate) fn packets_lost(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut counts = [0_u32; 2];
    let mut length = 8;
    // SAFETY: the pointers are to two live u32, as `struct tpacket_stats` has, and their length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut counts).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(counts[1]) }
}

/// Packets lost in a socket's full receive queue, polled now and then. `SO_RXQ_OVFL` would report
/// them only with the next packet that is queued (`include/net/sock.h: sock_skb_set_dropcount`),
/// and after a burst none may come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RxOverflow {
    seen: u32,
}

impl RxOverflow {
    /// Losses since the last call; 0 before Linux 4.12, which cannot report them.
    pub(crate) fn since(&mut self, socket: BorrowedFd<'_>) -> u64 {
        let Ok(count) = dropped(socket) else { return 0 };
        // The kernel's counter wraps.
        u64::from(count.wrapping_sub(std::mem::replace(&mut self.seen, count)))
    }
}

/// `SK_MEMINFO_DROPS` of `SO_MEMINFO`.
fn dropped(socket: BorrowedFd<'_>) -> io::Result<u32> {
    const DROPS: usize = 8;
    let mut counts = [0_u32; DROPS + 1];
    let mut length = 4 * 9;
    // SAFETY: the pointers are to nine live u32 and their length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            (&raw mut counts).cast(),
            &raw mut length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(counts[DROPS]) }
}

/// Limits a socket's queue to packets for which a classic BPF program returns nonzero.
pub(crate) fn attach_filter(
    socket: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).unwrap_or(u16::MAX);
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    let size = u32::try_from(size_of::<libc::sock_fprog>()).unwrap_or(0);
    let (level, option) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    // SAFETY: the pointer is to a live sock_fprog of the size given, which points to as many live
    // instructions as it says; the kernel copies them.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const program).cast(), size)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Binds to a local address.
pub(crate) fn bind(socket: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let mut name = SocketName::of(address);
    // SAFETY: the pointer is to a live name of at least the length given.
    let result = unsafe { libc::bind(socket.as_raw_fd(), name.as_ptr().cast(), name.len()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Fixes the other end.
pub(crate) fn connect(socket: BorrowedFd<'_>, address: SocketAddr) -> io::Result<()> {
    let mut name = SocketName::of(address);
    // SAFETY: the pointer is to a live name of at least the length given.
    let result = unsafe { libc::connect(socket.as_raw_fd(), name.as_ptr().cast(), name.len()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The address that a socket is bound to.
pub(crate) fn local_address(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let mut name = SocketName::EMPTY;
    let mut length = SocketName::ROOM;
    // SAFETY: the pointers are to a live name and its room.
    let result =
        unsafe { libc::getsockname(socket.as_raw_fd(), name.as_ptr().cast(), &raw mut length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    name.address().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}

/// Asks for `bytes` of kernel buffer in both directions, beyond the system's limit if permitted.
pub(crate) fn enlarge(socket: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    for (force, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set(socket, libc::SOL_SOCKET, force, bytes).is_err() {
            set(socket, libc::SOL_SOCKET, plain, bytes)?;
        }
    }
    Ok(())
}

/// Makes the kernel timestamp datagrams (`SO_TIMESTAMPNS`, `CLOCK_REALTIME`).
pub(crate) fn note_arrival(socket: BorrowedFd<'_>) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Sets the mark of all packets sent; 0 is the default and always permitted.
pub(crate) fn set_mark(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    if mark == 0 {
        Ok(())
    } else {
        set(socket, libc::SOL_SOCKET, libc::SO_MARK, mark.cast_signed())
    }
}

/// Restricts a socket to one device, in both directions.
pub(crate) fn bind_to_device(socket: BorrowedFd<'_>, index: NonZeroU32) -> io::Result<()> {
    let index =
        i32::try_from(index.get()).map_err(|_| io::Error::from_raw_os_error(libc::ENODEV))?;
    set(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
}

/// The kernel's present path MTU to an address.
///
/// Three system calls: for the rare moment after an `EMSGSIZE`.
pub(crate) fn narrow_path(remote: IpAddr, mark: u32) -> Option<PathMtu> {
    let probe = open(family(remote), libc::SOCK_DGRAM, 0).ok()?;
    let probe = std::os::fd::AsFd::as_fd(&probe);
    set_mark(probe, mark).ok()?;
    connect(probe, SocketAddr::new(remote, 9)).ok()?;
    let (level, name) = match remote {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = option(probe, level, name).ok().and_then(|mtu| u32::try_from(mtu).ok())?;
    Some(PathMtu { to: remote, mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_carry_addresses_unchanged() {
        for text in ["192.0.2.7:4500", "[2001:db8::7]:500", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketName::of(address).address(), Some(address));
        }
        assert_eq!(SocketName::EMPTY.address(), None);
    }
}
