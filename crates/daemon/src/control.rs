//! The control socket: a Unix seqpacket socket on which `NETLINK_XFRM` is spoken byte for byte, and
//! for tunnels generic netlink and rtnetlink.
//!
//! Its name is abstract, so each network namespace has its own; a path can be configured, and where
//! a stranger has the name a file stands in for it ([`uxfrm_control::fallback_socket`]). This
//! module owns connections, permissions and queues; what the messages mean is behind `Protocol`. It
//! promises that no client holds up another or the caller: nothing blocks, work per client and per
//! call is bounded, and so is what waits for a client. Requests are handled in rounds; all of a
//! round are committed together, and only then answered. Who does not read loses messages and is
//! told so (`ENOBUFS`, as `net/netlink/af_netlink.c: netlink_overrun` does).

mod busy_poll;
mod handover;
mod listener;
mod refusal;
mod session;
pub(crate) mod socket_owner;
pub(crate) mod wake_clients;
mod xfrm_server;

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{MsgFlags, recv},
    },
};

use zeroize::Zeroize as _;

use crate::protocol::{ClientId, DumpProgress, Outbox, Protocol};
use busy_poll::follow_up::FollowUp;
pub(crate) use listener::ListeningSockets;
use listener::{Accepted, Listener};
pub(crate) use session::SavedSession;
use session::Session;
use uxfrm_control::greeting::Dialect;
use uxfrm_control::greeting::Greeting;
pub(crate) use xfrm_server::XfrmServer;

/// Bytes of the largest datagram that is taken: what a socket's default buffer lets through.
const LARGEST: usize = 256 * 1024;

/// Datagrams taken from a client before it is the others' turn.
const TURN: usize = 16;

/// Connections accepted before it is the clients' turn.
const ACCEPTED: usize = 64;

/// Descriptors reported by one wait.
const EVENTS: usize = 64;

/// The longest that one call of [`Control::serve`] goes on while clients keep asking.
const BUDGET: Duration = Duration::from_millis(5);

/// The longest that requests are gathered for one commit that waits for the disk: one sync for as
/// many as there are.
const GATHERING: Duration = Duration::from_millis(25);

/// Connections of users that may not use the gateway, which are told so and no more; others of
/// theirs are closed.
const REFUSED: usize = 32;

/// Bytes of messages, freed, for which the heap is looked through.
const MUCH: usize = 4 << 20;

/// What the listener reports as; clients report as their index.
const LISTENER: u64 = u64::MAX;

/// Which users may use the gateway beside root and its own, and the mark that clients are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessTerms {
    /// Another user, by id.
    pub(crate) user: Option<u32>,
    /// `SO_MARK` of sockets whose traffic passes the gateway by.
    pub(crate) mark: u32,
}

/// The socket and its clients.
#[derive(Debug)]
pub(crate) struct Control {
    listener: Listener,
    epoll: Epoll,
    clients: Vec<Option<Session>>,
    /// Indices that are free.
    free: Vec<u32>,
    /// Connections of users that may not use the gateway.
    refused: usize,
    /// Whether the listener is not waited for, for want of descriptors.
    full: bool,
    terms: AccessTerms,
    buffer: Box<[u8]>,
    outbox: Outbox,
    /// Who was heard in this round.
    heard: Vec<ClientId>,
    follow_up: FollowUp,
    /// Bytes that waited for clients and do so no more, since they were last asked for.
    freed: usize,
}

/// Whether a client is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Here,
    Gone,
}

impl Control {
    /// Opens the socket of this network namespace, or the one at `path`.
    ///
    /// # Errors
    /// `EADDRINUSE` when another gateway has it.
    pub(crate) fn open(path: Option<&Path>, terms: AccessTerms) -> io::Result<Self> {
        Self::listening(Listener::open(path, terms.user)?, terms)
    }

    fn listening(listener: Listener, terms: AccessTerms) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        listen_at(&epoll, &listener)?;
        Ok(Self {
            listener,
            epoll,
            clients: Vec::new(),
            free: Vec::new(),
            refused: 0,
            full: false,
            terms,
            buffer: vec![0; LARGEST].into(),
            outbox: Outbox::default(),
            heard: Vec::new(),
            follow_up: FollowUp::new(),
            freed: 0,
        })
    }

    /// Serves all that ask. The descriptor stays readable while somebody does.
    ///
    /// # Errors
    /// The kernel's about the socket itself; what is wrong with a client only ends that client.
    pub(crate) fn serve(&mut self, protocol: &mut impl Protocol) -> io::Result<()> {
        let begun = Instant::now();
        let mut round = begun;
        loop {
            let count = self.poll_clients(protocol)?;
            if count > 0 && protocol.waits_for_disk() && round.elapsed() < GATHERING {
                continue;
            }
            let quick = self.end_round(round, protocol);
            if count == 0 || begun.elapsed() >= BUDGET {
                return Ok(());
            }
            match quick {
                Some(client) => self.busy_poll_client(client, begun, protocol),
                // Nobody else was ready: should somebody be by now, the descriptor says so.
                None if count == 1 => return Ok(()),
                None => {}
            }
            round = Instant::now();
        }
    }

    /// Lets everyone have a turn who is ready; how many were.
    fn poll_clients(&mut self, protocol: &mut impl Protocol) -> io::Result<usize> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Err(Errno::EINTR) => 0,
            result => result?,
        };
        for event in &events[..count] {
            match event.data() {
                LISTENER => self.accept(protocol)?,
                index => self.serve_client(index, event.events(), protocol),
            }
        }
        Ok(count)
    }

    /// Sends what nobody asked for: the events of the gateway.
    pub(crate) fn publish<R>(&mut self, fill: impl FnOnce(&mut Outbox) -> R) -> R {
        let filled = fill(&mut self.outbox);
        self.post();
        filled
    }

    /// Commits what was handled since `begun`, sends the answers, and lets dumps go on. A client
    /// that had all its requests answered and will ask again at once, if it was the only one.
    fn end_round(&mut self, begun: Instant, protocol: &mut impl Protocol) -> Option<ClientId> {
        if self.heard.is_empty() {
            return None;
        }
        protocol.commit(&mut self.outbox);
        self.post();
        protocol.finish_deferred();
        let mut heard = std::mem::take(&mut self.heard);
        for id in &heard {
            if self.client(*id).is_some_and(Session::is_idle) {
                self.carry_on(*id, protocol);
            }
        }
        let quick = match heard[..] {
            [id] if self.client(id).is_some_and(Session::is_idle) => {
                self.follow_up.note(id, begun, Instant::now()).then_some(id)
            }
            _ => None,
        };
        heard.clear();
        self.heard = heard;
        quick
    }

    /// Whether much was kept for clients that did not read, and is not any more: then the allocator
    /// has memory to give back.
    pub(crate) fn take_freed(&mut self) -> bool {
        let much = self.freed >= MUCH;
        if much {
            self.freed = 0;
        }
        much
    }

    fn accept(&mut self, protocol: &mut impl Protocol) -> io::Result<()> {
        for _ in 0..ACCEPTED {
            match self.listener.accept()? {
                Accepted::Session(socket) => self.admit(socket, protocol),
                Accepted::Nobody => return Ok(()),
                Accepted::NoDescriptors => {
                    tracing::warn!(clients = self.count(), "no descriptor for another client");
                    self.listener.descriptors().try_for_each(|at| self.epoll.delete(at))?;
                    self.full = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Takes a client in, and what it has already said: programs that open a socket per request
    /// have sent it by now.
    fn admit(&mut self, socket: OwnedFd, protocol: &mut impl Protocol) {
        let client = match Session::new(socket, self.terms.user) {
            Ok(client) => client,
            Err(error) => return tracing::debug!(%error, "a client went away at once"),
        };
        if !client.is_permitted() {
            if self.refused == REFUSED {
                return;
            }
            self.refused += 1;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.clients.push(None);
            // Descriptors are `i32`, so there are never more clients.
            u32::try_from(self.clients.len() - 1).unwrap_or(u32::MAX)
        });
        let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::from(index));
        let added = self.epoll.add(client.as_fd(), event);
        self.clients[index as usize] = Some(client);
        let presence = match added {
            Ok(()) => self.receive_from(ClientId(index), TURN, protocol),
            Err(_) => Presence::Gone,
        };
        if presence == Presence::Gone {
            self.disconnect(ClientId(index), protocol);
        }
    }

    /// Does what a client's descriptor asks for.
    fn serve_client(&mut self, index: u64, ready: EpollFlags, protocol: &mut impl Protocol) {
        let Some(id) = u32::try_from(index).ok().map(ClientId) else { return };
        if self.client(id).is_none() {
            return; // dismissed in this round
        }
        let mut presence = Presence::Here;
        if ready.contains(EpollFlags::EPOLLOUT) {
            presence = self.flush(id);
            if presence == Presence::Here && self.client(id).is_some_and(Session::is_idle) {
                self.carry_on(id, protocol);
            }
        }
        if presence == Presence::Here && ready.contains(EpollFlags::EPOLLIN) {
            presence = self.receive_from(id, TURN, protocol);
        }
        // What a client had sent before it hung up has been heard if there was less than a turn of
        // it.
        let hung_up = EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR;
        if presence == Presence::Gone
            || (ready.intersects(hung_up) && !ready.contains(EpollFlags::EPOLLIN))
        {
            self.disconnect(id, protocol);
        }
    }

    /// Takes so many datagrams from a client, if there are as many.
    fn receive_from(
        &mut self,
        id: ClientId,
        most: usize,
        protocol: &mut impl Protocol,
    ) -> Presence {
        for _ in 0..most {
            let Some(Some(client)) = self.clients.get(id.0 as usize) else { return Presence::Gone };
            let length = match receive(client.as_fd(), &mut self.buffer) {
                Ok(length) => length,
                Err(Errno::EAGAIN | Errno::EINTR) => return Presence::Here,
                Err(_) => return Presence::Gone,
            };
            if length == 0 {
                return Presence::Gone; // or an empty datagram, which says nothing
            }
            if length <= self.buffer.len() {
                self.take(id, length, protocol);
                self.buffer[..length].zeroize(); // states have keys
            }
        }
        Presence::Here
    }

    /// Acts on the datagram in the buffer.
    fn take(&mut self, id: ClientId, length: usize, protocol: &mut impl Protocol) {
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        let datagram = &self.buffer[..length];
        if let Some(greeting) = Greeting::parse(datagram) {
            let answer = client.greet(greeting, self.terms.mark);
            if client.is_permitted() {
                protocol.join(id, client.identity());
            }
            if let Some(answer) = answer {
                self.outbox.send(id, answer.to_bytes().to_vec());
            }
        } else if client.is_permitted() {
            if client.is_unknown() {
                client.mark_introduced();
                protocol.join(id, client.identity());
            }
            protocol.handle(id, datagram, &mut self.outbox);
        } else {
            let port = client.identity().port;
            for answer in refusal::refuse(datagram, nix::libc::EPERM, port) {
                self.outbox.send(id, answer);
            }
        }
        if self.heard.last() != Some(&id) {
            self.heard.push(id);
        }
    }

    /// Lets a dump go on as long as its client keeps up.
    fn carry_on(&mut self, id: ClientId, protocol: &mut impl Protocol) {
        for _ in 0..TURN {
            let rest = protocol.carry_on(id, &mut self.outbox);
            if self.outbox.is_empty() && rest == DumpProgress::Done {
                return;
            }
            self.post();
            if !self.client(id).is_some_and(Session::is_idle) {
                return;
            }
        }
        // More at the next round, after the others.
        self.watch(id, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT);
    }

    /// Sends or queues everything in the outbox.
    fn post(&mut self) {
        let mut outbox: VecDeque<_> = self.outbox.take();
        for (id, datagram) in outbox.drain(..) {
            let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else {
                continue;
            };
            let was_idle = client.is_idle();
            client.send(datagram);
            if was_idle && !client.is_idle() {
                self.watch(id, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT);
            }
        }
        self.outbox.give_back(outbox);
    }

    /// Sends what is queued for a client as far as there is room for it.
    fn flush(&mut self, id: ClientId) -> Presence {
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return Presence::Gone;
        };
        let before = client.queued();
        client.flush();
        self.freed += before - client.queued();
        if client.is_broken() {
            return Presence::Gone;
        }
        if client.is_idle() {
            self.watch(id, EpollFlags::EPOLLIN);
        }
        Presence::Here
    }

    fn watch(&self, id: ClientId, flags: EpollFlags) {
        let Some(client) = self.client(id) else { return };
        let mut event = EpollEvent::new(flags, u64::from(id.0));
        if let Err(error) = self.epoll.modify(client.as_fd(), &mut event) {
            tracing::error!(%error, "a client can't be waited for");
        }
    }

    /// Forgets a client, with the answers that are due to it sent: its index may be another's at
    /// once. Closing its descriptor ends waiting for it.
    fn disconnect(&mut self, id: ClientId, protocol: &mut impl Protocol) {
        self.end_round(Instant::now(), protocol);
        let Some(client) = self.clients.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(id.0);
        self.freed += client.queued();
        if !client.is_permitted() {
            self.refused -= 1;
        } else if !client.is_unknown() {
            protocol.leave(id);
        }
        drop(client);
        if self.full {
            self.full = listen_at(&self.epoll, &self.listener).is_err();
        }
    }

    fn client(&self, id: ClientId) -> Option<&Session> {
        self.clients.get(id.0 as usize)?.as_ref()
    }

    fn count(&self) -> usize {
        self.clients.len() - self.free.len()
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

fn listen_at(epoll: &Epoll, listener: &Listener) -> nix::Result<()> {
    let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
    listener.descriptors().try_for_each(|at| epoll.add(at, event))
}

/// Takes a datagram: its length, which is larger than the buffer when it was cut off.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> nix::Result<usize> {
    recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC)
}

#[cfg(test)]
mod tests;
