//! A page shared with the gateway, for programs that ask again as soon as answered: `ip -batch`.
//!
//! It belongs to the connection kept between two sockets
//! ([`connection_reuse`]) and goes with it. Requests with one answer and
//! no keys are put there while the gateway waits for them; all others, and those not answered at
//! once, use the socket. So programs that poll or sleep on the descriptor find their answers there.
//!
//! A page is never unmapped: another thread may be looking at it. There are but a few.

use std::mem::{size_of, zeroed};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use libc::{c_int, cmsghdr, iovec, msghdr, ssize_t};
use uxfrm_control::greeting::{Greeting, GreetingKind, LENGTH};
use uxfrm_control::mailbox::{ClientPoll, LAYOUT, Mailbox, Page, ROOM};

use crate::connection_reuse::ReusableConnection;
use crate::table::Socket;
use crate::{busy_poll, connection_reuse, gateway, next};

/// The page of the connection whose socket says that it has one.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(null_mut());
/// Whether the answer to the last request there was collected, and not yet received by the program.
static COLLECTED: AtomicBool = AtomicBool::new(false);
/// How many sockets in a row used one connection.
static USES: AtomicU32 = AtomicU32::new(0);
/// How often a page was asked for.
static PAGES: AtomicU32 = AtomicU32::new(0);

/// After so many sockets on one connection a page pays.
const MANY: u32 = 4;
/// Bytes of an answer that is nothing but an acknowledgement, and some more.
const SHORT: usize = 64;
/// Pages in the life of a process.
const MOST_PAGES: u32 = 8;

/// Another socket uses the parked connection: the page comes with it, or is asked for.
pub(crate) fn follow(parked: &ReusableConnection, socket: &Socket) {
    if parked.is_paged {
        return socket.set_paged();
    }
    let uses = USES.fetch_add(1, Ordering::Relaxed) + 1;
    if uses.is_multiple_of(MANY)
        && busy_poll::has_several_processors()
        && PAGES.fetch_add(1, Ordering::Relaxed) < MOST_PAGES
        && let Some(page) = ask_for_page(parked.descriptor, socket)
    {
        PAGE.store(page, Ordering::Release);
        socket.set_paged();
    }
}

/// Asks on the page. False when it has to be sent on the socket.
pub(crate) fn ask(socket: &Socket, request: &[u8]) -> bool {
    !socket.is_spoilt() && of(socket).is_some_and(|mailbox| mailbox.ask(request))
}

/// Something else is about to be sent on the socket.
pub(crate) fn step_aside(socket: &Socket) {
    of(socket).into_iter().for_each(Mailbox::redirect_to_socket);
}

/// Whether the gateway waits for this connection's next request, so that its socket stays silent.
pub(crate) fn is_awaited() -> bool {
    page().is_some_and(Mailbox::is_open)
}

/// Polls for the answer to a request on the page. `None`: receive from the socket.
pub(crate) fn receive(
    socket: &Socket,
    vectors: &[iovec],
    flags: c_int,
    message_flags: &mut c_int,
) -> Option<ssize_t> {
    let mailbox = of(socket).filter(|_| socket.is_busy())?;
    if !COLLECTED.load(Ordering::Relaxed) {
        let waits = flags & libc::MSG_DONTWAIT == 0;
        let collect = || mailbox.collect();
        let found = if waits {
            busy_poll::until(collect, ClientPoll::Nothing)
        } else {
            busy_poll::once(collect, ClientPoll::Nothing)
        };
        found.filter(|found| *found == ClientPoll::Answer)?;
        COLLECTED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the caller's vectors are valid.
    let (length, copied) = unsafe { read_answer(mailbox, vectors) };
    *message_flags = if copied < length { libc::MSG_TRUNC } else { 0 };
    if flags & libc::MSG_PEEK == 0 {
        COLLECTED.store(false, Ordering::Relaxed);
        socket.settle();
    }
    let told = if flags & libc::MSG_TRUNC != 0 { length } else { copied };
    // At most `ROOM`.
    Some(told as ssize_t)
}

/// The page of a socket that has it, in the process that opened it.
fn of(socket: &Socket) -> Option<Mailbox<'static>> {
    let own = socket.is_paged() && socket.forks() == connection_reuse::forks();
    own.then(page).flatten()
}

fn page() -> Option<Mailbox<'static>> {
    // SAFETY: null, or a page that is mapped to the end of the process; it cannot shrink, and any
    // bytes are valid words.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }.map(Mailbox::new)
}

/// Copies the answer into the program's buffers. Its length, and the bytes copied.
///
/// # Safety
/// The vectors are valid for their lengths.
unsafe fn read_answer(mailbox: Mailbox<'_>, vectors: &[iovec]) -> (usize, usize) {
    // An acknowledgement is no longer.
    let mut short = [0; SHORT];
    let length = mailbox.read_answer(&mut short);
    if length <= SHORT {
        // SAFETY: by this function's contract.
        return (length, unsafe { scatter(&short[..length], vectors) });
    }
    let mut answer = [0; ROOM];
    let length = mailbox.read_answer(&mut answer);
    // SAFETY: as above.
    (length, unsafe { scatter(&answer[..length], vectors) })
}

/// Copies bytes into the program's buffers as far as they go. How many.
///
/// # Safety
/// The vectors are valid for their lengths.
pub(crate) unsafe fn scatter(bytes: &[u8], vectors: &[iovec]) -> usize {
    let mut done = 0;
    for vector in vectors {
        let part = vector.iov_len.min(bytes.len() - done);
        if part > 0 {
            let from = bytes[done..].as_ptr();
            // SAFETY: both are valid for `part` bytes, and the program's buffer is none of ours.
            unsafe { std::ptr::copy_nonoverlapping(from, vector.iov_base.cast(), part) };
        }
        done += part;
    }
    done
}

/// Asks the gateway for a page, and maps it.
fn ask_for_page(descriptor: c_int, socket: &Socket) -> Option<*mut Page> {
    let told = socket.gateway_identity()?;
    let question = Greeting {
        kind: GreetingKind::Share,
        port: told.port,
        groups: told.groups,
        options: told.options,
        value: LAYOUT,
    };
    gateway::send(descriptor, question).ok()?;
    gateway::wait(descriptor, libc::POLLIN).ok()?;
    let memory = receive_descriptor(descriptor)?;
    if !is_lasting(memory) {
        gateway::close(memory);
        return None;
    }
    let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, wherever the kernel wants it.
    let page = unsafe { libc::mmap(null_mut(), size_of::<Page>(), access, shared, memory, 0) };
    gateway::close(memory);
    (page != libc::MAP_FAILED).then_some(page.cast())
}

/// Whether memory has a page and keeps it: whoever could cut it short would end the program by
/// `SIGBUS` when it looks there.
fn is_lasting(memory: c_int) -> bool {
    // SAFETY: all bytes zero is a valid `stat`, which the call fills; the other call takes numbers
    // only.
    unsafe {
        let mut about: libc::stat = zeroed();
        let seals = libc::fcntl(memory, libc::F_GET_SEALS);
        seals >= 0
            && seals & libc::F_SEAL_SHRINK != 0
            && libc::fstat(memory, &raw mut about) == 0
            && usize::try_from(about.st_size).is_ok_and(|size| size >= size_of::<Page>())
    }
}

/// Takes the gateway's answer, and the descriptor that came with it.
fn receive_descriptor(descriptor: c_int) -> Option<c_int> {
    let mut bytes = [0_u8; LENGTH];
    let mut control = [0_u64; 4];
    let mut vector = iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: LENGTH };
    // SAFETY: all bytes zero is a valid message, whose buffers are valid for their lengths; a
    // control message is read only where one with a descriptor lies.
    unsafe {
        let mut message: msghdr = zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        if next::recvmsg()(descriptor, &raw mut message, flags) < 0 {
            return None;
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        let has_one = (*header).cmsg_len >= size_of::<cmsghdr>() + size_of::<c_int>();
        let passed = has_one.then(|| libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())?;
        // A gateway of another version may mean another layout.
        let welcome = Greeting::parse(&bytes)
            .is_some_and(|answer| (answer.kind, answer.value) == (GreetingKind::Welcome, LAYOUT));
        if !welcome {
            gateway::close(passed);
        }
        welcome.then_some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptor of memory of so many bytes, under these seals.
    fn memory(length: usize, seals: c_int) -> c_int {
        // SAFETY: the name is valid, and the other calls take numbers only.
        unsafe {
            let memory = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING);
            assert_eq!(libc::ftruncate(memory, length as libc::off_t), 0);
            assert_eq!(libc::fcntl(memory, libc::F_ADD_SEALS, seals), 0);
            memory
        }
    }

    #[test]
    fn mailbox_memory_must_be_sealed_and_long_enough() {
        let page = size_of::<Page>();
        let cases = [
            (page, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW, true),
            (page, libc::F_SEAL_GROW, false),
            (page, 0, false),
            (page - 1, libc::F_SEAL_SHRINK, false),
            (0, libc::F_SEAL_SHRINK, false),
        ];
        for (length, seals, lasts) in cases {
            let memory = memory(length, seals);
            assert_eq!(is_lasting(memory), lasts, "{length} bytes under seals {seals:x}");
            gateway::close(memory);
        }
    }
}
