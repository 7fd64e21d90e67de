//! The session of a fleet's agent with its gateway: orders go there, news come back.
//!
//! Both are lines of JSON, each ended by a newline, in datagrams whose borders mean nothing: a line
//! may go over several, and one may have many lines. Nothing here waits: who has many things to
//! wait for waits for the descriptor among them.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use nix::{errno::Errno, fcntl};
use serde::{Deserialize, Serialize};
use uxfrm_fleet::{
    agent::{GatewayOrder, GatewayReport},
    names::ChildId,
};

use crate::{connection, receive_datagram, send_datagram};

/// The dialect of agents.
const DIALECT: u32 = 7;
/// The largest datagram.
const LARGEST: usize = 64 << 10;
/// The longest line.
const LONGEST: usize = 16 << 20;

/// What the gateway says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseNews {
    /// First: the children that it has from an earlier session.
    Present(Vec<ChildId>),
    /// What became of an order, or how far states are.
    Report(GatewayReport),
    /// An order that was not understood, or could not be done, and why.
    Failed(String),
}

/// Whether all orders went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// They did.
    All,
    /// The gateway has to read first: wait until the descriptor can be written to.
    Some,
}

/// A session.
#[derive(Debug)]
pub struct LeaseSession {
    connection: OwnedFd,
    outgoing: VecDeque<Vec<u8>>,
    incoming: Vec<u8>,
}

impl LeaseSession {
    /// A session with the gateway at `path`, or in this network namespace.
    ///
    /// # Errors
    /// [`Unanswered`](crate::Unanswered) where none runs there, or it does not answer us.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let connection = connection::open(path, 0, DIALECT, None)?;
        Ok(Self::over(connection)?)
    }

    fn over(connection: OwnedFd) -> io::Result<Self> {
        fcntl::fcntl(&connection, fcntl::FcntlArg::F_SETFL(fcntl::OFlag::O_NONBLOCK))?;
        Ok(Self { connection, outgoing: VecDeque::new(), incoming: Vec::new() })
    }

    /// Queues an order.
    pub fn order(&mut self, order: &GatewayOrder) {
        // Names, numbers and texts: JSON has a form for all of them.
        let mut line = serde_json::to_vec(order).unwrap_or_default();
        line.push(b'\n');
        match self.outgoing.back_mut() {
            Some(last) if last.len() + line.len() <= LARGEST => last.extend_from_slice(&line),
            Some(_) | None => {
                self.outgoing.extend(line.chunks(LARGEST).map(<[u8]>::to_vec));
            }
        }
    }

    /// Sends what is queued, as far as it goes.
    ///
    /// # Errors
    /// The kernel's, where the gateway is gone.
    pub fn flush(&mut self) -> io::Result<Flushed> {
        while let Some(datagram) = self.outgoing.front() {
            match send_datagram(&self.connection, datagram) {
                Ok(()) => drop(self.outgoing.pop_front()),
                Err(Errno::EAGAIN) => return Ok(Flushed::Some),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Flushed::All)
    }

    /// All that came; nothing where nothing did.
    ///
    /// # Errors
    /// `UnexpectedEof` where the gateway went, `InvalidData` where it does not speak so.
    pub fn receive(&mut self) -> io::Result<Vec<LeaseNews>> {
        let (mut datagram, mut news) = (vec![0; LARGEST], Vec::new());
        loop {
            match receive_datagram(&self.connection, &mut datagram) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.incoming.extend_from_slice(&datagram[..length]),
                Err(Errno::EAGAIN) => {
                    news.extend(self.whole_lines()?);
                    return Ok(news);
                }
                Err(error) => return Err(error.into()),
            }
            if self.incoming.len() > LONGEST {
                news.extend(self.whole_lines()?);
            }
        }
    }

    fn whole_lines(&mut self) -> io::Result<Vec<LeaseNews>> {
        let end = self.incoming.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if end == 0 && self.incoming.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
        }
        let lines = self.incoming[..end].split(|byte| *byte == b'\n');
        let lines = lines.filter(|line| !line.is_empty());
        let news = lines.map(serde_json::from_slice).collect::<Result<_, _>>();
        self.incoming.drain(..end);
        news.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }
}

impl AsFd for LeaseSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
    use uxfrm_fleet::desired::Lines;

    use super::*;

    fn pair() -> (LeaseSession, OwnedFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (own, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        (LeaseSession::over(own).unwrap(), other)
    }

    fn child() -> ChildId {
        ChildId { tunnel: "t".parse().unwrap(), index: 0 }
    }

    #[test]
    fn orders_are_lines() {
        let (mut session, gateway) = pair();
        session.order(&GatewayOrder::Deadline(Some(7)));
        session.order(&GatewayOrder::Freeze(child()));
        assert_eq!(session.flush().unwrap(), Flushed::All);
        let mut datagram = vec![0; LARGEST];
        let length = receive_datagram(&gateway, &mut datagram).unwrap();
        let text = "{\"deadline\":7}\n{\"freeze\":{\"tunnel\":\"t\",\"index\":0}}\n";
        assert_eq!(&datagram[..length], text.as_bytes());
    }

    #[test]
    fn a_long_order_goes_over_several_datagrams() {
        let (mut session, gateway) = pair();
        let lines = Lines::new("x".repeat(3 * LARGEST));
        session.order(&GatewayOrder::Base(lines.clone()));
        let (mut text, mut datagram) = (Vec::new(), vec![0; LARGEST]);
        while text.last() != Some(&b'\n') {
            session.flush().unwrap();
            let length = receive_datagram(&gateway, &mut datagram).unwrap();
            text.extend_from_slice(&datagram[..length]);
        }
        let order: GatewayOrder = serde_json::from_slice(&text).unwrap();
        assert_eq!(order, GatewayOrder::Base(lines));
    }

    #[test]
    fn news_come_in_pieces() {
        let (mut session, gateway) = pair();
        assert_eq!(session.receive().unwrap(), []);
        send_datagram(&gateway, b"{\"present\":[{\"tunnel\":\"t\",\"ind").unwrap();
        assert_eq!(session.receive().unwrap(), []);
        send_datagram(&gateway, b"ex\":0}]}\n{\"failed\":\"why\"}\n{\"rep").unwrap();
        let news = [LeaseNews::Present(vec![child()]), LeaseNews::Failed("why".to_owned())];
        assert_eq!(session.receive().unwrap(), news);
        drop(gateway);
        assert_eq!(session.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_no_news_is_an_error() {
        let (mut session, gateway) = pair();
        send_datagram(&gateway, b"{\"other\":1}\n").unwrap();
        assert_eq!(session.receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
