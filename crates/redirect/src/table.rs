//! Descriptors that are redirected sockets, netlink or UDP, and their state towards the program.
//!
//! An array of atomics: no allocation, and no lock that a fork could leave taken. Unused pages are
//! never touched.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::{c_int, epoll_event};

use crate::ends::{AddressFamily, End};
use crate::pending_answer::PendingAnswer;
use crate::{connection_reuse, process};

/// Descriptors from here on cannot be redirected; `socket` fails with `EMFILE` there.
const DESCRIPTORS: usize = 1 << 16;

/// In [`Socket::state`]: the descriptor is ours.
const OPEN: u32 = 1 << 31;
/// In [`Socket::state`]: the gateway has been told the port.
const GREETED: u32 = 1 << 30;
/// In [`Socket::state`]: of a UDP port, not of netlink.
const DATAGRAM: u32 = 1 << 29;
/// In [`Socket::state`]: of netlink, and its gateway is gone.
const QUIET: u32 = 1 << 28;
/// In [`Socket::state`]: of netlink; its connection must not be reused when this socket is closed.
const SPOILT: u32 = 1 << 27;
/// In [`Socket::state`]: of netlink; the answer to request [`Socket::sequence`] is outstanding.
const BUSY: u32 = 1 << 26;
/// In [`Socket::state`]: of generic netlink, and the kernel's own.
const GENERIC: u32 = 1 << 25;
/// In [`Socket::state`]: of generic netlink, and answers of the gateway's were put into its queue.
const RELAYED: u32 = 1 << 24;
/// In [`Socket::state`]: of netlink, and its connection has this process's page.
const PAGED: u32 = 1 << 23;
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
    /// Of netlink: multicast groups.
    groups: AtomicU32,
    /// Of netlink: options that are on; of UDP: [`RecvOption`]s.
    options: AtomicU32,
    /// Of UDP: 4 or 6.
    family: AtomicU32,
    /// Of UDP.
    tos: AtomicU32,
    /// Of UDP: as on the wire.
    address: [AtomicU32; 4],
    /// Of netlink: send and receive buffer sizes asked for and not applied yet; 0 for none.
    rooms: [AtomicU32; 2],
    /// Of netlink: the `epoll` that waits for it.
    watch: Watch,
    /// Of netlink: port, groups and options known to the gateway; port 0 while it knows none.
    told: [AtomicU32; 3],
    /// Of netlink: the number of the last request.
    sequence: AtomicU32,
    /// Of netlink: the outstanding answer.
    awaited: PendingAnswer,
    /// Of netlink: how often the process had forked when it was opened.
    forks: AtomicU32,
}

/// Who a gateway takes the program at a netlink connection for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The port id, not zero.
    pub(crate) port: u32,
    /// Multicast groups, a bit each.
    pub(crate) groups: u32,
    /// Netlink options, a bit each.
    pub(crate) options: u32,
}

/// Room that a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// `SO_SNDBUF`.
    Send = 0,
    /// `SO_RCVBUF`.
    Receive = 1,
}

/// An `epoll` that a descriptor has been added to.
#[derive(Debug)]
struct Watch {
    /// One more than its descriptor; 0 for none.
    epoll: AtomicU32,
    events: AtomicU32,
    data: [AtomicU32; 2],
}

/// A redirected UDP socket: bound to a port that the gateway shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram(&'static Socket);

/// What a program asked for with the datagrams that it receives, and that it may ask for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvOption {
    /// `IP_PKTINFO`, `IPV6_RECVPKTINFO`.
    Address = 1,
    /// `IP_RECVTOS`, `IPV6_RECVTCLASS`.
    Tos = 2,
}

impl Socket {
    const fn none() -> Self {
        Self {
            state: AtomicU32::new(0),
            port: AtomicU32::new(0),
            groups: AtomicU32::new(0),
            options: AtomicU32::new(0),
            family: AtomicU32::new(0),
            tos: AtomicU32::new(0),
            address: [const { AtomicU32::new(0) }; 4],
            rooms: [const { AtomicU32::new(0) }; 2],
            watch: Watch {
                epoll: AtomicU32::new(0),
                events: AtomicU32::new(0),
                data: [const { AtomicU32::new(0) }; 2],
            },
            told: [const { AtomicU32::new(0) }; 3],
            sequence: AtomicU32::new(0),
            awaited: PendingAnswer::nothing(),
            forks: AtomicU32::new(0),
        }
    }

    /// The `epoll` that waits for it and what that was told, if there is one.
    pub(crate) fn watch(&self) -> Option<(c_int, epoll_event)> {
        let Watch { epoll, events, data: [low, high] } = &self.watch;
        let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let event = epoll_event {
            events: word(events),
            u64: u64::from(word(low)) | u64::from(word(high)) << 32,
        };
        Some((c_int::try_from(word(epoll).checked_sub(1)?).ok()?, event))
    }

    pub(crate) fn set_watch(&self, watch: Option<(c_int, epoll_event)>) {
        let Watch { epoll, events, data: [low, high] } = &self.watch;
        let (descriptor, event) = watch.unwrap_or((-1, epoll_event { events: 0, u64: 0 }));
        let data = event.u64.to_le_bytes();
        events.store(event.events, Ordering::Relaxed);
        low.store(u32::from_le_bytes([data[0], data[1], data[2], data[3]]), Ordering::Relaxed);
        high.store(u32::from_le_bytes([data[4], data[5], data[6], data[7]]), Ordering::Relaxed);
        // From -1 on.
        epoll.store((descriptor + 1).unsigned_abs(), Ordering::Relaxed);
    }

    /// What a copy has as well, beside the state.
    fn words(&self) -> [&AtomicU32; 11] {
        let ([a, b, c, d], [send, receive]) = (&self.address, &self.rooms);
        [
            &self.port,
            &self.groups,
            &self.options,
            &self.family,
            &self.tos,
            a,
            b,
            c,
            d,
            send,
            receive,
        ]
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
        if groups != 0 {
            self.spoil(); // events may be on their way when it leaves them
        }
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

    /// The gateway is another one, which knows nothing yet.
    pub(crate) fn set_ungreeted(&self) {
        self.spoil();
        self.told[0].store(0, Ordering::Relaxed);
        self.state.fetch_and(!(GREETED | QUIET | PAGED), Ordering::Relaxed);
    }

    /// Its connection is not to be another socket's, and nothing more is asked on a page.
    pub(crate) fn spoil(&self) {
        self.state.fetch_or(SPOILT, Ordering::Relaxed);
    }

    /// Whether its connection is to be closed with it, whatever comes.
    pub(crate) fn is_spoilt(&self) -> bool {
        self.state.load(Ordering::Relaxed) & SPOILT != 0
    }

    /// Whether its connection equals a new one: nothing outstanding, no copy, default settings.
    pub(crate) fn is_as_new(&self) -> bool {
        self.state.load(Ordering::Acquire) & (SPOILT | BUSY | QUIET | GREETED) == GREETED
            && self.forks() == connection_reuse::forks()
    }

    /// Notes a request that is about to be sent: its number, if it has one answer.
    pub(crate) fn ask(&self, request: Option<u32>) {
        match request {
            Some(sequence) if self.state.fetch_or(BUSY, Ordering::AcqRel) & BUSY == 0 => {
                self.sequence.store(sequence, Ordering::Relaxed);
            }
            _ => self.spoil(),
        }
    }

    /// Notes that the answer was received.
    pub(crate) fn settle(&self) {
        self.awaited.end();
        self.state.fetch_and(!BUSY, Ordering::AcqRel);
    }

    /// What is to come after the last request.
    pub(crate) fn awaited(&self) -> &PendingAnswer {
        &self.awaited
    }

    /// Whether its connection has this process's page.
    pub(crate) fn is_paged(&self) -> bool {
        self.state.load(Ordering::Relaxed) & PAGED != 0
    }

    pub(crate) fn set_paged(&self) {
        self.state.fetch_or(PAGED, Ordering::Relaxed);
    }

    /// How often the process had forked when it was opened.
    pub(crate) fn forks(&self) -> u32 {
        self.forks.load(Ordering::Relaxed)
    }

    /// Whether the answer to the one request that was sent is still to come.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.load(Ordering::Relaxed) & BUSY != 0
    }

    /// Notes that the answer to a request was received.
    pub(crate) fn hear(&self, sequence: u32) {
        if self.sequence.load(Ordering::Relaxed) == sequence {
            self.settle();
        }
    }

    /// Who the gateway takes the connection for, if it knows.
    pub(crate) fn gateway_identity(&self) -> Option<Identity> {
        let [port, groups, options] =
            [0, 1, 2].map(|word: usize| self.told[word].load(Ordering::Relaxed));
        (port != 0).then_some(Identity { port, groups, options })
    }

    pub(crate) fn set_gateway_identity(&self, Identity { port, groups, options }: Identity) {
        for (word, value) in self.told.iter().zip([port, groups, options]) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Who the program is now.
    pub(crate) fn identity(&self) -> Identity {
        Identity { port: self.port(), groups: self.groups(), options: self.options() }
    }

    /// Keeps what a program asked for until it matters.
    pub(crate) fn set_room(&self, room: Room, bytes: u32) {
        self.rooms[room as usize].store(bytes, Ordering::Relaxed);
    }

    /// What is kept, which the caller sees to.
    pub(crate) fn take_room(&self, room: Room) -> Option<u32> {
        Some(self.rooms[room as usize].swap(0, Ordering::Relaxed)).filter(|bytes| *bytes != 0)
    }

    /// Whether its gateway is gone and no other was there.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.load(Ordering::Relaxed) & QUIET != 0
    }

    pub(crate) fn set_quiet(&self) {
        self.state.fetch_or(QUIET, Ordering::Relaxed);
    }

    pub(crate) fn set_greeted(&self) {
        self.state.fetch_or(GREETED, Ordering::Relaxed);
    }

    fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) & OPEN != 0
    }

    /// Whether it is open as what `kind` says: [`DATAGRAM`], [`GENERIC`], or 0 for netlink of XFRM.
    fn is(&self, kind: u32) -> bool {
        self.state.load(Ordering::Acquire) & (OPEN | DATAGRAM | GENERIC) == OPEN | kind
    }

    fn begin(&self, state: u32) {
        self.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.set_watch(None);
        self.told[0].store(0, Ordering::Relaxed);
        self.awaited.end();
        self.forks.store(connection_reuse::forks(), Ordering::Relaxed);
        self.state.store(OPEN | state, Ordering::Release);
    }
}

impl Datagram {
    /// IPv4 or IPv6.
    pub(crate) fn family(self) -> AddressFamily {
        if self.0.family.load(Ordering::Relaxed) == AddressFamily::V4 as u32 {
            AddressFamily::V4
        } else {
            AddressFamily::V6
        }
    }

    /// What it is bound to.
    pub(crate) fn local(self) -> End {
        let mut address = [0; 16];
        for (bytes, word) in address.chunks_exact_mut(4).zip(&self.0.address) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        // Written from a u16.
        End { address, port: u16::try_from(self.0.port()).unwrap_or(0) }
    }

    /// The TOS or traffic-class byte of what it sends.
    pub(crate) fn tos(self) -> u8 {
        self.0.tos.load(Ordering::Relaxed).to_le_bytes()[0]
    }

    pub(crate) fn set_tos(self, tos: u8) {
        self.0.tos.store(tos.into(), Ordering::Relaxed);
    }

    pub(crate) fn wants(self, wish: RecvOption) -> bool {
        self.0.options() & wish as u32 != 0
    }

    pub(crate) fn set_wanted(self, wish: RecvOption, value: c_int) {
        let (options, bit) = (self.0.options(), wish as u32);
        self.0.set_options(if value != 0 { options | bit } else { options & !bit });
    }

    fn set_local(self, family: AddressFamily, local: End) {
        self.0.family.store(family as u32, Ordering::Relaxed);
        self.0.set_port(local.port.into());
        for (bytes, word) in local.address.chunks_exact(4).zip(&self.0.address) {
            let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
            word.store(u32::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }
}

/// The redirected netlink socket behind a descriptor; `None` for everything else.
pub(crate) fn find(descriptor: c_int) -> Option<&'static Socket> {
    slot(descriptor).filter(|socket| socket.is(0))
}

/// The redirected UDP socket behind a descriptor; `None` for everything else.
pub(crate) fn datagram(descriptor: c_int) -> Option<Datagram> {
    slot(descriptor).filter(|socket| socket.is(DATAGRAM)).map(Datagram)
}

/// Whether a descriptor is a socket of generic netlink that this process opened.
pub(crate) fn is_generic(descriptor: c_int) -> bool {
    slot(descriptor).is_some_and(|socket| socket.is(GENERIC))
}

/// Whether a descriptor is one, and has received from the gateway.
pub(crate) fn is_relayed(descriptor: c_int) -> bool {
    let is = |socket: &Socket| socket.state.load(Ordering::Acquire) & RELAYED != 0;
    slot(descriptor).is_some_and(|socket| socket.is(GENERIC) && is(socket))
}

/// Notes that a socket of generic netlink has received from the gateway.
pub(crate) fn set_relayed(descriptor: c_int) {
    if let Some(socket) = slot(descriptor).filter(|socket| socket.is(GENERIC)) {
        socket.state.fetch_or(RELAYED, Ordering::AcqRel);
    }
}

/// Notes a new generic netlink socket. A descriptor beyond the table is the kernel's alone.
pub(crate) fn insert_generic(descriptor: c_int) {
    if let Some(socket) = slot(descriptor) {
        socket.begin(GENERIC);
        HIGHEST.fetch_max(descriptor, Ordering::Relaxed);
    }
}

/// Whether a descriptor is redirected, in part or as a whole.
pub(crate) fn is_ours(descriptor: c_int) -> bool {
    slot(descriptor).is_some_and(Socket::is_open)
}

/// Whether a descriptor is low enough to be redirected.
pub(crate) fn takes(descriptor: c_int) -> bool {
    slot(descriptor).is_some()
}

/// Notes that a descriptor is a redirected UDP socket.
pub(crate) fn insert_datagram(
    descriptor: c_int,
    family: AddressFamily,
    local: End,
) -> Option<Datagram> {
    slot(descriptor)?.begin(DATAGRAM);
    HIGHEST.fetch_max(descriptor, Ordering::Relaxed);
    let socket = datagram(descriptor)?;
    socket.set_local(family, local);
    Some(socket)
}

/// Notes that a descriptor is a new redirected netlink socket. False when it is too high for that.
pub(crate) fn insert(descriptor: c_int, kind: c_int) -> bool {
    let Some(socket) = slot(descriptor) else { return false };
    socket.begin(kind.unsigned_abs() & KIND);
    HIGHEST.fetch_max(descriptor, Ordering::Relaxed);
    true
}

/// Forgets a descriptor that this process closed, or that the kernel has given out anew.
pub(crate) fn remove(descriptor: c_int) {
    if let Some(socket) = slot(descriptor).filter(|socket| socket.is_open())
        && !process::is_borrowed()
    {
        socket.state.store(0, Ordering::Release);
    }
}

/// Forgets all descriptors of a range.
pub(crate) fn remove_range(first: c_int, last: c_int) {
    let end = last.min(HIGHEST.load(Ordering::Relaxed));
    (first.max(0)..=end).for_each(remove);
}

/// Notes that `copy` duplicates `descriptor`. False when it should be redirected and cannot be.
pub(crate) fn duplicate(descriptor: c_int, copy: c_int) -> bool {
    let Some(socket) = slot(descriptor).filter(|socket| socket.is_open()) else {
        remove(copy);
        return true;
    };
    let Some(twin) = slot(copy) else { return false };
    socket.spoil();
    if process::is_borrowed() {
        return true; // the copy is another process's
    }
    for (from, to) in socket.words().into_iter().zip(twin.words()) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    twin.set_watch(None);
    twin.told[0].store(0, Ordering::Relaxed);
    HIGHEST.fetch_max(copy, Ordering::Relaxed);
    twin.state.store(socket.state.load(Ordering::Relaxed), Ordering::Release);
    true
}

/// The redirected netlink sockets whose gateway is gone.
pub(crate) fn quiet() -> impl Iterator<Item = (c_int, &'static Socket)> {
    let open = |descriptor| Some((descriptor, find(descriptor)?));
    (0..=HIGHEST.load(Ordering::Relaxed)).filter_map(open).filter(|(_, socket)| socket.is_quiet())
}

/// Whether a redirected netlink socket of this process has the port.
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
    fn duplicated_descriptor_is_known_until_closed() {
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
    #[test]
    fn generic_socket_is_the_kernels() {
        insert_generic(62_000);
        assert!(is_generic(62_000) && find(62_000).is_none() && datagram(62_000).is_none());
        assert!(!is_relayed(62_000));
        set_relayed(62_000);
        assert!(duplicate(62_000, 62_001) && is_relayed(62_001));
        remove(62_000);
        remove(62_001);
        assert!(!is_generic(62_000) && !is_relayed(62_001));
        insert_generic(-1);
    }

    #[test]
    fn udp_socket_is_not_a_netlink_socket() {
        let local = End { address: [7; 16], port: 4500 };
        let socket = insert_datagram(63_900, AddressFamily::V6, local).unwrap();
        socket.set_tos(0x88);
        socket.set_wanted(RecvOption::Address, 1);
        assert!(find(63_900).is_none() && is_ours(63_900));
        assert!(duplicate(63_900, 63_901));
        remove(63_900);
        assert!(datagram(63_900).is_none() && !is_ours(63_900));
        let copy = datagram(63_901).unwrap();
        assert_eq!((copy.family(), copy.local(), copy.tos()), (AddressFamily::V6, local, 0x88));
        assert!(copy.wants(RecvOption::Address) && !copy.wants(RecvOption::Tos));
        assert!(insert(63_901, libc::SOCK_RAW) && datagram(63_901).is_none());
        assert_eq!(find(63_901).unwrap().options(), 0);
        remove(63_901);
    }
}
