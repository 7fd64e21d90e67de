//! Polls for an answer for a moment before sleeping: a running gateway mostly answers sooner than a
//! sleeping program is woken. After two misses in a row the next answer is slept for, and twice as
//! many after each further miss: a machine with more work than processors mostly misses.

use std::mem::{size_of, zeroed};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, ssize_t};

use crate::errno;
use crate::table::Socket;

/// How long, in nanoseconds: longer than it takes a virtual machine to wake an idle processor.
const SPIN_NANOSECONDS: i64 = 200_000;

/// The most answers that are slept for at a time.
const MAX_BACKOFF: u32 = 64;

/// How many are slept for after the next one that does not come in time.
static BACKOFF: AtomicU32 = AtomicU32::new(0);

/// How many of those are left.
static REMAINING: AtomicU32 = AtomicU32::new(0);

/// Looks between two looks at the clock.
const SPINS_PER_CLOCK_READ: u32 = 64;

/// Receives from a socket by `receive`, which takes flags, as it does with these flags.
pub(crate) fn receive(
    socket: &Socket,
    flags: c_int,
    receive: impl Fn(c_int) -> ssize_t,
) -> ssize_t {
    // A socket that may not block, or has a time limit, is spoilt.
    let waits = flags & libc::MSG_DONTWAIT == 0 && socket.is_busy() && !socket.is_spoilt();
    if !waits || is_backed_off() || !has_several_processors() {
        return receive(flags);
    }
    let end = now().saturating_add(SPIN_NANOSECONDS);
    loop {
        let received = receive(flags | libc::MSG_DONTWAIT);
        if received >= 0 || errno::last() != libc::EAGAIN {
            reset();
            return received;
        }
        if now() >= end {
            back_off();
            return receive(flags);
        }
    }
}

/// Looks once: whether something else than `nothing` is to be seen.
pub(crate) fn once<T: PartialEq>(look: impl Fn() -> T, nothing: T) -> Option<T> {
    let seen = look();
    if seen == nothing {
        return None;
    }
    reset();
    Some(seen)
}

/// Looks until something else than `nothing` is to be seen, for a moment.
pub(crate) fn until<T: PartialEq + Copy>(look: impl Fn() -> T, nothing: T) -> Option<T> {
    let mut end = None;
    loop {
        for _ in 0..SPINS_PER_CLOCK_READ {
            let seen = once(&look, nothing);
            if seen.is_some() {
                return seen;
            }
            std::hint::spin_loop();
        }
        if now() >= *end.get_or_insert_with(|| now().saturating_add(SPIN_NANOSECONDS)) {
            back_off();
            return None;
        }
    }
}

/// Answers are slept for, for a while.
fn back_off() {
    let slept = BACKOFF.load(Ordering::Relaxed);
    REMAINING.store(slept + 1, Ordering::Relaxed); // including this request's
    BACKOFF.store((2 * slept).clamp(1, MAX_BACKOFF), Ordering::Relaxed);
}

/// An answer came in time.
fn reset() {
    BACKOFF.store(0, Ordering::Relaxed);
}

/// A request is made: whether its answer is slept for.
pub(crate) fn begin() -> bool {
    let left = REMAINING.load(Ordering::Relaxed).saturating_sub(1);
    REMAINING.store(left, Ordering::Relaxed);
    left > 0
}

fn is_backed_off() -> bool {
    REMAINING.load(Ordering::Relaxed) > 0
}

/// Nanoseconds of a clock that does not jump.
fn now() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid. The clock is always there, and read without a system call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// Whether program and gateway can run at the same time.
pub(crate) fn has_several_processors() -> bool {
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
