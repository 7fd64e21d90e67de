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

use crate::stat::{ANSWER, dial, of_another_release, other, unanswered, unwelcome};

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
    pub fn open() -> anyhow::Result<Self> {
        let server = dial()?;
        Ok(Self { server: BufReader::new(server), line: Vec::new(), is_welcome: false })
    }

    /// Begins a capture, or takes what has come since. The query has to stay the same. `None` when
    /// the gateway has ended or handed over to another.
    ///
    /// # Errors
    /// When the gateway refuses or does not answer.
    pub fn capture(&mut self, query: &CaptureQuery) -> anyhow::Result<Option<CaptureReport>> {
        match self.ask(&StatusRequest::Capture(query.clone()))? {
            Some(StatusAnswer::Capture(report)) => Ok(Some(report)),
            Some(answer) => Err(other(&answer)),
            None => Ok(None),
        }
    }

    /// Begins a trace, or takes what has come since, as [`PacketWatch::capture`].
    ///
    /// # Errors
    /// As [`PacketWatch::capture`].
    pub fn trace(&mut self, query: &TraceQuery) -> anyhow::Result<Option<TraceReport>> {
        match self.ask(&StatusRequest::Trace(query.clone()))? {
            Some(StatusAnswer::Trace(report)) => Ok(Some(report)),
            Some(answer) => Err(other(&answer)),
            None => Ok(None),
        }
    }

    fn ask(&mut self, request: &StatusRequest) -> anyhow::Result<Option<StatusAnswer>> {
        self.line.clear();
        // One that closes the connection is found out by the answer that does not come.
        let _closed = self.server.get_mut().write_all(&request.to_line());
        match self.server.read_until(b'\n', &mut self.line) {
            Ok(0) if self.is_welcome => return Ok(None),
            Ok(0) => return Err(unwelcome()),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return if self.is_welcome { Ok(None) } else { Err(unwelcome()) };
            }
            Err(error) => return Err(unanswered(&error, ANSWER)),
        }
        self.is_welcome = true;
        StatusAnswer::from_line(&self.line)
            .map(Some)
            .map_err(|error| of_another_release(&self.line, error))
    }
}
