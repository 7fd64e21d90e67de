//! One client's connection: its permission, its identity, and its send queue.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    libc,
    sys::socket::{MsgFlags, getsockopt, send, sockopt::PeerCredentials},
    unistd::Uid,
};

use uxfrm_control::{
    greeting::{Dialect, Greeting, GreetingKind},
    mailbox::{CloseOutcome, LAYOUT, MailboxServer, ServerPoll},
};
use uxfrm_io::shared_page::SharedPage;

use crate::protocol::{Datagram, Identity};

/// Bytes that wait for a client besides what the kernel keeps for it (`net.core.wmem_default`);
/// more is lost.
const MOST_QUEUED: usize = 256 * 1024;

/// A client's session as it passes to another process of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedSession {
    pub(crate) identity: Identity,
    pub(crate) permitted: bool,
    pub(crate) unknown: bool,
    pub(crate) overrun: bool,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Session {
    socket: OwnedFd,
    permitted: bool,
    identity: Identity,
    /// Whether the identity is only what we think until it says one.
    unknown: bool,
    queue: VecDeque<Datagram>,
    queued: usize,
    /// Whether messages for it are being lost until the queue is empty.
    overrun: bool,
    broken: bool,
    /// What it shares with us, if it asked for that.
    mailbox: Option<(SharedPage, MailboxServer)>,
}

impl Session {
    /// A new connection. Root, the user that the gateway runs as and `user` are permitted to use
    /// it.
    pub(super) fn new(socket: OwnedFd, user: Option<u32>) -> io::Result<Self> {
        let peer = getsockopt(&socket, PeerCredentials)?;
        let permitted = peer.uid() == 0
            || peer.uid() == Uid::effective().as_raw()
            || user.is_some_and(|user| user == peer.uid());
        let port = peer.pid().unsigned_abs();
        Ok(Self {
            socket,
            permitted,
            identity: Identity {
                port,
                groups: 0,
                options: 0,
                dialect: Dialect::Xfrm,
                process: port,
            },
            unknown: true,
            queue: VecDeque::new(),
            queued: 0,
            overrun: false,
            broken: false,
            mailbox: None,
        })
    }

    /// A connection that another process of this gateway has had until now.
    pub(super) fn restored(socket: OwnedFd, session: SavedSession) -> Self {
        let SavedSession { mut identity, permitted, unknown, overrun } = session;
        let peer = getsockopt(&socket, PeerCredentials);
        identity.process = peer.map_or(0, |peer| peer.pid().unsigned_abs());
        Self {
            socket,
            permitted,
            identity,
            unknown,
            queue: VecDeque::new(),
            queued: 0,
            overrun,
            broken: false,
            mailbox: None,
        }
    }

    /// What the process that goes on has to know of it. What it has not read by now is lost to it,
    /// and it will be told.
    pub(super) fn session(&self) -> SavedSession {
        let Self { identity, permitted, unknown, overrun, queue, .. } = self;
        let overrun = *overrun || !queue.is_empty();
        SavedSession { identity: *identity, permitted: *permitted, unknown: *unknown, overrun }
    }

    pub(super) fn is_permitted(&self) -> bool {
        self.permitted
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether the protocol has not been told of it.
    pub(super) fn is_unknown(&self) -> bool {
        self.unknown
    }

    /// Whether nothing waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.overrun
    }

    /// Bytes that wait for it.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Whether its connection does not take datagrams any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Lets the identity that we think of stand.
    pub(super) fn mark_introduced(&mut self) {
        self.unknown = false;
    }

    /// Takes what it says about itself. The answer, if it asked for one.
    pub(super) fn greet(&mut self, greeting: Greeting, mark: u32) -> Option<Greeting> {
        let Greeting { kind, port, groups, options, value } = greeting;
        match kind {
            GreetingKind::Hello | GreetingKind::Ask => {}
            GreetingKind::Share => return self.share(greeting),
            GreetingKind::Welcome | GreetingKind::Refused | GreetingKind::Overrun => return None,
        }
        let dialect = Dialect::of(value);
        if let Some(dialect) = dialect {
            self.identity = Identity { port, groups, options, dialect, ..self.identity };
            self.unknown = !self.permitted;
        }
        let (answer, value) = if !self.permitted {
            (GreetingKind::Refused, libc::EPERM.unsigned_abs())
        } else if dialect.is_none() {
            (GreetingKind::Refused, libc::EPROTONOSUPPORT.unsigned_abs())
        } else {
            (GreetingKind::Welcome, mark)
        };
        (kind == GreetingKind::Ask).then_some(Greeting { kind: answer, value, ..greeting })
    }

    /// Sends a datagram, or keeps it for later; where too many wait already it is lost, and the
    /// client will be told.
    pub(super) fn send(&mut self, datagram: Datagram) {
        if self.overrun || self.broken {
            return;
        }
        if self.queue.is_empty() && (self.put(&datagram) || self.transmit(&datagram)) {
            return;
        }
        if self.queued + datagram.len() > MOST_QUEUED {
            self.overrun = true;
            return;
        }
        self.queued += datagram.len();
        self.queue.push_back(datagram);
    }

    /// Sends what waits, and at its end that messages were lost, if some were.
    pub(super) fn flush(&mut self) {
        while let Some(datagram) = self.queue.pop_front() {
            if !self.transmit(&datagram) {
                self.queue.push_front(datagram);
                return;
            }
            self.queued -= datagram.len();
        }
        // The room of a queue that was long is no longer needed.
        self.queue.shrink_to_fit();
        if self.overrun {
            let silent = self.identity.options >> libc::NETLINK_NO_ENOBUFS & 1 == 1;
            let Identity { port, groups, options, .. } = self.identity;
            let notice = Greeting { kind: GreetingKind::Overrun, port, groups, options, value: 0 };
            self.overrun = !silent && !self.transmit(&notice.to_bytes());
        }
    }

    /// Waits for its next request where it shares a page with us.
    pub(super) fn open_mailbox(&self) {
        if let Some((page, desk)) = &self.mailbox {
            desk.open(page.words());
        }
    }

    /// Looks for the next request there. Without a page it comes on the socket.
    pub(super) fn look(&mut self, buffer: &mut [u8]) -> ServerPoll {
        let mailbox = self.mailbox.as_mut();
        mailbox.map_or(ServerPoll::Closed, |(page, desk)| desk.take(page.words(), buffer))
    }

    /// Takes back an answer that it did not collect there.
    pub(super) fn take_back(&self, buffer: &mut [u8]) -> Option<usize> {
        self.mailbox.as_ref().and_then(|(page, desk)| desk.take_back(page.words(), buffer))
    }

    /// Waits there no longer.
    pub(super) fn close_mailbox(&mut self, buffer: &mut [u8]) -> CloseOutcome {
        let mailbox = self.mailbox.as_mut();
        mailbox.map_or(CloseOutcome::Nothing, |(page, desk)| desk.close(page.words(), buffer))
    }

    /// Answers what was asked on the page there. False when it has to go by the socket.
    fn put(&mut self, datagram: &[u8]) -> bool {
        let Some((page, desk)) = &mut self.mailbox else { return false };
        if self.identity.groups != 0 {
            desk.decline(page.words());
            return false;
        }
        desk.answer(page.words(), datagram)
    }

    /// Shares a page with the client, which gets its descriptor with the answer; or the answer that
    /// there is none.
    fn share(&mut self, greeting: Greeting) -> Option<Greeting> {
        let errno = match self.try_share(greeting) {
            Ok(page) => {
                self.mailbox = Some((page, MailboxServer::default()));
                return None;
            }
            Err(errno) => errno,
        };
        Some(Greeting {
            kind: GreetingKind::Refused,
            value: (errno as i32).unsigned_abs(),
            ..greeting
        })
    }

    fn try_share(&self, greeting: Greeting) -> nix::Result<SharedPage> {
        if !self.permitted {
            return Err(Errno::EPERM);
        }
        // The program's library may be of another version.
        if greeting.value != LAYOUT {
            return Err(Errno::EPROTO);
        }
        // What it listens to would lie where an answer is awaited.
        if self.mailbox.is_some() || !self.is_idle() || self.identity.groups != 0 {
            return Err(Errno::EBUSY);
        }
        let welcome = Greeting { kind: GreetingKind::Welcome, ..greeting }.to_bytes();
        let failed = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        SharedPage::pass(self.socket.as_fd(), &welcome).map_err(failed)
    }

    /// Hands a datagram to the kernel. False when there is no room for it. A broken connection
    /// swallows everything.
    fn transmit(&mut self, datagram: &[u8]) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(self.socket.as_raw_fd(), datagram, flags) {
            Ok(_) => true,
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS | Errno::ENOMEM) => false,
            Err(_) => {
                self.broken = true;
                true
            }
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
