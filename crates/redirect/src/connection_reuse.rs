//! Keeps the connection of a closed netlink socket for the program's next one: `ip -batch` opens a
//! socket per line, and connecting costs more than the request.
//!
//! A kept connection equals a new one: nothing is in flight on it, its settings are the defaults,
//! no copy of it exists in any process, and the same thread, user and network namespace takes it.
//! If any of this is uncertain the connection is closed.
//!
//! The kept descriptor's number stays in use: the next socket has it again, and other files get
//! higher ones. Of the calls that are interposed here none shows it; `/proc/self/fd` does.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};

use libc::c_int;

use crate::table::{self, Identity, Socket};
use crate::{errno, gateway, mailbox, next, process};

/// Nothing is parked.
const NONE: c_int = -1;
/// Another thread is about to park something, or to take it.
const HELD: c_int = -2;

/// The descriptor that is parked.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(NONE);
/// The thread that parked it, by what it has of its own.
static THREAD: AtomicUsize = AtomicUsize::new(0);
/// The options that the gateway knows; its port is the process's number, and it has no groups.
static OPTIONS: AtomicU32 = AtomicU32::new(0);
/// Whether it has the process's page.
static PAGED: AtomicBool = AtomicBool::new(false);

/// Number of forks: older sockets may have copies.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process forked until now.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Keeps a socket's connection. False when it has to be closed.
pub(crate) fn keep(descriptor: c_int, socket: &Socket) -> bool {
    let Some(Identity { port, groups: 0, options }) = socket.gateway_identity() else {
        return false;
    };
    // Programs that close one of the first three want its number next.
    if descriptor <= libc::STDERR_FILENO || !socket.is_as_new() || port != process::number() {
        return false;
    }
    if !process::is_own() || hold(NONE).is_none() {
        return false;
    }
    let is_paged = socket.is_paged();
    table::remove(descriptor);
    THREAD.store(errno::place(), Ordering::Relaxed);
    OPTIONS.store(options, Ordering::Relaxed);
    PAGED.store(is_paged, Ordering::Relaxed);
    DESCRIPTOR.store(descriptor, Ordering::Release);
    true
}

/// A connection that was parked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReusableConnection {
    pub(crate) descriptor: c_int,
    /// Who the gateway takes it for.
    pub(crate) identity: Identity,
    /// Whether it has the process's page.
    pub(crate) is_paged: bool,
}

/// Takes the connection that is parked, if it is the calling thread's and still there.
pub(crate) fn take() -> Option<ReusableConnection> {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    // A later thread at this address has the same user and network: changing them releases the
    // connection.
    if descriptor < 0 || THREAD.load(Ordering::Relaxed) != errno::place() {
        return None;
    }
    hold(descriptor)?;
    let port = process::number();
    let options = OPTIONS.load(Ordering::Relaxed);
    let is_paged = PAGED.load(Ordering::Relaxed);
    DESCRIPTOR.store(NONE, Ordering::Release);
    if is_paged && mailbox::is_awaited() || is_silent(descriptor) {
        return Some(ReusableConnection {
            descriptor,
            identity: Identity { port, groups: 0, options },
            is_paged,
        });
    }
    gateway::close(descriptor);
    None
}

/// Closes the kept connection: a new one would belong to another user or namespace.
pub(crate) fn release() {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    if descriptor >= 0 && forget(descriptor) {
        gateway::close(descriptor);
    }
}

/// Drops a descriptor that the caller closes or replaces, if it is kept and this process's own.
pub(crate) fn forget(descriptor: c_int) -> bool {
    let is_kept = descriptor >= 0 && DESCRIPTOR.load(Ordering::Relaxed) == descriptor;
    if !is_kept || process::is_borrowed() || hold(descriptor).is_none() {
        return false;
    }
    DESCRIPTOR.store(NONE, Ordering::Release);
    true
}

/// As [`forget`], for all descriptors of a range.
pub(crate) fn forget_range(first: c_int, last: c_int) {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    if (first..=last).contains(&descriptor) {
        forget(descriptor);
    }
}

fn hold(expected: c_int) -> Option<c_int> {
    DESCRIPTOR.compare_exchange(expected, HELD, Ordering::Acquire, Ordering::Relaxed).ok()
}

/// Whether a connection is there and nothing has come on it.
fn is_silent(descriptor: c_int) -> bool {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: no byte is written.
    let received = unsafe { next::recv()(descriptor, null_mut(), 0, flags) };
    received < 0 && errno::last() == libc::EAGAIN
}

/// Has the C library tell of forks.
extern "C" fn register_fork_handlers() {
    process::prepare();
    process::know();
    // SAFETY: the handlers stay as long as the library, which is never unloaded. Should there be no
    // room for them, the numbers of forks are not known, and nothing may be kept.
    unsafe {
        if libc::pthread_atfork(Some(before_fork), None, Some(in_child)) != 0 {
            DESCRIPTOR.store(HELD, Ordering::Relaxed);
        }
    }
}

#[cfg(not(test))]
#[used]
// SAFETY: the loader calls what stands there once, before the program begins.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register_fork_handlers;

unsafe extern "C" fn before_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// What is parked is the parent's.
unsafe extern "C" fn in_child() {
    release();
    process::know();
    DESCRIPTOR.store(NONE, Ordering::Release);
}
