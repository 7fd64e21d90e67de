//! The gateway's side: messages to daemons, and daemons' messages to the wire.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockname,
    recvmsg, sendto, setsockopt, socket, sockopt,
};
use nix::unistd::{Uid, geteuid};
use uxfrm_packet::Version;

use super::{DeliveryError, IkeDatagram, delivery::Delivery, message, name};
use crate::cmsg::ControlMessages;
use crate::ipv6_support::is_missing;
use crate::socket::{self as sockets, SocketName};
use crate::udp::write_path;

/// Discard addresses (RFC 7600, RFC 6666), to which send-only sockets are bound.
const NOBODY4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
const NOBODY6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);

/// Bytes of the largest message.
const LARGEST: usize = message::LENGTH + (1 << 16);

/// Buffer for the next message.
#[derive(Debug)]
pub struct Buffer(Box<[u8]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(vec![0; LARGEST].into())
    }
}

/// Messages between the gateway and IKE daemons at a UDP port. Calls block, so each needs a thread
/// of its own.
#[derive(Debug)]
pub struct IkeExchange {
    own: UnixAddr,
    port: u16,
    mark: u32,
    user: Option<Uid>,
    daemons: OwnedFd,
    delivery: Delivery,
    wire4: OwnedFd,
    /// `None` without IPv6.
    wire6: Option<OwnedFd>,
    closed: AtomicBool,
}

impl IkeExchange {
    /// Binds the gateway's name for `port`. Messages are sent with `mark`; daemons of `user` are
    /// also accepted.
    ///
    /// The UDP sockets that receive must have been opened as [shared](crate::UdpOptions::shared).
    ///
    /// # Errors
    /// `EADDRINUSE` when somebody else of this network namespace has the name.
    pub fn open(port: u16, mark: u32, user: Option<u32>) -> io::Result<Self> {
        Self::bound_to(UnixAddr::new_abstract(name(port).as_bytes())?, port, mark, user)
    }

    /// Binds a file instead, which daemons try before the name.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_at(path: &Path, port: u16, mark: u32, user: Option<u32>) -> io::Result<Self> {
        Self::bound_to(UnixAddr::new(path)?, port, mark, user)
    }

    /// Continues with a predecessor's socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of_socket(
        daemons: OwnedFd,
        port: u16,
        mark: u32,
        user: Option<u32>,
    ) -> io::Result<Self> {
        Self::hearing(daemons, port, mark, user)
    }

    /// The socket, for a successor process.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.daemons.as_fd()
    }

    fn bound_to(own: UnixAddr, port: u16, mark: u32, user: Option<u32>) -> io::Result<Self> {
        let daemons =
            socket(AddressFamily::Unix, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&daemons, sockopt::PassCred, &true)?;
        bind(daemons.as_raw_fd(), &own)?;
        Self::hearing(daemons, port, mark, user)
    }

    fn hearing(daemons: OwnedFd, port: u16, mark: u32, user: Option<u32>) -> io::Result<Self> {
        let own = getsockname(daemons.as_raw_fd())?;
        let wire6 = (!is_missing(Version::V6))
            .then(|| sending(SocketAddr::new(NOBODY6.into(), port), mark));
        Ok(Self {
            own,
            port,
            mark,
            user: user.map(Uid::from_raw),
            daemons,
            delivery: Delivery::open(None)?,
            wire4: sending(SocketAddr::new(NOBODY4.into(), port), mark)?,
            wire6: wire6.transpose()?,
            closed: AtomicBool::new(false),
        })
    }

    /// Looks for daemons' files in this directory as well, which nobody but root and the gateway's
    /// user writes to.
    ///
    /// # Errors
    /// The kernel's.
    pub fn with_files(mut self, directory: Option<PathBuf>) -> io::Result<Self> {
        self.delivery = Delivery::open(directory)?;
        Ok(self)
    }

    /// Passes a message to the daemon bound to its destination address, or else to any address.
    ///
    /// # Errors
    /// When no daemon of an allowed user is bound there, or it does not read.
    pub fn deliver(&self, datagram: &IkeDatagram) -> Result<(), DeliveryError> {
        self.delivery.send(datagram, |user| self.permits(user))
    }

    /// Whether the kernel tells whose a daemon's socket is. Where it does not, any user of the host
    /// who takes a daemon's name before the daemon does gets its messages.
    #[must_use]
    pub fn knows_owners(&self) -> bool {
        self.delivery.knows_owners()
    }

    /// How often the kernel was asked whose a daemon's socket is: once for each socket, and not for
    /// each message.
    #[must_use]
    pub fn owner_questions(&self) -> u64 {
        self.delivery.owner_questions()
    }

    /// Waits for the next message of a daemon. `None` after [`close`](Self::close).
    ///
    /// # Errors
    /// The kernel's about the socket itself.
    pub fn next(&self, buffer: &mut Buffer) -> io::Result<Option<IkeDatagram>> {
        let Buffer(buffer) = buffer;
        loop {
            let length = self.receive(buffer)?;
            if self.closed.load(Ordering::Acquire) {
                return Ok(None);
            }
            let message = length.and_then(|length| message::parse(&buffer[..length]));
            if let Some((mut path, payload)) = message {
                path.local.set_port(self.port);
                return Ok(Some(IkeDatagram { path, payload: payload.to_vec() }));
            }
        }
    }

    /// Sends a daemon's message to the network. It may be fragmented on its way.
    ///
    /// # Errors
    /// The kernel's: no route, no such local address.
    pub fn send(&self, datagram: &IkeDatagram) -> io::Result<()> {
        let mut path = datagram.path;
        if path.local.ip().is_unspecified() {
            path.local.set_ip(self.source(path.remote)?);
        }
        let wire = if path.remote.is_ipv4() { Some(&self.wire4) } else { self.wire6.as_ref() };
        let wire = wire.ok_or(Errno::EAFNOSUPPORT)?;
        let mut control = ControlMessages::EMPTY;
        write_path(&mut control, &path);
        transmit(wire.as_fd(), &datagram.payload, SocketName::of(path.remote), control)
    }

    /// Ends present and future waits in [`next`](Self::next).
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // A full queue wakes it as well.
        let _woken = sendto(self.daemons.as_raw_fd(), &[], &self.own, MsgFlags::MSG_DONTWAIT);
    }

    /// Length of the next message; `None` if its sender is not allowed.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut parts = [IoSliceMut::new(buffer)];
        let mut control = nix::cmsg_space!(libc::ucred);
        let received = loop {
            let fd = self.daemons.as_raw_fd();
            match recvmsg::<()>(fd, &mut parts, Some(&mut control), MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                result => break result?,
            }
        };
        let permitted = received.cmsgs()?.any(|message| {
            matches!(message, ControlMessageOwned::ScmCredentials(who) if self.permits(Uid::from_raw(who.uid())))
        });
        Ok(permitted.then_some(received.bytes))
    }

    fn permits(&self, user: Uid) -> bool {
        user.is_root() || user == geteuid() || Some(user) == self.user
    }

    /// The address that the kernel would send from.
    fn source(&self, remote: SocketAddr) -> io::Result<std::net::IpAddr> {
        let probe = sockets::open(sockets::family(remote.ip()), libc::SOCK_DGRAM, 0)?;
        sockets::set_mark(probe.as_fd(), self.mark)?;
        sockets::connect(probe.as_fd(), remote)?;
        Ok(sockets::local_address(probe.as_fd())?.ip())
    }
}

/// A send-only socket of a port, bound to a discard address; each message names its own source.
fn sending(local: SocketAddr, mark: u32) -> io::Result<OwnedFd> {
    let socket = sockets::open(sockets::family(local.ip()), libc::SOCK_DGRAM, 0)?;
    let fd = socket.as_fd();
    sockets::set(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    match local {
        SocketAddr::V4(_) => {
            sockets::set(fd, libc::IPPROTO_IP, libc::IP_FREEBIND, 1)?;
            sockets::set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT)?;
        }
        SocketAddr::V6(_) => {
            sockets::set(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            sockets::set(fd, libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1)?;
            let dont = libc::IPV6_PMTUDISC_DONT;
            sockets::set(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, dont)?;
        }
    }
    sockets::set_mark(fd, mark)?;
    sockets::bind(fd, local)?;
    Ok(socket)
}

fn transmit(
    socket: BorrowedFd<'_>,
    payload: &[u8],
    mut to: SocketName,
    mut control: ControlMessages,
) -> io::Result<()> {
    let mut vector =
        libc::iovec { iov_base: payload.as_ptr().cast_mut().cast(), iov_len: payload.len() };
    // SAFETY: a msghdr is integers and pointers, for which zero bytes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut vector;
    header.msg_iovlen = 1;
    (header.msg_name, header.msg_namelen) = (to.as_ptr(), to.len());
    if control.len() > 0 {
        (header.msg_control, header.msg_controllen) = (control.as_ptr(), control.len());
    }
    // SAFETY: the header points to the payload, the name and the control messages with their
    // lengths; all live, and the kernel only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
