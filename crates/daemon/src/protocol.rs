//! The interface between the control socket and the request handlers: clients, requests and
//! answers.

use std::{collections::VecDeque, ops::Range, sync::Arc};

use uxfrm_control::greeting::Dialect;
use uxfrm_netlink as netlink;
use zeroize::Zeroizing;

/// An outgoing message. Its bytes are wiped after the last client that they go to, as states have
/// keys.
#[derive(Clone, Debug)]
pub(crate) enum Datagram {
    /// For one client.
    Own(Zeroizing<Vec<u8>>),
    /// The netlink server's, shared by all whom an event goes to.
    Shared(Arc<netlink::NetlinkDatagram>),
}

impl std::ops::Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(datagram) => datagram.bytes(),
        }
    }
}

/// A client, while it is connected; numbers of those that left are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) u32);

/// What a client said about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its port id, which replies to it carry.
    pub(crate) port: u32,
    /// The multicast groups that it listens to, a bit each: group N is bit N − 1.
    pub(crate) groups: u32,
    /// The netlink options that it set, a bit each: `NETLINK_EXT_ACK` is bit 11.
    pub(crate) options: u32,
    /// What it speaks.
    pub(crate) dialect: Dialect,
    /// The process that connected.
    pub(crate) process: u32,
}

/// Answers messages. Sans-IO: answers and events go to the [`Outbox`].
pub(crate) trait Protocol {
    /// A client is there, or has changed its groups or options. Before its first message.
    fn join(&mut self, client: ClientId, identity: Identity);

    /// A client that joined is gone.
    fn leave(&mut self, client: ClientId);

    /// A client sent a datagram: any bytes, at least one.
    fn handle(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox);

    /// Whether [`Protocol::commit`] will wait for the disk, which takes as long for one request as
    /// for a thousand.
    fn waits_for_disk(&self) -> bool;

    /// The requests of a round were handled: what they did is to be lasting before anybody is told.
    /// Where it can't be, it is undone, and the answers in the outbox are others.
    fn commit(&mut self, outbox: &mut Outbox);

    /// The answers are out: time for what could wait for that.
    fn finish_deferred(&mut self);

    /// Whether the caller has something else to do than to wait for requests.
    fn is_wanted(&self) -> bool;

    /// The next request is expected at once: time to make ready for it.
    fn prepare(&mut self);

    /// A client has room for the next part of a dump. A part may show nothing: then the outbox
    /// stays empty, though there is more.
    fn carry_on(&mut self, client: ClientId, outbox: &mut Outbox) -> DumpProgress;
}

/// Whether a client's dump goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DumpProgress {
    /// It does.
    More,
    /// It has ended, or there is none.
    Done,
}

/// Datagrams on their way to clients, in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    datagrams: VecDeque<(ClientId, Datagram)>,
}

impl Outbox {
    /// Sends a datagram to a client.
    pub(crate) fn send(&mut self, to: ClientId, datagram: Vec<u8>) {
        self.datagrams.push_back((to, Datagram::Own(Zeroizing::new(datagram))));
    }

    /// Sends a datagram that others are sent, too.
    pub(crate) fn share(&mut self, to: ClientId, datagram: Arc<netlink::NetlinkDatagram>) {
        self.datagrams.push_back((to, Datagram::Shared(datagram)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.datagrams.len()
    }

    /// Takes some back that were not sent yet, by their places.
    pub(crate) fn take_back(&mut self, places: Range<usize>) {
        self.datagrams.drain(places);
    }

    /// The datagrams; [`Outbox::give_back`] returns their room.
    pub(crate) fn take(&mut self) -> VecDeque<(ClientId, Datagram)> {
        std::mem::take(&mut self.datagrams)
    }

    /// As [`Outbox::take`], for who has no sockets.
    #[cfg(test)]
    pub(crate) fn take_all(&mut self) -> VecDeque<(ClientId, Datagram)> {
        self.take()
    }

    pub(crate) fn give_back(&mut self, room: VecDeque<(ClientId, Datagram)>) {
        if self.datagrams.is_empty() {
            self.datagrams = room;
        }
    }
}
