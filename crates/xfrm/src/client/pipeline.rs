//! Pipelined requests: datagrams of many messages of which only the last asks for an
//! acknowledgement; refusals come anyway. 100,000 batch lines cost a few thousand system calls.

use std::{collections::VecDeque, io, os::fd::AsRawFd as _};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, send, setsockopt, sockopt},
};
use uxfrm_netlink::{
    NetlinkError, NetlinkFlags, NetlinkMessages,
    client::{NetlinkRequest, ReplyStatus},
};
use zeroize::{Zeroize as _, Zeroizing};

use super::{Acknowledged, Connection, Error, set_acknowledged};
use std::os::fd::AsFd as _;

/// A datagram is sent when it has this many bytes or messages.
const FULL: usize = 24 * 1024;
const MOST: usize = 64;

/// Milliseconds for which a server may neither answer nor take more.
const PATIENCE: u16 = 60_000;

/// Unacknowledged datagrams: the server writes all that it finds at once to its disk together.
const IN_FLIGHT: usize = 32;

/// Wanted size of the socket's buffer. If it is not allowed, fewer datagrams are in flight.
const ROOM: usize = 4 * 1024 * 1024;

/// What becomes of requests behind one that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRefusal {
    /// They are carried out.
    Continue,
    /// They are not, though they may be on their way already.
    Stop,
}

/// Requests that are on their way, each with a tag that its refusal is reported with.
pub struct Pipeline<T> {
    datagram: Zeroizing<Vec<u8>>,
    /// Of the datagram being filled.
    filling: Vec<(u32, T)>,
    /// Where the last message of it begins.
    last: usize,
    on_refusal: OnRefusal,
    /// Of the datagrams on their way, oldest first.
    sent: VecDeque<Vec<(u32, T)>>,
    refused: Vec<(T, NetlinkError)>,
}

impl<T: Copy> Pipeline<T> {
    /// None on their way yet.
    #[must_use]
    pub fn new(connection: &Connection, on_refusal: OnRefusal) -> Self {
        // Root may have more than others.
        let _as_it_is = setsockopt(&connection.socket, sockopt::SndBufForce, &ROOM)
            .or_else(|_| setsockopt(&connection.socket, sockopt::SndBuf, &ROOM));
        Self {
            // With room for the message that fills it: growing would leave keys behind.
            datagram: Zeroizing::new(Vec::with_capacity(2 * FULL)),
            filling: Vec::new(),
            last: 0,
            on_refusal,
            sent: VecDeque::new(),
            refused: Vec::new(),
        }
    }

    /// Puts a request on its way.
    ///
    /// # Errors
    /// When the connection ends.
    pub fn push(
        &mut self,
        connection: &mut Connection,
        mut request: NetlinkRequest,
        tag: T,
    ) -> Result<(), Error> {
        let seq = connection.next_number();
        request.number(seq);
        if self.on_refusal == OnRefusal::Stop {
            request.ask(NetlinkFlags::CHAINED);
        }
        self.last = self.datagram.len();
        self.datagram.extend_from_slice(request.bytes());
        let end = self.datagram.len().next_multiple_of(4);
        self.datagram.resize(end, 0);
        set_acknowledged(&mut self.datagram, self.last, Acknowledged::IfRefused);
        self.filling.push((seq, tag));
        if self.datagram.len() >= FULL || self.filling.len() == MOST {
            self.ship(connection)?;
        }
        Ok(())
    }

    /// Sends the rest, and waits for all answers.
    ///
    /// # Errors
    /// When the connection ends.
    pub fn drain(&mut self, connection: &mut Connection) -> Result<(), Error> {
        self.ship(connection)?;
        while !self.sent.is_empty() {
            self.receive(connection)?;
        }
        Ok(())
    }

    /// The refusals so far, in the order of the requests.
    pub fn refusals(&mut self) -> impl Iterator<Item = (T, NetlinkError)> + use<'_, T> {
        self.refused.drain(..)
    }

    /// Whether there is a refusal.
    #[must_use]
    pub fn has_refusals(&self) -> bool {
        !self.refused.is_empty()
    }

    fn ship(&mut self, connection: &mut Connection) -> Result<(), Error> {
        if self.filling.is_empty() {
            return Ok(());
        }
        set_acknowledged(&mut self.datagram, self.last, Acknowledged::Always);
        while self.sent.len() >= IN_FLIGHT {
            self.receive(connection)?;
        }
        loop {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(connection.socket.as_raw_fd(), &self.datagram, flags) {
                Ok(_) => break,
                // Waits for both directions: each end could be waiting for the other to read.
                Err(Errno::EAGAIN) => self.wait(connection)?,
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(Error::Closed),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        self.datagram.zeroize();
        self.sent.push_back(std::mem::take(&mut self.filling));
        Ok(())
    }

    /// Until there is room for a datagram, or one has come, which is taken.
    fn wait(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let flags = PollFlags::POLLIN | PollFlags::POLLOUT;
        let mut entries = [PollFd::new(connection.as_fd(), flags)];
        match poll(&mut entries, PollTimeout::from(PATIENCE)) {
            Ok(0) => return Err(Error::Silent),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let ready = entries[0].revents().unwrap_or(PollFlags::empty());
        if ready.contains(PollFlags::POLLIN) { self.receive(connection) } else { Ok(()) }
    }

    /// Takes one datagram of answers.
    fn receive(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let len = connection.receive()?;
        for message in NetlinkMessages::of(&connection.buffer[..len]) {
            let Some(oldest) = self.sent.front() else { return Err(Error::Unexpected) };
            let seq = message.header.seq;
            let Some(&(_, tag)) = oldest.iter().find(|(number, _)| *number == seq) else {
                continue;
            };
            let is_last = oldest.last().is_some_and(|(number, _)| *number == seq);
            match ReplyStatus::of(&message) {
                ReplyStatus::Refused(refusal) if refusal == NetlinkError::CHAIN_BROKEN => {}
                ReplyStatus::Refused(refusal) => self.refused.push((tag, refusal)),
                ReplyStatus::Done { .. } => {}
                ReplyStatus::Content | ReplyStatus::Broken => return Err(Error::Unexpected),
            }
            if is_last {
                self.sent.pop_front();
            }
        }
        Ok(())
    }
}

impl<T> std::fmt::Debug for Pipeline<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Pipeline({} filling, {} datagrams sent)", self.filling.len(), self.sent.len())
    }
}
