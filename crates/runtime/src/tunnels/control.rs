//! What a running loop is told to do differently, by another thread that waits until it is done.
//!
//! The other thread opens and closes what takes the kernel its time; the loop only begins or ends to use it, between two batches.

use std::{
    io,
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    time::Duration,
};

use uxfrm_io::{Port, poll::Waker};
use uxfrm_tunnel::{Ports, Tunnels};

use super::{Incoming, Interface, Portrait, Route, Source};
use crate::Error;

/// How long a loop may take over its batches before it looks.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// One thing that is to be different.
#[derive(Debug)]
pub enum Change {
    /// A tunnel more.
    Open(Interface),
    /// Another tunnel in the place of the one of its name.
    Alter(Route),
    /// The tunnel of this name less.
    Close(String),
    /// A socket more, where there is none for its source.
    Listen(Incoming),
    /// The socket for this source less.
    Leave(Source),
}

/// Tells a loop what to do differently.
#[derive(Debug)]
pub struct TunnelControl {
    requests: Sender<Request>,
    waker: Waker,
}

/// What a loop is told.
#[derive(Debug)]
pub(super) enum Request {
    /// Changes that belong together.
    Apply {
        tunnels: Tunnels,
        ports: Ports,
        changes: Vec<Change>,
        done: SyncSender<Result<Vec<Box<dyn Port>>, Error>>,
    },
    /// What it has is asked for.
    Export(SyncSender<io::Result<Portrait>>),
}

impl TunnelControl {
    pub(super) fn new(waker: Waker) -> (Self, Receiver<Request>) {
        let (requests, receiver) = channel();
        (Self { requests, waker }, receiver)
    }

    /// Has `changes` made in order, with these tunnels and receive ports from now on. What is no longer used is closed by the calling
    /// thread: traffic of others goes on meanwhile.
    ///
    /// # Errors
    /// When a port can't be polled, or there are more than 256: nothing before it is undone. [`Error::Ended`] when the loop is not there.
    pub fn order(&self, tunnels: Tunnels, ports: Ports, changes: Vec<Change>) -> Result<(), Error> {
        let (done, answer) = sync_channel(1);
        let request = Request::Apply { tunnels, ports, changes, done };
        self.ask(request, &answer)?.map(drop)
    }

    /// What the loop has, for another process that takes its place. It goes on.
    ///
    /// # Errors
    /// [`Error::Ended`] when the loop is not there, [`Error::Poll`] for too many descriptors.
    pub fn portray(&self) -> Result<Portrait, Error> {
        let (done, answer) = sync_channel(1);
        self.ask(Request::Export(done), &answer)?.map_err(Error::Poll)
    }

    fn ask<T>(&self, request: Request, answer: &Receiver<T>) -> Result<T, Error> {
        self.requests.send(request).map_err(|_ended| Error::Ended)?;
        self.waker.wake();
        answer.recv_timeout(REPLY_TIMEOUT).map_err(|_late| Error::Ended)
    }
}
