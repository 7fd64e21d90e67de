//! Messages: `send` and `recv` in all their forms.
//!
//! The gateway's [`Greeting`] datagrams do not reach the program: an overrun becomes `ENOBUFS`, as
//! on a netlink socket. After a restart of the gateway the next message goes to the new one, and
//! listeners get `ENOBUFS`: messages were lost.
//!
//! A program that waits for an answer meanwhile gets the error `ECONNRESET`. Without a gateway,
//! sending fails with it, and so does receiving without having asked: netlink knows no end of file.
//! A listener is told once; then its socket is silent until this process finds a gateway by
//! sending, by opening a socket, or by receiving again.

use libc::{
    c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

use uxfrm_control::greeting::{Greeting, GreetingKind, LENGTH};
use uxfrm_control::mailbox::ROOM;

use super::loss::{self, is_gone, lost, received_in_silence, sent};
use super::vectors::{first_bytes, named, prefix, room, vector, vectors, whole};
use super::{address, control, datagram, generic, option};
use crate::table::Socket;
use crate::{busy_poll, errno, exchange, gateway, mailbox, next, table};

/// Bytes of the longest message that has room in any case.
const SHORT: size_t = 8 * 1024;

/// [`exchange::ANSWER`] as calls return it.
const ANSWER: ssize_t = 16;
const _: () = assert!(ANSWER as usize == exchange::ANSWER);

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn send(
    descriptor: c_int,
    bytes: *const c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some(socket) = table::datagram(descriptor) {
        let mut vector = vector(bytes.cast_mut(), length);
        let (message, to) = (whole(&mut vector), (std::ptr::null(), 0));
        // SAFETY: the caller's buffer has `length` bytes.
        return unsafe { datagram::send(descriptor, socket, &named(message, to), flags) };
    }
    // SAFETY: the caller's buffer has `length` bytes.
    match unsafe { prepare(descriptor, &[vector(bytes.cast_mut(), length)]) } {
        // SAFETY: the caller's promises are passed on.
        Prepared::Foreign => unsafe { next::send()(descriptor, bytes, length, flags) },
        Prepared::Done(result) => result,
        Prepared::Ours => {
            let flags = flags | libc::MSG_NOSIGNAL;
            // SAFETY: as above.
            sent(descriptor, || unsafe { next::send()(descriptor, bytes, length, flags) })
        }
    }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn sendto(
    descriptor: c_int,
    bytes: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_length: socklen_t,
) -> ssize_t {
    if let Some(socket) = table::datagram(descriptor) {
        let mut vector = vector(bytes.cast_mut(), length);
        let message = named(whole(&mut vector), (to, to_length));
        // SAFETY: the caller's buffer has `length` bytes, and its address `to_length`.
        return unsafe { datagram::send(descriptor, socket, &message, flags) };
    }
    if table::find(descriptor).is_some() {
        // SAFETY: the caller's promises are passed on.
        return unsafe { send(descriptor, bytes, length, flags) };
    }
    // SAFETY: the caller's buffer has `length` bytes.
    if let Some(result) = unsafe { generic::relay(descriptor, &[vector(bytes.cast_mut(), length)]) }
    {
        return result;
    }
    // SAFETY: as above.
    unsafe { next::sendto()(descriptor, bytes, length, flags, to, to_length) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn sendmsg(
    descriptor: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    if let Some(socket) = table::datagram(descriptor).filter(|_| !message.is_null()) {
        // SAFETY: the caller promises a valid message.
        return unsafe { datagram::send(descriptor, socket, &*message, flags) };
    }
    if table::find(descriptor).is_none() || message.is_null() {
        // SAFETY: the caller promises a valid message.
        unsafe {
            let relayed =
                message.as_ref().and_then(|message| generic::relay(descriptor, vectors(message)));
            if let Some(result) = relayed {
                return result;
            }
            note_passed(message);
            return next::sendmsg()(descriptor, message, flags);
        }
    }
    // SAFETY: the caller promises a valid message.
    let mut ours = unsafe { message.read() };
    // SAFETY: as above.
    match unsafe { prepare(descriptor, vectors(&ours)) } {
        Prepared::Done(result) => return result,
        Prepared::Foreign | Prepared::Ours => {}
    }
    (ours.msg_name, ours.msg_namelen) = (std::ptr::null_mut(), 0);
    (ours.msg_control, ours.msg_controllen) = (std::ptr::null_mut(), 0);
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the vectors are the caller's.
    sent(descriptor, || unsafe { next::sendmsg()(descriptor, &raw const ours, flags) })
}

/// On our sockets one message at a time, which callers must reckon with anyway.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn sendmmsg(
    descriptor: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !table::is_ours(descriptor) || messages.is_null() || count == 0 {
        // SAFETY: the caller promises `count` valid messages.
        unsafe {
            if !messages.is_null() {
                (0..count as usize)
                    .for_each(|nth| note_passed(&raw const (*messages.add(nth)).msg_hdr));
            }
            return next::sendmmsg()(descriptor, messages, count, flags);
        }
    }
    // SAFETY: the caller promises `count` valid messages.
    unsafe { one(messages, sendmsg(descriptor, &raw const (*messages).msg_hdr, flags)) }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn recv(
    descriptor: c_int,
    bytes: *mut c_void,
    length: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some(socket) = table::datagram(descriptor) {
        let mut vector = vector(bytes, length);
        // SAFETY: the caller's buffer has `length` bytes.
        return unsafe { datagram::receive(descriptor, socket, &mut whole(&mut vector), flags) };
    }
    let Some(socket) = table::find(descriptor) else {
        // SAFETY: the caller's promises are passed on.
        return unsafe { next::recv()(descriptor, bytes, length, flags) };
    };
    // SAFETY: the caller promises `length` writable bytes.
    let unanswered = || unsafe { loss::answer(socket, &[vector(bytes, length)], flags) };
    if let Some((length, _)) = unanswered() {
        return length;
    }
    if socket.is_quiet() {
        return errno::fail_length(received_in_silence(descriptor, socket, flags));
    }
    let received = mailbox::receive(socket, &[vector(bytes, length)], flags, &mut 0);
    if let Some(length) = received {
        return length;
    }
    loop {
        // SAFETY: the caller promises `length` writable bytes.
        let receive = |flags: c_int| unsafe { next::recv()(descriptor, bytes, length, flags) };
        let received = busy_poll::receive(socket, flags, receive);
        let vector = [vector(bytes, length)];
        // SAFETY: the caller's buffer has `length` bytes.
        let first = unsafe { first_bytes(&vector, received) };
        // SAFETY: as above.
        unsafe { note_received(socket, &vector, received, flags) };
        if let Some(result) = received_by_program(descriptor, received, length, flags, first) {
            return result;
        }
        if let Some((length, _)) = unanswered() {
            return length;
        }
    }
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn recvfrom(
    descriptor: c_int,
    bytes: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    if let Some(socket) = table::datagram(descriptor) {
        let mut vector = vector(bytes, length);
        let wanted = !from.is_null() && !from_length.is_null();
        // SAFETY: the caller promises `*from_length` writable bytes, and `length` in the buffer.
        unsafe {
            let room = if wanted { *from_length } else { 0 };
            let address = if wanted { from.cast_const() } else { std::ptr::null() };
            let mut message = named(whole(&mut vector), (address, room));
            let received = datagram::receive(descriptor, socket, &mut message, flags);
            if wanted && received >= 0 {
                *from_length = message.msg_namelen;
            }
            return received;
        }
    }
    if table::find(descriptor).is_none() {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            let received = next::recvfrom()(descriptor, bytes, length, flags, from, from_length);
            if received >= 0 && !from_length.is_null() {
                generic::set_right(descriptor, from, *from_length);
            }
            return received;
        }
    }
    // SAFETY: as above.
    let received = unsafe { recv(descriptor, bytes, length, flags) };
    if received >= 0 && !from.is_null() {
        // SAFETY: the caller promises `*from_length` writable bytes.
        unsafe { address::write(from, from_length, 0, 0) };
    }
    received
}

#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
pub(super) unsafe extern "C" fn recvmsg(
    descriptor: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    if let Some(socket) = table::datagram(descriptor).filter(|_| !message.is_null()) {
        // SAFETY: the caller promises a valid message.
        return unsafe { datagram::receive(descriptor, socket, &mut *message, flags) };
    }
    let Some(socket) = table::find(descriptor).filter(|_| !message.is_null()) else {
        // SAFETY: the caller's promises are passed on.
        unsafe {
            let received = next::recvmsg()(descriptor, message, flags);
            if received >= 0 {
                generic::set_message_right(descriptor, message);
            }
            return received;
        }
    };
    let is_answered = socket.awaited().failed().is_none();
    if is_answered && socket.is_quiet() {
        return errno::fail_length(received_in_silence(descriptor, socket, flags));
    }
    // SAFETY: the caller promises a valid message.
    let message = unsafe { &mut *message };
    // SAFETY: as above.
    let length = room(unsafe { vectors(message) });
    let mut message_flags = 0;
    let (name, name_length) = (message.msg_name, message.msg_namelen);
    (message.msg_name, message.msg_namelen) = (std::ptr::null_mut(), 0);
    // SAFETY: as above.
    let collected =
        mailbox::receive(socket, unsafe { vectors(message) }, flags, &mut message_flags)
            .filter(|_| is_answered);
    let result = loop {
        // SAFETY: as above.
        let unanswered = || unsafe { loss::answer(socket, vectors(message), flags) };
        if let Some((length, flags)) =
            collected.map(|length| (length, message_flags)).or_else(unanswered)
        {
            (message.msg_flags, message.msg_controllen) = (flags, 0);
            break length;
        }
        let whole = &raw mut *message;
        // SAFETY: the vectors are the caller's.
        let receive = |flags: c_int| unsafe { next::recvmsg()(descriptor, whole, flags) };
        let received = busy_poll::receive(socket, flags, receive);
        // SAFETY: as above.
        let first = unsafe { first_bytes(vectors(message), received) };
        // SAFETY: as above.
        unsafe { note_received(socket, vectors(message), received, flags) };
        if let Some(result) = received_by_program(descriptor, received, length, flags, first) {
            break result;
        }
    };
    (message.msg_name, message.msg_namelen) = (name, name_length);
    if result >= 0 && !name.is_null() {
        // SAFETY: the caller promises `msg_namelen` writable bytes.
        unsafe { address::write(name.cast(), &raw mut message.msg_namelen, 0, 0) };
    }
    result
}

/// On our sockets one message at a time, which callers must reckon with anyway.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn recvmmsg(
    descriptor: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !table::is_ours(descriptor) || messages.is_null() || count == 0 {
        // SAFETY: the caller's promises are passed on.
        return unsafe { next::recvmmsg()(descriptor, messages, count, flags, timeout) };
    }
    let flags = flags & !libc::MSG_WAITFORONE;
    // SAFETY: the caller promises `count` valid messages.
    unsafe { one(messages, recvmsg(descriptor, &raw mut (*messages).msg_hdr, flags)) }
}

/// What programs built with `_FORTIFY_SOURCE` call for `recv`.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn __recv_chk(
    descriptor: c_int,
    bytes: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    assert_room(length, room);
    // SAFETY: the caller's promises are passed on.
    unsafe { recv(descriptor, bytes, length, flags) }
}

/// What programs built with `_FORTIFY_SOURCE` call for `recvfrom`.
#[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
unsafe extern "C" fn __recvfrom_chk(
    descriptor: c_int,
    bytes: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    assert_room(length, room);
    // SAFETY: the caller's promises are passed on.
    unsafe { recvfrom(descriptor, bytes, length, flags, from, from_length) }
}

/// A program that asks for more than its buffer holds ends, as with the C library.
pub(super) fn assert_room(length: size_t, room: size_t) {
    if length > room {
        std::process::abort();
    }
}

enum Prepared {
    /// Not our socket.
    Foreign,
    /// The message can be sent.
    Ours,
    /// The call is over already.
    Done(ssize_t),
}

/// Gives the socket a port if it has none, and notes the request. An empty message, which netlink
/// ignores, would look like an end of file.
///
/// # Safety
/// The vectors are valid for their lengths.
unsafe fn prepare(descriptor: c_int, vectors: &[iovec]) -> Prepared {
    let Some(socket) = table::find(descriptor) else {
        // SAFETY: by this function's contract.
        let relayed = unsafe { generic::relay(descriptor, vectors) };
        return relayed.map_or(Prepared::Foreign, Prepared::Done);
    };
    if let Err(errno) = gateway::introduce(descriptor, socket) {
        return Prepared::Done(errno::fail_length(errno));
    }
    let length = room(vectors);
    if length == 0 {
        return Prepared::Done(0);
    }
    if length > SHORT {
        option::make_room(descriptor, socket);
    }
    // SAFETY: by this function's contract.
    let header = unsafe { prefix(vectors) };
    let request = exchange::request(header, length);
    let is_for_page = !busy_poll::begin() && request.is_some() && exchange::is_public(header);
    if !is_for_page {
        mailbox::step_aside(socket);
    }
    socket.ask(request);
    socket.awaited().begin(header);
    // SAFETY: as above.
    if is_for_page && unsafe { asked_on_page(socket, vectors, length) } {
        return Prepared::Done(length.cast_signed());
    }
    Prepared::Ours
}

/// Asks on the page that this process shares with the gateway, if that waits there.
///
/// # Safety
/// The vectors are valid for their lengths.
unsafe fn asked_on_page(socket: &Socket, vectors: &[iovec], length: size_t) -> bool {
    if length > ROOM || !socket.is_paged() {
        return false;
    }
    if let [vector] = vectors {
        // SAFETY: by this function's contract; it has a length, so it is not null.
        return mailbox::ask(socket, unsafe {
            std::slice::from_raw_parts(vector.iov_base.cast(), length)
        });
    }
    // SAFETY: as above.
    let bytes: [u8; ROOM] = unsafe { prefix(vectors) };
    mailbox::ask(socket, &bytes[..length])
}

/// Notes that the answer has come, if it has.
///
/// # Safety
/// The vectors are valid for their lengths.
unsafe fn note_received(socket: &Socket, vectors: &[iovec], received: ssize_t, flags: c_int) {
    if received < ANSWER || flags & libc::MSG_PEEK != 0 {
        return;
    }
    // SAFETY: by this function's contract.
    let header = unsafe { prefix(vectors) };
    socket.awaited().hear(header);
    if let Some(sequence) = exchange::answers(header).filter(|_| socket.is_busy()) {
        socket.hear(sequence);
    }
}

/// Notes that another process gets copies of sockets of ours (`SCM_RIGHTS`).
///
/// # Safety
/// `message` is null or valid.
unsafe fn note_passed(message: *const msghdr) {
    // SAFETY: by this function's contract.
    if let Some(message) = unsafe { message.as_ref() }.filter(|message| message.msg_controllen > 0)
    {
        // SAFETY: as above.
        unsafe {
            control::descriptors(message, |passed| {
                table::find(passed).into_iter().for_each(Socket::spoil);
            });
        }
    }
}

/// The result of a received datagram; `None` if it is not for the program or [`loss::answer`]
/// applies.
fn received_by_program(
    descriptor: c_int,
    received: ssize_t,
    room: size_t,
    flags: c_int,
    first: [u8; LENGTH],
) -> Option<ssize_t> {
    let ended = received == 0 && (room > 0 || flags & libc::MSG_TRUNC != 0);
    if ended || received < 0 && is_gone(errno::last()) {
        let errno = lost(descriptor);
        let asks = |socket: &&Socket| socket.awaited().fail() && socket.groups() == 0;
        let only_asks = table::find(descriptor).filter(asks).is_some();
        // A listener hears of its loss first.
        return (!only_asks).then(|| errno::fail_length(errno));
    }
    let Some(greeting) = Greeting::parse(&first) else { return Some(received) };
    if flags & libc::MSG_PEEK != 0 {
        // SAFETY: no byte is written.
        unsafe { next::recv()(descriptor, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    }
    (greeting.kind == GreetingKind::Overrun).then(|| errno::fail_length(libc::ENOBUFS))
}

/// What the calls for several messages return after one.
///
/// # Safety
/// `messages` is valid.
unsafe fn one(messages: *mut mmsghdr, result: ssize_t) -> c_int {
    let Ok(length) = c_uint::try_from(result) else { return -1 };
    // SAFETY: by this function's contract.
    unsafe { (*messages).msg_len = length };
    1
}
