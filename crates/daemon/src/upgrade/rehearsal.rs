//! Both halves of an upgrade without processes, descriptors and links, for the simulation: what
//! passes is what passes, as bytes.

use std::sync::Arc;

use uxfrm_engine::{Database, DefaultActions, Event, Sa, WaitingPacket};
use uxfrm_netlink::{NetlinkDatagram, Server};

use super::{
    predecessor::{carry, finals, places, policies},
    queued_packets::QueuedPackets,
    sa_progress::SaProgress,
    successor::{self, adopt, go_on_from, restore},
};
use crate::{
    batch::provenance::FileOwned, control::XfrmServer, reconcile::sequences::SequenceStore,
};

/// What the predecessor has told, and knows that it has.
pub(crate) struct ConfirmedState {
    states: Vec<(Arc<Sa>, NetlinkDatagram)>,
    carried: Vec<SaProgress>,
    /// Messages as they pass, and the JSON beside them.
    messages: Vec<Vec<u8>>,
    json: Vec<u8>,
    fastest: u64,
    /// Places of what files made, and what they made the default.
    of_files: (Vec<usize>, Vec<usize>, DefaultActions),
}

/// What the successor has made of it.
pub(crate) struct Restored {
    states: Vec<Arc<Sa>>,
}

/// What passes when the predecessor rests.
pub(crate) struct Finals {
    states: Vec<u8>,
    waiting: Vec<u8>,
    bytes: Vec<u8>,
}

impl ConfirmedState {
    /// 2, as the predecessor says it.
    pub(crate) fn tell(
        server: &Server,
        database: &Database,
        written: &FileOwned,
        fastest: u64,
    ) -> Self {
        let states = server.export_states(database);
        let carried = carry(&states);
        let others = server.export_others(database);
        let messages = states.iter().map(|(_, datagram)| datagram).chain(&others);
        let messages = messages.map(|datagram| datagram.bytes().to_vec()).collect();
        let json = serde_json::to_vec(&carried).unwrap();
        let of_files = (
            places(states.iter().map(|(sa, _)| written.has_state(sa))),
            places(policies(database).map(|entry| written.has_policy(entry))),
            written.defaults(),
        );
        Self { states, carried, messages, json, fastest, of_files }
    }

    /// 3, as the successor hears it.
    pub(crate) fn restore(
        &self,
        xfrm: &mut XfrmServer,
        database: &mut Database,
        store: &mut SequenceStore,
    ) -> anyhow::Result<Restored> {
        let carried: Vec<SaProgress> = serde_json::from_slice(&self.json)?;
        let (mut states, mut left) = (Vec::new(), carried.iter());
        for message in &self.messages {
            states.extend(restore(message, &mut left, xfrm, database)?);
        }
        anyhow::ensure!(left.next().is_none(), "a state less than was told");
        adopt(&states, &carried, self.fastest, store, database);
        Ok(Restored { states })
    }

    /// 4, as the predecessor says it, whose workers rest.
    pub(crate) fn finals(
        &self,
        database: &mut Database,
        device_events: &[Event],
        waiting: impl Iterator<Item = (usize, WaitingPacket)>,
    ) -> Finals {
        database.update_all_counts();
        let states = finals(&self.states, &self.carried, device_events);
        let (waiting, bytes) = QueuedPackets::of_each(waiting);
        let [states, waiting] = [serde_json::to_vec(&states), serde_json::to_vec(&waiting)];
        Finals { states: states.unwrap(), waiting: waiting.unwrap(), bytes }
    }
}

impl Restored {
    /// What of it files made.
    pub(crate) fn written(&self, told: &ConfirmedState, database: &Database) -> FileOwned {
        let (states, policies, defaults) = &told.of_files;
        successor::written(&self.states, (states, policies, *defaults), database)
    }

    /// 5: all goes on from there; which packets wait, with which worker.
    pub(crate) fn go_on_from(
        &self,
        finals: &Finals,
        database: &mut Database,
    ) -> anyhow::Result<Vec<(usize, Vec<WaitingPacket>)>> {
        go_on_from(&self.states, serde_json::from_slice(&finals.states)?, database)?;
        database.push_sequence_limits();
        let waiting: QueuedPackets = serde_json::from_slice(&finals.waiting)?;
        Ok(waiting.with(&finals.bytes))
    }
}
