//! The protocol until there is one: every request is refused, so that nobody takes silence for success.

use std::collections::BTreeMap;

use nix::libc;

use super::{ClientId, Identity, Outbox, Protocol, refusal};

/// Answers `EOPNOTSUPP`.
#[derive(Debug, Default)]
pub(crate) struct Unserved {
    ports: BTreeMap<ClientId, u32>,
}

impl Protocol for Unserved {
    fn join(&mut self, client: ClientId, identity: Identity) {
        self.ports.insert(client, identity.port);
    }

    fn leave(&mut self, client: ClientId) {
        self.ports.remove(&client);
    }

    fn handle(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox) {
        let port = self.ports.get(&client).copied().unwrap_or(0);
        refusal::refuse(datagram, libc::EOPNOTSUPP, port)
            .for_each(|answer| outbox.send(client, answer));
    }

    fn carry_on(&mut self, _client: ClientId, _outbox: &mut Outbox) {}
}
