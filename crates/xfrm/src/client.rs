//! A connection to the server, over a connected seqpacket socket that carries netlink messages.

mod pipeline;

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv, send},
};
use uxfrm_netlink::{
    NetlinkError, NetlinkFlags, NetlinkMessage, NetlinkMessages,
    client::{NetlinkRequest, ReplyStatus},
};
use zeroize::Zeroizing;

pub use self::pipeline::{OnRefusal, Pipeline};
use crate::request::ExpectedAnswer;

/// Bytes of the largest datagram that is taken: above what a server sends.
const LARGEST: usize = 256 * 1024;

/// `NLM_F_DUMP_INTR`
const DUMP_INTERRUPTED: u16 = 0x10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server says no.
    #[error("{}", words(.0))]
    Refused(NetlinkError),
    /// Events were lost: they came faster than they were read.
    #[error("netlink receive error No buffer space available (105)")]
    Overrun,
    /// The server went away.
    #[error("EOF on netlink")]
    Closed,
    /// The socket's time limit passed without an answer.
    #[error(
        "The gateway does not answer: it is stopped or too busy (`uxfrm stat` says whether it is back)"
    )]
    Silent,
    /// The socket's.
    #[error("Cannot talk to rtnetlink: {0}")]
    Io(#[from] io::Error),
    /// What came is no answer.
    #[error("Unexpected reply!!!")]
    Unexpected,
}

/// What there is to know about an answer beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerStatus {
    /// The server's warning.
    pub warning: Option<String>,
    /// The databases changed during a dump in a way that may show.
    pub inconsistent: bool,
}

/// A connected socket, and the number of the last request.
pub struct Connection {
    socket: OwnedFd,
    seq: u32,
    /// Wiped: dumps have keys.
    buffer: Zeroizing<Vec<u8>>,
}

impl Connection {
    /// On a connected seqpacket socket.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, seq: 0, buffer: Zeroizing::new(vec![0; LARGEST]) }
    }

    /// Sends a request and gives each message of the answer to `each`; an acknowledgement is none.
    ///
    /// # Errors
    /// [`Error::Refused`], or when the connection ends.
    pub fn talk(
        &mut self,
        mut request: NetlinkRequest,
        answer: ExpectedAnswer,
        mut each: impl FnMut(&NetlinkMessage<'_>),
    ) -> Result<AnswerStatus, Error> {
        let seq = self.next_number();
        request.number(seq);
        self.send(request.bytes())?;
        let mut status = AnswerStatus::default();
        loop {
            let len = self.receive()?;
            for message in NetlinkMessages::of(&self.buffer[..len]).filter(|m| m.header.seq == seq)
            {
                status.inconsistent |= message.header.flags & DUMP_INTERRUPTED != 0;
                match ReplyStatus::of(&message) {
                    ReplyStatus::Done { warning } => {
                        status.warning = warning;
                        return Ok(status);
                    }
                    ReplyStatus::Refused(refusal) => return Err(Error::Refused(refusal)),
                    ReplyStatus::Broken => return Err(Error::Unexpected),
                    ReplyStatus::Content => {
                        each(&message);
                        if answer == ExpectedAnswer::One {
                            return Ok(status);
                        }
                    }
                }
            }
        }
    }

    /// Gives each event to `each`, for ever.
    ///
    /// # Errors
    /// The connection ended, or `each` failed; after [`Error::Overrun`] it can be called again.
    pub fn listen<E: From<Error>>(
        &mut self,
        mut each: impl FnMut(&NetlinkMessage<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let len = self.receive()?;
            NetlinkMessages::of(&self.buffer[..len]).try_for_each(|message| each(&message))?;
        }
    }

    fn next_number(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    fn send(&self, datagram: &[u8]) -> Result<(), Error> {
        loop {
            match send(self.socket.as_raw_fd(), datagram, MsgFlags::MSG_NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(Error::Closed),
                Err(Errno::EAGAIN) => return Err(Error::Silent),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }

    /// Waits for a datagram; its length in the buffer.
    fn receive(&mut self) -> Result<usize, Error> {
        loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Ok(0) | Err(Errno::ECONNRESET) => return Err(Error::Closed),
                // The only datagram without a message is the one that says that others were lost.
                Ok(len) if NetlinkMessages::of(&self.buffer[..len]).next().is_none() => {
                    return Err(Error::Overrun);
                }
                Ok(len) => return Ok(len),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Err(Error::Silent),
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Connection({})", self.socket.as_raw_fd())
    }
}

/// `lib/libnetlink.c: rtnl_talk_error`: the server's text, or the errno's.
fn words(refusal: &NetlinkError) -> String {
    match &refusal.text {
        Some(text) => format!("Error: {}", with_stop(text)),
        None => format!("RTNETLINK answers: {}", errno_text(refusal.errno)),
    }
}

/// A sentence ends with one full stop.
#[must_use]
pub fn with_stop(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

/// `strerror`
fn errno_text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}

/// `NLM_F_ACK` among the flags of the message that begins at `offset` of a datagram.
fn set_acknowledged(datagram: &mut [u8], offset: usize, wanted: Acknowledged) {
    let Some([low, high]) = datagram.get_mut(offset + 6..offset + 8) else { return };
    let flags = u16::from_ne_bytes([*low, *high]);
    let flags = match wanted {
        Acknowledged::Always => flags | NetlinkFlags::ACK.bits(),
        Acknowledged::IfRefused => flags & !NetlinkFlags::ACK.bits(),
    };
    [*low, *high] = flags.to_ne_bytes();
}

/// Whether a request that was carried out is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledged {
    Always,
    IfRefused,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_text_is_the_kernels_or_strerror() {
        for (refusal, shown) in [
            (NetlinkError::bare(17), "RTNETLINK answers: File exists"),
            (NetlinkError::bare(95), "RTNETLINK answers: Operation not supported"),
            (NetlinkError::invalid("Unsupported mode"), "Error: Unsupported mode."),
            (NetlinkError::invalid("Done."), "Error: Done."),
        ] {
            assert_eq!(Error::Refused(refusal).to_string(), shown);
        }
    }
}
