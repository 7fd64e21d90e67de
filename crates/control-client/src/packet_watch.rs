//! The client's end of a capture or a trace: a connection of its own, with which it ends.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
};

use uxfrm_status::{
    capture::{CaptureQuery, CaptureReport},
    protocol::{StatusAnswer, StatusRequest},
    trace::{TraceQuery, TraceReport},
};

use crate::stat::{ANSWER, Error, dial, read, unanswered};

/// A connection on which packets are watched.
#[derive(Debug)]
pub struct PacketWatch {
    server: BufReader<UnixStream>,
    line: Vec<u8>,
    /// Whether the gateway has answered once.
    is_welcome: bool,
}

impl PacketWatch {
    /// Connects to the gateway of this network namespace.
    ///
    /// # Errors
    /// When no gateway runs here.
    pub fn open() -> Result<Self, Error> {
        let server = dial()?;
        Ok(Self { server: BufReader::new(server), line: Vec::new(), is_welcome: false })
    }

    /// Begins a capture, or takes what has come since. The query has to stay the same. `None` when
    /// the gateway has ended or handed over to another.
    ///
    /// # Errors
    /// When the gateway refuses or does not answer.
    pub fn capture(&mut self, query: &CaptureQuery) -> Result<Option<CaptureReport>, Error> {
        match self.ask(&StatusRequest::Capture(query.clone()))? {
            Some(StatusAnswer::Capture(report)) => Ok(Some(report)),
            Some(_) => Err(Error::AnotherQuestion),
            None => Ok(None),
        }
    }

    /// Begins a trace, or takes what has come since, as [`PacketWatch::capture`].
    ///
    /// # Errors
    /// As [`PacketWatch::capture`].
    pub fn trace(&mut self, query: &TraceQuery) -> Result<Option<TraceReport>, Error> {
        match self.ask(&StatusRequest::Trace(query.clone()))? {
            Some(StatusAnswer::Trace(report)) => Ok(Some(report)),
            Some(_) => Err(Error::AnotherQuestion),
            None => Ok(None),
        }
    }

    fn ask(&mut self, request: &StatusRequest) -> Result<Option<StatusAnswer>, Error> {
        self.line.clear();
        // One that closes the connection is found out by the answer that does not come.
        let _closed = self.server.get_mut().write_all(&request.to_line());
        match self.server.read_until(b'\n', &mut self.line) {
            Ok(0) if self.is_welcome => return Ok(None),
            Ok(0) => return Err(Error::NotAllowed),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return if self.is_welcome { Ok(None) } else { Err(Error::NotAllowed) };
            }
            Err(error) => return Err(unanswered(error, ANSWER)),
        }
        self.is_welcome = true;
        read(&self.line).map(Some)
    }
}
