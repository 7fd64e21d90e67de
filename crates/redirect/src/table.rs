//! Which descriptors are redirected netlink sockets, and what the program was told about them.
//!
//! A fixed array of atomics: no lock that a fork could leave taken, no allocation. Pages that no descriptor needs are
//! never touched.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::c_int;

/// Descriptors from here on cannot be redirected; `socket` fails with `EMFILE` there.
const DESCRIPTORS: usize = 1 << 16;

/// In [`Socket::state`]: the descriptor is ours.
const OPEN: u32 = 1 << 31;
/// In [`Socket::state`]: the gateway has been told the port.
const GREETED: u32 = 1 << 30;
/// In [`Socket::state`]: `SOCK_RAW` or `SOCK_DGRAM`.
const KIND: u32 = 0xff;

static SOCKETS: [Socket; DESCRIPTORS] = [const { Socket::none() }; DESCRIPTORS];

/// No descriptor above this one is ours.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// A redirected socket.
#[derive(Debug)]
pub(crate) struct Socket {
    state: AtomicU32,
    port: AtomicU32,
    groups: AtomicU32,
    options: AtomicU32,
}

impl Socket {
    const fn none() -> Self {
        Self {
            state: AtomicU32::new(0),
            port: AtomicU32::new(0),
            groups: AtomicU32::new(0),
            options: AtomicU32::new(0),
        }
    }

    /// The netlink port id; zero before `bind` and the first message.
    pub(crate) fn port(&self) -> u32 {
        self.port.load(Ordering::Relaxed)
    }

    pub(crate) fn set_port(&self, port: u32) {
        self.port.store(port, Ordering::Relaxed);
    }

    /// The multicast groups, a bit each.
    pub(crate) fn groups(&self) -> u32 {
        self.groups.load(Ordering::Relaxed)
    }

    pub(crate) fn set_groups(&self, groups: u32) {
        self.groups.store(groups, Ordering::Relaxed);
    }

    /// The netlink options that are on, a bit each.
    pub(crate) fn options(&self) -> u32 {
        self.options.load(Ordering::Relaxed)
    }

    pub(crate) fn set_options(&self, options: u32) {
        self.options.store(options, Ordering::Relaxed);
    }

    /// `SOCK_RAW` or `SOCK_DGRAM`, as the program opened it.
    pub(crate) fn kind(&self) -> c_int {
        // At most 255.
        (self.state.load(Ordering::Relaxed) & KIND) as c_int
    }

    /// Whether the gateway has been told the port.
    pub(crate) fn is_greeted(&self) -> bool {
        self.state.load(Ordering::Relaxed) & GREETED != 0
    }

    pub(crate) fn set_greeted(&self) {
        self.state.fetch_or(GREETED, Ordering::Relaxed);
    }

    fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) & OPEN != 0
    }
}

/// The redirected socket behind a descriptor; `None` for everything else.
pub(crate) fn find(descriptor: c_int) -> Option<&'static Socket> {
    slot(descriptor).filter(|socket| socket.is_open())
}

/// Notes that a descriptor is a new redirected socket. False when it is too high for that.
pub(crate) fn insert(descriptor: c_int, kind: c_int) -> bool {
    let Some(socket) = slot(descriptor) else { return false };
    socket.set_port(0);
    socket.set_groups(0);
    socket.set_options(0);
    socket.state.store(OPEN | (kind.unsigned_abs() & KIND), Ordering::Release);
    HIGHEST.fetch_max(descriptor, Ordering::Relaxed);
    true
}

/// Forgets a descriptor that is closed, or that the kernel has just handed out for something else.
pub(crate) fn remove(descriptor: c_int) {
    if let Some(socket) = find(descriptor) {
        socket.state.store(0, Ordering::Release);
    }
}

/// Forgets all descriptors of a range.
pub(crate) fn remove_range(first: c_int, last: c_int) {
    let end = last.min(HIGHEST.load(Ordering::Relaxed));
    (first.max(0)..=end).for_each(remove);
}

/// Notes that `copy` is now the same as `descriptor`, whatever that is. False when it should be redirected and cannot be.
pub(crate) fn duplicate(descriptor: c_int, copy: c_int) -> bool {
    let Some(socket) = find(descriptor) else {
        remove(copy);
        return true;
    };
    if !insert(copy, socket.kind()) {
        return false;
    }
    if let Some(copy) = find(copy) {
        copy.set_port(socket.port());
        copy.set_groups(socket.groups());
        copy.set_options(socket.options());
        copy.state.store(socket.state.load(Ordering::Relaxed), Ordering::Release);
    }
    true
}

/// Whether a redirected socket of this process has the port.
pub(crate) fn has_port(port: u32) -> bool {
    (0..=HIGHEST.load(Ordering::Relaxed)).filter_map(find).any(|socket| socket.port() == port)
}

fn slot(descriptor: c_int) -> Option<&'static Socket> {
    SOCKETS.get(usize::try_from(descriptor).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_known_until_they_are_closed() {
        assert!(find(-1).is_none() && find(65_000).is_none() && find(c_int::MAX).is_none());
        assert!(insert(65_000, libc::SOCK_RAW));
        find(65_000).unwrap().set_port(7);
        find(65_000).unwrap().set_greeted();
        assert!(duplicate(65_000, 65_001));
        remove(65_000);
        assert!(find(65_000).is_none());
        let copy = find(65_001).unwrap();
        assert!((copy.port(), copy.kind(), copy.is_greeted()) == (7, libc::SOCK_RAW, true));
        assert!(has_port(7));
        assert!(duplicate(65_000, 65_001), "something else may take a number over");
        assert!(find(65_001).is_none() && !has_port(7));
        assert!(!insert(1 << 16, libc::SOCK_RAW));
        insert(65_000, libc::SOCK_DGRAM);
        remove_range(64_000, c_int::MAX);
        assert!(find(65_000).is_none());
    }
}
