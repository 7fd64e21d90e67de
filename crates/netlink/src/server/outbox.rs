//! Datagrams to send, collected for the owner of the sockets.

use std::sync::Arc;

use super::client::{ClientId, Clients, Groups};
use crate::NetlinkDatagram;

/// Datagrams to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox(Vec<Delivery>);

/// One datagram for one client.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// For whom.
    pub to: ClientId,
    /// What.
    pub datagram: Arc<NetlinkDatagram>,
    /// The multicast group; `None` for an answer. If a listener's queue is full its notifications
    /// are dropped and it gets `ENOBUFS`; answers wait.
    pub group: Option<Groups>,
}

impl Outbox {
    /// Takes all out.
    pub fn drain(&mut self) -> impl Iterator<Item = Delivery> {
        self.0.drain(..)
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes back all behind the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    pub(crate) fn answer(&mut self, to: ClientId, datagram: NetlinkDatagram) {
        self.0.push(Delivery { to, datagram: Arc::new(datagram), group: None });
    }

    /// Without listeners the datagram is not encoded.
    pub(crate) fn multicast(
        &mut self,
        clients: &Clients,
        group: Groups,
        datagram: impl FnOnce() -> NetlinkDatagram,
    ) {
        if !clients.are_listening(group) {
            return;
        }
        let datagram = Arc::new(datagram());
        let delivery = |to| Delivery { to, datagram: Arc::clone(&datagram), group: Some(group) };
        self.0.extend(clients.listeners(group).map(delivery));
    }
}
