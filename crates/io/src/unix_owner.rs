//! Whose a UNIX datagram socket is (`sock_diag(7)`, `unix_diag`): datagrams have no `SO_PEERCRED`.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
    sockopt,
};
use nix::sys::stat::fstat;
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::Uid;
use uxfrm_netlink_wire::{
    NLMSG_ERROR, NetlinkFlags, NetlinkHeader, NetlinkMessages, find_attribute, set_message_len,
};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_NAME`, `UDIAG_SHOW_PEER` and `UDIAG_SHOW_UID`.
const SHOW_NAME: u32 = 0x1;
const SHOW_PEER: u32 = 0x4;
const SHOW_UID: u32 = 0x40;
/// `UNIX_DIAG_NAME`, `UNIX_DIAG_PEER` and `UNIX_DIAG_UID`.
const NAME: u16 = 0;
const PEER: u16 = 2;
const UID: u16 = 7;
/// Bytes of `struct unix_diag_msg`, before the attributes.
const ANSWER_HEADER: usize = 16;
/// Bytes of the longest answer: a name and two numbers as attributes.
const LONGEST_ANSWER: usize = 512;
/// Time in ms until the kernel, which answers within the request, is given up.
const TIMEOUT: i64 = 1_000;

/// Inode number of a socket of ours. It is looked up when the socket is opened: threads that may be
/// confined have no `fstat`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketInode(u32);

impl SocketInode {
    /// Of this socket.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        Ok(Self(u32::try_from(fstat(socket)?.st_ino).map_err(io::Error::other)?))
    }
}

/// Asks the kernel whose the socket is that one of ours is connected to. The kernel looks through
/// all UNIX sockets of the network namespace for an answer, so a question is dear where there are
/// many.
#[derive(Debug)]
pub(crate) struct UnixDiag {
    netlink: OwnedFd,
    questions: AtomicU64,
}

impl UnixDiag {
    /// Opens a netlink socket for questions.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn open() -> io::Result<Self> {
        let diag = SockProtocol::NetlinkSockDiag;
        let netlink = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, diag)?;
        setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::milliseconds(TIMEOUT))?;
        Ok(Self { netlink, questions: AtomicU64::new(0) })
    }

    /// How often an owner was asked for.
    pub(crate) fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }

    /// The user who made the socket that `own` is connected to, whose name has these bytes (an
    /// abstract one behind a zero byte, a path before one): inode numbers alone repeat after 2^32
    /// sockets. A pair's sockets have none.
    ///
    /// # Errors
    /// `ENOENT` on a kernel without `CONFIG_UNIX_DIAG`; `ENODATA` when ours is not connected, the
    /// socket that the kernel finds has another name, or the kernel is older than 5.3.
    pub(crate) fn owner_of_peer(&self, own: SocketInode, name: Option<&[u8]>) -> io::Result<Uid> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let peer = number(&attribute(&self.ask(own.0, SHOW_PEER)?, PEER)?)?;
        let told = self.ask(peer, SHOW_NAME | SHOW_UID)?;
        if let Some(name) = name
            && attribute(&told, NAME)? != name
        {
            return Err(missing());
        }
        number(&attribute(&told, UID)?).map(Uid::from_raw)
    }

    /// What the kernel says of the socket of this inode number.
    fn ask(&self, inode: u32, show: u32) -> io::Result<Vec<u8>> {
        let fd = self.netlink.as_raw_fd();
        send(fd, &request(inode, show), MsgFlags::empty())?;
        let mut buffer = [0; LONGEST_ANSWER];
        let length = recv(fd, &mut buffer, MsgFlags::empty())?;
        Ok(buffer[..length].to_vec())
    }
}

/// A message with `struct unix_diag_req`.
fn request(inode: u32, show: u32) -> Vec<u8> {
    let flags = NetlinkFlags::REQUEST.bits();
    let header = NetlinkHeader { len: 0, kind: BY_FAMILY, flags, seq: 0, pid: 0 };
    let mut message = header.to_bytes().to_vec();
    let family = u32::from(AddressFamily::Unix as u8).to_le_bytes();
    message.extend(family);
    // Any state, and no cookie (`INET_DIAG_NOCOOKIE`).
    for field in [u32::MAX, inode, show, u32::MAX, u32::MAX] {
        message.extend(field.to_ne_bytes());
    }
    set_message_len(&mut message);
    message
}

fn missing() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODATA)
}

/// The value of an attribute of an answer.
fn attribute(datagram: &[u8], kind: u16) -> io::Result<Vec<u8>> {
    let message = NetlinkMessages::of(datagram).next().ok_or_else(missing)?;
    if message.header.kind == NLMSG_ERROR {
        let code = message.error_code().unwrap_or(-libc::EPROTO);
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    let attributes = message.body().get(ANSWER_HEADER..).unwrap_or_default();
    find_attribute(attributes, kind).map(<[u8]>::to_vec).ok_or_else(missing)
}

fn number(value: &[u8]) -> io::Result<u32> {
    value.first_chunk().map(|number| u32::from_ne_bytes(*number)).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    #[test]
    fn peer_is_of_the_user_who_made_it() {
        let text = format!("uxfrm-test/owner/{}", std::process::id());
        let bytes = [b"\0", text.as_bytes()].concat();
        let name = SocketAddr::from_abstract_name(&text).unwrap();
        let bound = UnixDatagram::bind_addr(&name).unwrap();
        let near = UnixDatagram::unbound().unwrap();
        let (diag, own) = (UnixDiag::open().unwrap(), SocketInode::of(&near).unwrap());
        let unknown = diag.owner_of_peer(own, Some(&bytes)).unwrap_err();
        assert_eq!(unknown.raw_os_error(), Some(libc::ENODATA));
        near.connect_addr(&name).unwrap();
        assert_eq!(diag.owner_of_peer(own, Some(&bytes)).unwrap(), nix::unistd::geteuid());
        assert!(diag.owner_of_peer(own, Some(b"\0uxfrm-test/another")).is_err());
        drop(bound);
        assert!(diag.owner_of_peer(own, Some(&bytes)).is_err(), "nobody is there any more");
    }

    #[test]
    fn answer_without_the_number_is_an_error() {
        let mut refused = NetlinkHeader { len: 0, kind: NLMSG_ERROR, flags: 0, seq: 0, pid: 0 }
            .to_bytes()
            .to_vec();
        refused.extend((-libc::ENOENT).to_ne_bytes());
        set_message_len(&mut refused);
        let mut empty = request(1, SHOW_UID);
        set_message_len(&mut empty);
        for (datagram, errno) in
            [(&refused[..], libc::ENOENT), (&empty, libc::ENODATA), (&[], libc::ENODATA)]
        {
            assert_eq!(attribute(datagram, UID).unwrap_err().raw_os_error(), Some(errno));
        }
    }
}
