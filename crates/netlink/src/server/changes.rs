//! What the owner of the databases changed by itself, as listeners are told of a client's requests.

use uxfrm_engine::{Changes, Mark, PolicyChange, PolicyEntry, Sa, SaId, UpdatedSa};

use super::{
    Server,
    client::{ClientId, Groups},
    larval::Larval,
    notify,
    outbox::Outbox,
};
use crate::{
    AttributeType, MessageType,
    encode::{
        policy::{self, ByName},
        state,
    },
};

impl Server {
    /// Tells listeners of states and policies that came, changed and went: states that went first, as one that came may have the name of such a one.
    pub fn tell_changes(&self, changes: &Changes, out: &mut Outbox) {
        let Changes { added, removed, updated, policies, defaults: _ } = changes;
        removed.iter().for_each(|sa| self.tell_of_gone_state(sa, out));
        added.iter().for_each(|sa| self.tell_of_state(MessageType::NewSa, sa, out));
        for UpdatedSa { after, .. } in updated {
            self.tell_of_state(MessageType::UpdSa, after, out);
        }
        for change in policies {
            match change {
                PolicyChange::Added(entry) => self.tell_of_policy(entry, out),
                PolicyChange::Removed(entry) => self.tell_of_gone_policy(entry, out),
            }
        }
    }

    /// Tells a client that states are there no more which it may think are: each has expired, hard.
    pub fn tell_lost(&self, to: ClientId, lost: &[(SaId, Mark)], out: &mut Outbox) {
        for (id, mark) in lost {
            out.answer(to, notify::larval_expired(&Larval::named(*id, *mark), self.calendar));
        }
    }

    fn tell_of_state(&self, kind: MessageType, sa: &Sa, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::SA, || {
            let mut datagram = notify::begin(kind, 0);
            datagram.put(&state::info(sa, self.calendar));
            state::attributes(&mut datagram, sa, self.calendar);
            datagram
        });
    }

    fn tell_of_gone_state(&self, sa: &Sa, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::SA, || {
            let mut datagram = notify::begin(MessageType::DelSa, 0);
            datagram.put(&state::id(sa));
            datagram.attribute(AttributeType::Sa, &state::info(sa, self.calendar));
            state::attributes(&mut datagram, sa, self.calendar);
            datagram
        });
    }

    fn tell_of_policy(&self, entry: &PolicyEntry, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::POLICY, || {
            let mut datagram = notify::begin(MessageType::NewPolicy, 0);
            datagram.put(&policy::info(entry, self.calendar));
            policy::attributes(&mut datagram, entry);
            datagram
        });
    }

    fn tell_of_gone_policy(&self, entry: &PolicyEntry, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::POLICY, || {
            let mut datagram = notify::begin(MessageType::DelPolicy, 0);
            datagram.put(&policy::id(entry, ByName::Index));
            datagram.attribute(AttributeType::Policy, &policy::info(entry, self.calendar));
            policy::attributes(&mut datagram, entry);
            datagram
        });
    }
}
