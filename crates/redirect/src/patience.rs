//! Waiting for an answer awake, a moment long: a gateway that is awake has most answers sooner than a program goes to sleep and is woken.
//! Where that was in vain, as on a machine with more to do than it has processors, the next answers are slept for.

use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, ssize_t};

use crate::errno;
use crate::table::Socket;

/// How long, in nanoseconds.
const MOMENT: i64 = 50_000;

/// How many answers are slept for after one that did not come in time.
const SLEPT: u32 = 32;

/// How many of those are left.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// Receives from a socket by `receive`, which takes flags, as it does with these flags.
pub(crate) fn receive(
    socket: &Socket,
    flags: c_int,
    receive: impl Fn(c_int) -> ssize_t,
) -> ssize_t {
    // A socket that may not block, or has a time limit, is spoilt.
    let waits = flags & libc::MSG_DONTWAIT == 0 && socket.is_busy() && !socket.is_spoilt();
    if !waits || is_tired() || !are_several_processors() {
        return receive(flags);
    }
    let end = now().saturating_add(MOMENT);
    loop {
        let received = receive(flags | libc::MSG_DONTWAIT);
        if received >= 0 || errno::last() != libc::EAGAIN {
            return received;
        }
        if now() >= end {
            LEFT.store(SLEPT, Ordering::Relaxed);
            return receive(flags);
        }
    }
}

fn is_tired() -> bool {
    let left = LEFT.load(Ordering::Relaxed);
    LEFT.store(left.saturating_sub(1), Ordering::Relaxed);
    left > 0
}

/// Nanoseconds of a clock that does not jump.
fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid. The clock is always there, and read without a system call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// Whether program and gateway can run at the same time.
fn are_several_processors() -> bool {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let known = COUNT.load(Ordering::Relaxed);
    if known != 0 {
        return known > 1;
    }
    // SAFETY: all bytes zero is a valid set, which is valid for its length.
    let count = unsafe {
        let mut set: libc::cpu_set_t = zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) {
            0 => libc::CPU_COUNT(&set).unsigned_abs(),
            _ => 1,
        }
    };
    COUNT.store(count.max(1), Ordering::Relaxed);
    count > 1
}
