//! Changes to a running tunnel loop, by another thread that waits until they are applied.
//!
//! That thread opens and closes sockets, which takes the kernel its time; the loop only starts or
//! stops to use them, between two batches.

use std::{
    io,
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    time::Duration,
};

use uxfrm_io::{Port, poll::Waker};
use uxfrm_tunnel::{DecapPorts, Tunnels};

use super::{ReceivePort, ReceiveSource, TunnelInterface, TunnelLoopExport, TunnelRoute};
use crate::Error;

/// How long the loop may take to answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// One change.
#[derive(Debug)]
pub enum TunnelChange {
    /// Adds a tunnel.
    Open(TunnelInterface),
    /// Replaces the tunnel of the same name.
    Replace(TunnelRoute),
    /// Removes the tunnel of this name.
    Close(String),
    /// Adds a socket, unless its source has one.
    Listen(ReceivePort),
    /// Removes the socket of this source.
    StopListening(ReceiveSource),
}

/// Sends changes to a loop.
#[derive(Debug)]
pub struct TunnelControl {
    requests: Sender<Request>,
    waker: Waker,
}

/// A request to the loop.
#[derive(Debug)]
pub(super) enum Request {
    /// Changes that belong together.
    Apply {
        tunnels: Tunnels,
        ports: DecapPorts,
        changes: Vec<TunnelChange>,
        done: SyncSender<Result<Vec<Box<dyn Port>>, Error>>,
    },
    /// Asks for a copy of its state.
    Export(SyncSender<io::Result<TunnelLoopExport>>),
}

impl TunnelControl {
    pub(super) fn new(waker: Waker) -> (Self, Receiver<Request>) {
        let (requests, receiver) = channel();
        (Self { requests, waker }, receiver)
    }

    /// Applies `changes` in order, together with these tunnels and receive ports. The calling
    /// thread closes what is no longer used, so other tunnels' traffic goes on.
    ///
    /// # Errors
    /// When a port can't be polled, or there are more than 256; earlier changes stay.
    /// [`Error::Ended`] when the loop has ended.
    pub fn apply(
        &self,
        tunnels: Tunnels,
        ports: DecapPorts,
        changes: Vec<TunnelChange>,
    ) -> Result<(), Error> {
        let (done, answer) = sync_channel(1);
        let request = Request::Apply { tunnels, ports, changes, done };
        self.ask(request, &answer)?.map(drop)
    }

    /// Copies the loop's state for a successor process. The loop goes on.
    ///
    /// # Errors
    /// [`Error::Ended`] when the loop has ended, [`Error::Poll`] for too many descriptors.
    pub fn export(&self) -> Result<TunnelLoopExport, Error> {
        let (done, answer) = sync_channel(1);
        self.ask(Request::Export(done), &answer)?.map_err(Error::Poll)
    }

    fn ask<T>(&self, request: Request, answer: &Receiver<T>) -> Result<T, Error> {
        self.requests.send(request).map_err(|_ended| Error::Ended)?;
        self.waker.wake();
        answer.recv_timeout(REPLY_TIMEOUT).map_err(|_late| Error::Ended)
    }
}
