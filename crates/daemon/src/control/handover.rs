//! Connections that pass from one process of a gateway to the next (`uxfrm upgrade`).

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::epoll::{EpollEvent, EpollFlags};

use super::{
    AccessTerms, Control,
    listener::{Listener, ListeningSockets},
    session::{SavedSession, Session},
};
use crate::protocol::{ClientId, Protocol};

/// How long clients may take to read what waits for them. Who does not is told that some was lost.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

impl Control {
    /// The socket and the clients that another process of this gateway has had until now, in their
    /// places; none is served yet.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn of_sockets(
        listening: ListeningSockets,
        clients: Vec<Option<(OwnedFd, SavedSession)>>,
        terms: AccessTerms,
    ) -> io::Result<Self> {
        let mut control = Self::listening(Listener::of_sockets(listening)?, terms)?;
        for (index, place) in (0..).zip(clients) {
            let Some((socket, session)) = place else {
                control.clients.push(None);
                control.free.push(index);
                continue;
            };
            let client = Session::restored(socket, session);
            control.refused += usize::from(!client.is_permitted());
            let flags = if client.is_idle() {
                EpollFlags::EPOLLIN
            } else {
                EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT
            };
            control.epoll.add(client.as_fd(), EpollEvent::new(flags, u64::from(index)))?;
            control.clients.push(Some(client));
        }
        Ok(control)
    }

    /// Makes the clients of the process before known, and has whoever connects see this process at
    /// the other end.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn take_sessions_over(&mut self, protocol: &mut impl Protocol) -> io::Result<()> {
        for (index, client) in (0..).zip(&self.clients) {
            if let Some(client) = client.as_ref().filter(|client| !client.is_unknown()) {
                protocol.join(ClientId(index), client.identity());
            }
        }
        self.listener.take_over()
    }

    /// Lets dumps under way come to their ends, and clients read what waits for them, if they do so
    /// in time.
    pub(crate) fn settle(&mut self, protocol: &mut impl Protocol) {
        let begun = Instant::now();
        loop {
            let places: Vec<_> = (0..).zip(&self.clients).collect();
            let busy: Vec<_> = places
                .into_iter()
                .filter(|(_, client)| client.as_ref().is_some_and(|client| !client.is_idle()))
                .map(|(index, _)| ClientId(index))
                .collect();
            for id in busy {
                // Who is gone is noticed by the process that goes on.
                let _presence = self.flush(id);
            }
            let ids = 0..u32::try_from(self.clients.len()).unwrap_or(u32::MAX);
            for id in ids.map(ClientId) {
                if self.client(id).is_some_and(Session::is_idle) {
                    self.carry_on(id, protocol);
                }
            }
            let rests = self.clients.iter().flatten().all(Session::is_idle);
            if rests || begun.elapsed() >= PATIENCE {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The listening socket.
    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The one beside its name, where only those may connect who may ask.
    pub(crate) fn reserved_listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.reserved()
    }

    /// The clients in their places.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = Option<(BorrowedFd<'_>, SavedSession)>> {
        let session = |client: &Session| client.session();
        self.clients
            .iter()
            .map(move |client| client.as_ref().map(|client| (client.as_fd(), session(client))))
    }
}
