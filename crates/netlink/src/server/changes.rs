//! Notifications of changes that the owner of the databases made itself.

use uxfrm_engine::{ChangeSet, Mark, PolicyChange, PolicyEntry, Sa, SaId, UpdatedSa};

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
    /// Notifies listeners of changed states and policies; deletions first, as a new one may reuse a
    /// name.
    pub fn notify_changes(&self, changes: &ChangeSet, out: &mut Outbox) {
        let ChangeSet { added, removed, updated, policies, defaults: _ } = changes;
        removed.iter().for_each(|sa| self.notify_sa_deleted(sa, out));
        added.iter().for_each(|sa| self.notify_sa_added(MessageType::NewSa, sa, out));
        for UpdatedSa { after, .. } in updated {
            self.notify_sa_added(MessageType::UpdSa, after, out);
        }
        for change in policies {
            match change {
                PolicyChange::Added(entry) => self.notify_policy_added(entry, out),
                PolicyChange::Removed(entry) => self.notify_policy_deleted(entry, out),
            }
        }
    }

    /// Tells a client of lost states, each as a hard expiry.
    pub fn notify_lost(&self, to: ClientId, lost: &[(SaId, Mark)], out: &mut Outbox) {
        for (id, mark) in lost {
            out.answer(to, notify::larval_expired(&Larval::named(*id, *mark), self.calendar));
        }
    }

    fn notify_sa_added(&self, kind: MessageType, sa: &Sa, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::SA, || {
            let mut datagram = notify::begin(kind, 0);
            datagram.put(&state::info(sa, self.calendar));
            state::attributes(&mut datagram, sa, self.calendar);
            datagram
        });
    }

    fn notify_sa_deleted(&self, sa: &Sa, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::SA, || {
            let mut datagram = notify::begin(MessageType::DelSa, 0);
            datagram.put(&state::id(sa));
            datagram.attribute(AttributeType::Sa, &state::info(sa, self.calendar));
            state::attributes(&mut datagram, sa, self.calendar);
            datagram
        });
    }

    fn notify_policy_added(&self, entry: &PolicyEntry, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::POLICY, || {
            let mut datagram = notify::begin(MessageType::NewPolicy, 0);
            datagram.put(&policy::info(entry, self.calendar));
            policy::attributes(&mut datagram, entry);
            datagram
        });
    }

    fn notify_policy_deleted(&self, entry: &PolicyEntry, out: &mut Outbox) {
        out.multicast(&self.clients, Groups::POLICY, || {
            let mut datagram = notify::begin(MessageType::DelPolicy, 0);
            datagram.put(&policy::id(entry, ByName::Index));
            datagram.attribute(AttributeType::Policy, &policy::info(entry, self.calendar));
            policy::attributes(&mut datagram, entry);
            datagram
        });
    }
}
