//! Whose a connection from a loopback address is (`sock_diag(7)`, `inet_diag`): TCP has no
//! `SO_PEERCRED`. No privilege is needed for it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};
use uxfrm_netlink_wire::{
    NLMSG_ERROR, NetlinkFlags, NetlinkHeader, NetlinkMessages, set_message_len,
};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `idiag_uid` and `idiag_inode` in `struct inet_diag_msg`.
const UID_AT: usize = 64;
const INODE_AT: usize = 68;
/// Bytes of `struct inet_diag_msg`, and some attributes behind it.
const LONGEST_ANSWER: usize = 1024;

/// Asks the kernel for the users behind connections.
#[derive(Debug)]
pub(super) struct LoopbackUsers {
    netlink: OwnedFd,
    /// How many questions were asked.
    asked: u32,
}

impl LoopbackUsers {
    /// # Errors
    /// The kernel's.
    pub(super) fn open() -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let diag = SockProtocol::NetlinkSockDiag;
        let netlink = socket(AddressFamily::Netlink, SockType::Raw, flags, diag)?;
        Ok(Self { netlink, asked: 0 })
    }

    /// Who has the other end of a connection, `peer`, of which `own` is this end.
    ///
    /// # Errors
    /// `ENOENT` where there is no such socket any more, or nobody has it: one that its process has
    /// closed is said to be root's. `ENOENT` too on a kernel without `CONFIG_INET_DIAG`.
    pub(super) fn of(&mut self, peer: SocketAddr, own: SocketAddr) -> io::Result<u32> {
        let netlink = self.netlink.as_raw_fd();
        self.asked = self.asked.wrapping_add(1);
        send(netlink, &question(peer, own, self.asked), MsgFlags::empty())?;
        let mut buffer = [0; LONGEST_ANSWER];
        // The kernel answers within the question, and each one; a signal interrupts neither.
        loop {
            let length = recv(netlink, &mut buffer, MsgFlags::empty())?;
            if let Some(told) = user(&buffer[..length], self.asked) {
                return told;
            }
        }
    }
}

/// A message with `struct inet_diag_req_v2`: the socket at `peer` that is connected to `own`.
fn question(peer: SocketAddr, own: SocketAddr, number: u32) -> Vec<u8> {
    let flags = NetlinkFlags::REQUEST.bits();
    let header = NetlinkHeader { len: 0, kind: BY_FAMILY, flags, seq: number, pid: 0 };
    let mut message = header.to_bytes().to_vec();
    let family = if peer.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    // No extensions, padding; any state.
    message.extend([family as u8, SockProtocol::Tcp as u8, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    for port in [peer.port(), own.port()] {
        message.extend(port.to_be_bytes());
    }
    for address in [peer.ip(), own.ip()] {
        message.extend(sixteen(address));
    }
    // Any interface, and no cookie (`INET_DIAG_NOCOOKIE`).
    for field in [0, u32::MAX, u32::MAX] {
        message.extend(field.to_ne_bytes());
    }
    set_message_len(&mut message);
    message
}

fn sixteen(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// What an answer says; `None` of one to an earlier question.
fn user(datagram: &[u8], number: u32) -> Option<io::Result<u32>> {
    let missing = || io::Error::from(Errno::ENOENT);
    let Some(message) = NetlinkMessages::of(datagram).next() else { return Some(Err(missing())) };
    if message.header.seq != number {
        return None;
    }
    if message.header.kind == NLMSG_ERROR {
        let code = message.error_code().unwrap_or(-libc::EPROTO);
        return Some(Err(io::Error::from_raw_os_error(code.saturating_neg())));
    }
    let field = |at| {
        let bytes = message.body().get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let has_owner = field(INODE_AT).is_some_and(|inode| inode != 0);
    Some(field(UID_AT).filter(|_| has_owner).ok_or_else(missing))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use nix::unistd::Uid;

    use super::*;

    #[test]
    fn connection_is_of_the_user_who_made_it_while_that_is_open() {
        let mut users = LoopbackUsers::open().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("not run: no {address} here");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (near, peer) = listener.accept().unwrap();
            let own = near.local_addr().unwrap();
            assert_eq!(users.of(peer, own).unwrap(), Uid::effective().as_raw(), "{address}");
            // The kernel says of it that it is root's.
            drop(client);
            let gone = users.of(peer, own).unwrap_err();
            assert_eq!(gone.raw_os_error(), Some(libc::ENOENT), "{address}");
        }
    }

    #[test]
    fn answer_to_another_question_is_none() {
        let header = NetlinkHeader { len: 0, kind: BY_FAMILY, flags: 0, seq: 7, pid: 0 };
        let mut answer = [&header.to_bytes()[..], &[0; UID_AT]].concat();
        answer.extend(1000_u32.to_ne_bytes());
        answer.extend(1_u32.to_ne_bytes());
        set_message_len(&mut answer);
        assert!(user(&answer, 8).is_none());
        assert_eq!(user(&answer, 7).unwrap().unwrap(), 1000);
        for cut in 0..answer.len() {
            let told = user(&answer[..cut], 7);
            assert!(told.is_none_or(|told| told.is_err()), "{cut}");
        }
    }
}
