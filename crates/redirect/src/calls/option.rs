//! Socket options: netlink's on our sockets; on any socket those that hand its traffic or ESP to
//! XFRM.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void, socklen_t};

use super::datagram::{self, Meaning};
use super::own_policy::OwnPolicy;
use crate::ends::AddressFamily;
use crate::table::{self, Datagram, Room, Socket};
use crate::{errno, gateway, next};

/// Bytes of an option that is a number.
const INTEGER: socklen_t = 4;
const _: () = assert!(size_of::<c_int>() == INTEGER as usize);

/// Room to send that a connection has in any case.
const USUAL: u32 = 64 * 1024;

const IP_IPSEC_POLICY: c_int = 16;
const IPV6_IPSEC_POLICY: c_int = 34;
const UDP_ENCAP_ESPINUDP_NON_IKE: c_int = 1;
const UDP_ENCAP_ESPINUDP: c_int = 2;

/// Netlink options that are switches; membership is a number, `LIST_MEMBERSHIPS` read-only.
const SWITCHES: [c_int; 7] = [
    libc::NETLINK_PKTINFO,
    libc::NETLINK_BROADCAST_ERROR,
    libc::NETLINK_NO_ENOBUFS,
    libc::NETLINK_LISTEN_ALL_NSID,
    libc::NETLINK_CAP_ACK,
    libc::NETLINK_EXT_ACK,
    libc::NETLINK_GET_STRICT_CHK,
];

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn setsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the caller promises `length` readable bytes.
    let number = || unsafe { read(value, length) };
    // What its traffic passes by is the gateway's affair, which sends it.
    if let Some(socket) = table::datagram(descriptor) {
        match datagram::meaning(level, name) {
            Meaning::RecvOption(wish) => socket.set_wanted(wish, number().unwrap_or(0)),
            Meaning::Tos => socket.set_tos(number().unwrap_or(0).to_le_bytes()[0]),
            Meaning::Nothing => {}
            // SAFETY: the caller's promises are passed on.
            Meaning::Socket => unsafe {
                return next::setsockopt()(descriptor, level, name, value, length);
            },
        }
        return 0;
    }
    // SAFETY: as above.
    let all = || unsafe { bytes(value, length) };
    match (level, name) {
        (libc::IPPROTO_IP, libc::IP_XFRM_POLICY) | (libc::IPPROTO_IPV6, libc::IPV6_XFRM_POLICY) => {
            follow(descriptor, all().map(OwnPolicy::of_xfrm))
        }
        (libc::IPPROTO_IP, IP_IPSEC_POLICY) | (libc::IPPROTO_IPV6, IPV6_IPSEC_POLICY) => {
            follow(descriptor, all().map(OwnPolicy::of_key))
        }
        (libc::IPPROTO_UDP, libc::UDP_ENCAP) if is_esp(number()) => 0,
        (libc::SOL_SOCKET, libc::SO_MARK) if passes_by(descriptor) => 0,
        (libc::SOL_SOCKET, libc::SO_SNDBUF) if keeps(descriptor, Room::Send, number()) => 0,
        (libc::SOL_SOCKET, libc::SO_RCVBUF) if keeps(descriptor, Room::Receive, number()) => 0,
        (libc::SOL_NETLINK, _) => match table::find(descriptor) {
            Some(socket) => set_netlink(descriptor, socket, name, number()),
            // SAFETY: the caller's promises are passed on.
            None => unsafe { next::setsockopt()(descriptor, level, name, value, length) },
        },
        _ => {
            table::find(descriptor).into_iter().for_each(Socket::spoil);
            // SAFETY: the caller's promises are passed on.
            unsafe { next::setsockopt()(descriptor, level, name, value, length) }
        }
    }
}

/// Buffer sizes are applied only when somebody reads them or needs them: a Unix socket receives
/// into the sender's buffer, which mostly suffices.
fn keeps(descriptor: c_int, room: Room, bytes: Option<c_int>) -> bool {
    let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok()).filter(|bytes| *bytes != 0);
    let (Some(socket), Some(bytes)) = (table::find(descriptor), bytes) else { return false };
    let makes_none = !socket.is_spoilt() && (room == Room::Receive || bytes <= USUAL);
    if makes_none {
        socket.set_room(room, bytes);
    }
    makes_none
}

/// Gives a socket the room that was asked for.
pub(super) fn make_room(descriptor: c_int, socket: &Socket) {
    for (room, name) in [(Room::Send, libc::SO_SNDBUF), (Room::Receive, libc::SO_RCVBUF)] {
        if let Some(bytes) = socket.take_room(room) {
            socket.spoil();
            let value = (&raw const bytes).cast();
            // SAFETY: `bytes` is valid for its length. The kernel takes any number.
            unsafe { next::setsockopt()(descriptor, libc::SOL_SOCKET, name, value, INTEGER) };
        }
    }
}

/// Does what a socket's own policy asks for; without one, those that it had are gone.
fn follow(descriptor: c_int, policy: Option<OwnPolicy>) -> c_int {
    match policy {
        Some(OwnPolicy::LetOut) => pass_by(descriptor),
        Some(OwnPolicy::LetIn) => 0,
        Some(OwnPolicy::More) => errno::fail(libc::EOPNOTSUPP),
        Some(OwnPolicy::Malformed) => errno::fail(libc::EINVAL),
        None if passes_by(descriptor) => set_mark(descriptor, 0),
        None => 0,
    }
}

/// An IKE daemon's bypass. The gateway lets pass what has its mark.
fn pass_by(descriptor: c_int) -> c_int {
    let mark = match gateway::mark() {
        Ok(mark) => mark,
        Err(errno) => return errno::fail(errno),
    };
    let result = set_mark(descriptor, mark);
    if result == 0 {
        MARK.store(mark, Ordering::Relaxed);
    }
    result
}

fn set_mark(descriptor: c_int, mark: u32) -> c_int {
    let value = (&raw const mark).cast();
    // SAFETY: `mark` is valid for its length.
    unsafe { next::setsockopt()(descriptor, libc::SOL_SOCKET, libc::SO_MARK, value, INTEGER) }
}

/// The gateway's mark, once a socket has it.
static MARK: AtomicU32 = AtomicU32::new(0);

/// Whether a socket has a bypass that a mark of the program's own would take away.
fn passes_by(descriptor: c_int) -> bool {
    let (mut mark, mut length) = (0_u32, INTEGER);
    let ours = MARK.load(Ordering::Relaxed);
    // SAFETY: `mark` is valid for its length.
    let result = unsafe {
        let value = (&raw mut mark).cast();
        next::getsockopt()(descriptor, libc::SOL_SOCKET, libc::SO_MARK, value, &raw mut length)
    };
    ours != 0 && result == 0 && mark == ours
}

/// With the option set, the kernel would take ESP from the port and drop it.
fn is_esp(encapsulation: Option<c_int>) -> bool {
    matches!(encapsulation, Some(0 | UDP_ENCAP_ESPINUDP_NON_IKE | UDP_ENCAP_ESPINUDP))
}

fn set_netlink(descriptor: c_int, socket: &Socket, name: c_int, value: Option<c_int>) -> c_int {
    let Some(value) = value else { return errno::fail(libc::EINVAL) };
    match name {
        libc::NETLINK_ADD_MEMBERSHIP | libc::NETLINK_DROP_MEMBERSHIP => {
            let Some(bit) = group(value) else { return errno::fail(libc::EINVAL) };
            let groups = socket.groups();
            let join = name == libc::NETLINK_ADD_MEMBERSHIP;
            socket.set_groups(if join { groups | bit } else { groups & !bit });
        }
        _ if SWITCHES.contains(&name) => {
            let (options, bit) = (socket.options(), 1 << name);
            socket.set_options(if value != 0 { options | bit } else { options & !bit });
        }
        _ => return errno::fail(libc::ENOPROTOOPT),
    }
    gateway::tell(descriptor, socket).map_or_else(errno::fail, |()| 0)
}

/// The bit of a group's number.
fn group(number: c_int) -> Option<u32> {
    1_u32.checked_shl(u32::try_from(number).ok()?.checked_sub(1)?)
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn getsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let answer = match table::datagram(descriptor) {
        Some(socket) => answer_datagram(socket, level, name),
        None => table::find(descriptor).and_then(|socket| {
            if (level, name) == (libc::SOL_SOCKET, libc::SO_SNDBUF)
                || (level, name) == (libc::SOL_SOCKET, libc::SO_RCVBUF)
            {
                make_room(descriptor, socket);
            }
            answer(socket, level, name)
        }),
    };
    match answer {
        // SAFETY: the caller promises `*length` writable bytes.
        Some(Ok(number)) => unsafe { write(value, length, number) },
        Some(Err(errno)) => errno::fail(errno),
        // SAFETY: the caller's promises are passed on.
        None => unsafe { next::getsockopt()(descriptor, level, name, value, length) },
    }
}

/// What an option of our socket is; `None` for those that the connection itself has.
fn answer(socket: &Socket, level: c_int, name: c_int) -> Option<Result<u32, c_int>> {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Some(Ok(libc::AF_NETLINK.unsigned_abs())),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Some(Ok(libc::NETLINK_XFRM.unsigned_abs())),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Some(Ok(socket.kind().unsigned_abs())),
        (libc::SOL_NETLINK, libc::NETLINK_LIST_MEMBERSHIPS) => Some(Ok(socket.groups())),
        (libc::SOL_NETLINK, name) if SWITCHES.contains(&name) => {
            Some(Ok(socket.options() >> name & 1))
        }
        (libc::SOL_NETLINK, _) => Some(Err(libc::ENOPROTOOPT)),
        _ => None,
    }
}

/// As [`answer`], of a UDP socket.
fn answer_datagram(socket: Datagram, level: c_int, name: c_int) -> Option<Result<u32, c_int>> {
    let domain = match socket.family() {
        AddressFamily::V4 => libc::AF_INET,
        AddressFamily::V6 => libc::AF_INET6,
    };
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => domain.unsigned_abs(),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_UDP.unsigned_abs(),
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_DGRAM.unsigned_abs(),
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => 1,
        _ => match datagram::meaning(level, name) {
            Meaning::RecvOption(wish) => socket.wants(wish).into(),
            Meaning::Tos => socket.tos().into(),
            Meaning::Socket => return None,
            Meaning::Nothing => 0,
        },
    };
    Some(Ok(number))
}

/// # Safety
/// `value` is null or valid for `length` bytes.
unsafe fn read(value: *const c_void, length: socklen_t) -> Option<c_int> {
    if value.is_null() || length < INTEGER {
        return None;
    }
    // SAFETY: by this function's contract there are enough bytes.
    Some(unsafe { value.cast::<c_int>().read_unaligned() })
}

/// # Safety
/// `value` is null or valid for `length` bytes, as long as they are used.
unsafe fn bytes<'a>(value: *const c_void, length: socklen_t) -> Option<&'a [u8]> {
    let length = usize::try_from(length).ok().filter(|_| !value.is_null())?;
    // SAFETY: by this function's contract there are so many bytes.
    Some(unsafe { std::slice::from_raw_parts(value.cast(), length) })
}

/// # Safety
/// `length` is null or valid, and `value` is null or valid for `*length` bytes.
unsafe fn write(value: *mut c_void, length: *mut socklen_t, number: u32) -> c_int {
    if value.is_null() || length.is_null() {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: by this function's contract there are `*length` bytes.
    unsafe {
        if *length < INTEGER {
            return errno::fail(libc::EINVAL);
        }
        value.cast::<u32>().write_unaligned(number);
        *length = INTEGER;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netlink_group_numbers_start_at_one() {
        assert_eq!([1, 8, 32].map(group), [Some(1), Some(0x80), Some(1 << 31)]);
        assert_eq!([0, -1, 33].map(group), [None; 3]);
    }

    #[test]
    fn udp_encap_of_esp_is_intercepted() {
        assert!([0, 1, 2].iter().all(|kind| is_esp(Some(*kind))));
        assert!(!is_esp(Some(3)) && !is_esp(None));
    }
}
