//! Control messages of redirected UDP sockets: local address, TOS, and the sender's descriptors.

use std::mem::{MaybeUninit, size_of};

use libc::{c_int, cmsghdr, msghdr};

use crate::ends::{AddressFamily, Ends};
use crate::gateway;
use crate::table::{Datagram, RecvOption};

/// Room for credentials.
const ROOM: usize = 64;
/// Data of the largest message written here: an `in6_pktinfo`.
const LARGEST: usize = 20;
const ALIGN: usize = size_of::<usize>();
const HEADER: usize = size_of::<cmsghdr>();

/// A buffer for the control messages that the kernel writes for us.
#[repr(C, align(8))]
pub(super) struct Buffer(MaybeUninit<[u8; ROOM]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(MaybeUninit::zeroed())
    }
}

impl Buffer {
    /// Lets the kernel write here.
    pub(super) fn lend(&mut self, message: &mut msghdr) {
        message.msg_control = self.0.as_mut_ptr().cast();
        message.msg_controllen = ROOM;
    }
}

/// Whether a message that the kernel received is from a user whose gateway is trusted.
pub(super) fn is_permitted(message: &msghdr) -> bool {
    let mut permitted = false;
    // SAFETY: the kernel wrote the control messages into a lent buffer, and how long they are.
    unsafe {
        each(message, |level, kind, data, length| {
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS)
                && length >= size_of::<libc::ucred>()
            {
                let who = data.cast::<libc::ucred>().read_unaligned();
                permitted = gateway::is_trusted_user(who.uid);
            }
        });
    }
    permitted
}

/// Calls `visit` with each descriptor that a message passes on.
///
/// # Safety
/// The message is as it says.
pub(super) unsafe fn descriptors(message: &msghdr, visit: impl Fn(c_int)) {
    // SAFETY: by this function's contract; what is read is not longer than the control message.
    unsafe {
        each(message, |level, kind, data, length| {
            if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let descriptors = data.cast::<c_int>();
                let count = length / size_of::<c_int>();
                (0..count).for_each(|nth| visit(descriptors.add(nth).read_unaligned()));
            }
        });
    }
}

/// Takes from a message to send what it says of its source and its TOS.
///
/// # Safety
/// The message is as it says.
pub(super) unsafe fn read(message: &msghdr, ends: &mut Ends) {
    // SAFETY: by this function's contract; what is read is not longer than the message.
    unsafe {
        each(message, |level, kind, data, length| match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) if length >= size_of::<libc::in_pktinfo>() => {
                let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                let source = info.ipi_spec_dst.s_addr.to_ne_bytes();
                if ends.family == AddressFamily::V4 && source != [0; 4] {
                    ends.local.address[..4].copy_from_slice(&source);
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
                if length >= size_of::<libc::in6_pktinfo>() =>
            {
                let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                if ends.family == AddressFamily::V6 {
                    if info.ipi6_addr.s6_addr != [0; 16] {
                        ends.local.address = info.ipi6_addr.s6_addr;
                    }
                    if info.ipi6_ifindex != 0 {
                        ends.scope = info.ipi6_ifindex;
                    }
                }
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)
                if length > 0 =>
            {
                // An `int`, for IPv4 also one byte; on little-endian machines the first byte is the
                // value.
                let wide = length >= size_of::<c_int>();
                ends.tos = if wide {
                    data.cast::<c_int>().read_unaligned().to_le_bytes()[0]
                } else {
                    *data
                };
            }
            _ => {}
        });
    }
}

/// Writes the control messages that a program asked for into a message that it receives.
///
/// # Safety
/// The message is as it says.
pub(super) unsafe fn write(message: &mut msghdr, socket: Datagram, ends: &Ends) {
    let room = if message.msg_control.is_null() { 0 } else { message.msg_controllen };
    let mut out = Writer { to: message.msg_control.cast(), room, at: 0, cut: false };
    if socket.wants(RecvOption::Address) {
        match ends.family {
            AddressFamily::V4 => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ends.local.address[..4]);
                info[8..].copy_from_slice(&ends.local.address[..4]);
                // SAFETY: by this function's contract.
                unsafe { out.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info) };
            }
            AddressFamily::V6 => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ends.local.address);
                info[16..].copy_from_slice(&ends.scope.to_ne_bytes());
                // SAFETY: by this function's contract.
                unsafe { out.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info) };
            }
        }
    }
    if socket.wants(RecvOption::Tos) {
        let class = c_int::from(ends.tos).to_ne_bytes();
        let (level, kind, data): (_, _, &[u8]) = match ends.family {
            AddressFamily::V4 => (libc::IPPROTO_IP, libc::IP_TOS, &[ends.tos]),
            AddressFamily::V6 => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &class),
        };
        // SAFETY: by this function's contract.
        unsafe { out.put(level, kind, data) };
    }
    message.msg_controllen = out.at;
    if out.cut {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
}

struct Writer {
    to: *mut u8,
    room: usize,
    at: usize,
    cut: bool,
}

impl Writer {
    /// `data` is at most [`LARGEST`] bytes.
    ///
    /// # Safety
    /// `to` is valid for `room` bytes.
    unsafe fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let length = HEADER + data.len();
        if self.room < self.at + length {
            self.cut = true;
            return;
        }
        let mut bytes = [0; HEADER + LARGEST];
        bytes[..ALIGN].copy_from_slice(&length.to_ne_bytes());
        bytes[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        bytes[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        bytes[HEADER..length].copy_from_slice(data);
        // SAFETY: there are `length` bytes from `at` on, by this function's contract.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.to.add(self.at), length) };
        self.at = (self.at + length.next_multiple_of(ALIGN)).min(self.room);
    }
}

/// Calls `visit` with level, kind, data and length of each control message.
///
/// # Safety
/// The message is as it says.
unsafe fn each(message: &msghdr, mut visit: impl FnMut(c_int, c_int, *const u8, usize)) {
    // SAFETY: the C library's own walk over what the message says.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            let length = ((*at).cmsg_len as usize).saturating_sub(HEADER);
            visit((*at).cmsg_level, (*at).cmsg_type, libc::CMSG_DATA(at).cast_const(), length);
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
}
