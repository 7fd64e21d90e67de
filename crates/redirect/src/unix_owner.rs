//! Whose the socket at an abstract name is (`sock_diag(7)`, `unix_diag`): datagrams have no
//! `SO_PEERCRED`. `crates/io/src/unix_owner.rs` asks the same for the gateway.

use libc::{c_int, c_void, sockaddr_un, socklen_t, uid_t};

use crate::{gateway, next};
use uxfrm_netlink_wire::{NLMSG_ERROR, NetlinkMessages, find_attribute};

/// `NETLINK_SOCK_DIAG` and `SOCK_DIAG_BY_FAMILY`.
const SOCK_DIAG: c_int = 4;
const BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_PEER` and `UDIAG_SHOW_UID`.
const SHOW_PEER: u32 = 0x4;
const SHOW_UID: u32 = 0x40;
/// `UNIX_DIAG_PEER` and `UNIX_DIAG_UID`.
const PEER: u16 = 2;
const UID: u16 = 7;
/// Bytes of a request: a header and `struct unix_diag_req`.
const REQUEST: usize = 40;
/// Bytes of `struct unix_diag_msg`, before the attributes.
const ANSWER_HEADER: usize = 16;

/// The user whose datagram socket has an address; `None` where nobody has it or the kernel does not
/// tell.
pub(crate) fn owner(address: &sockaddr_un, length: socklen_t) -> Option<uid_t> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    with_socket((libc::AF_UNIX, kind, 0), |probe| {
        // SAFETY: the address is valid for its length.
        let connected =
            unsafe { next::connect()(probe, std::ptr::from_ref(address).cast(), length) };
        let own = inode(probe).filter(|_| connected == 0)?;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        with_socket((libc::AF_NETLINK, kind, SOCK_DIAG), |netlink| {
            let peer = ask(netlink, own, SHOW_PEER, PEER)?;
            ask(netlink, peer, SHOW_UID, UID)
        })
    })
}

fn with_socket<T>(
    (domain, kind, protocol): (c_int, c_int, c_int),
    act: impl FnOnce(c_int) -> Option<T>,
) -> Option<T> {
    // SAFETY: the call takes no pointers.
    let socket = unsafe { next::socket()(domain, kind, protocol) };
    if socket < 0 {
        return None;
    }
    let result = act(socket);
    gateway::close(socket);
    result
}

fn inode(socket: c_int) -> Option<u32> {
    // SAFETY: all bytes zero is a valid `stat`.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is valid.
    let result = unsafe { libc::fstat(socket, &raw mut found) };
    if result == 0 { u32::try_from(found.st_ino).ok() } else { None }
}

/// An attribute of the socket of an inode number. The kernel answers within the request.
fn ask(netlink: c_int, inode: u32, show: u32, attribute: u16) -> Option<u32> {
    let (request, mut answer) = (request(inode, show), [0_u8; 512]);
    // SAFETY: both buffers are valid for their lengths.
    let received = unsafe {
        let bytes = request.as_ptr().cast::<c_void>();
        if next::send()(netlink, bytes, REQUEST, 0) < 0 {
            return None;
        }
        let room = answer.as_mut_ptr().cast::<c_void>();
        next::recv()(netlink, room, answer.len(), libc::MSG_DONTWAIT)
    };
    let length = usize::try_from(received).ok()?;
    let message = NetlinkMessages::of(answer.get(..length)?).next()?;
    if message.header.kind == NLMSG_ERROR {
        return None;
    }
    let value = find_attribute(message.body().get(ANSWER_HEADER..)?, attribute)?;
    value.first_chunk().map(|number| u32::from_ne_bytes(*number))
}

fn request(inode: u32, show: u32) -> [u8; REQUEST] {
    let mut bytes = [0; REQUEST];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &40_u32.to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &1_u16.to_ne_bytes()); // NLM_F_REQUEST
    put(16, &[1]); // AF_UNIX
    // Any state, and no cookie (`INET_DIAG_NOCOOKIE`).
    for (at, field) in [(20, u32::MAX), (24, inode), (28, show), (32, u32::MAX), (36, u32::MAX)] {
        put(at, &field.to_ne_bytes());
    }
    bytes
}
