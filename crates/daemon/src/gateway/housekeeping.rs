//! The control thread's periodic work beside requests: data path events and time limits take
//! effect, kernel tables follow the databases, and key managers are notified.

use std::sync::Arc;

use uxfrm_engine::{Database, Event, PolicyEntry, SaId, Snapshot};

use crate::{
    clock::now,
    control::XfrmServer,
    devices::Devices,
    ports::keepalive::Keepalives,
    protocol::Outbox,
    reconcile::{Reconciler, rebuild::PolicyRebuild},
};

/// The parts of a gateway that housekeeping works on.
pub(crate) struct Housekeeping<'a> {
    pub(crate) database: &'a mut Database,
    pub(crate) reconciler: &'a mut Reconciler,
    pub(crate) xfrm: &'a mut XfrmServer,
    pub(crate) keepalives: &'a mut Keepalives,
    pub(crate) policy_rebuild: &'a mut PolicyRebuild,
    pub(crate) devices: &'a mut Devices,
}

/// Events that listeners are still to be told.
pub(crate) struct PendingNotices {
    events: Vec<Event>,
    /// The databases before it.
    before: Arc<Snapshot>,
}

/// Whether packets that wait for states may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireProgress {
    /// They may.
    Answered,
    /// Nothing came.
    Pending,
}

impl PendingNotices {
    /// States that passed their hard limit.
    pub(crate) fn expired_states(&self) -> impl Iterator<Item = SaId> {
        self.events.iter().filter_map(|event| match event {
            Event::SaHardLimit(id) => Some(*id),
            Event::SaSoftLimit(_)
            | Event::PolicySoftLimit(_)
            | Event::PolicyHardLimit(_)
            | Event::Acquire { .. }
            | Event::Mapping { .. }
            | Event::NarrowPath(_) => None,
        })
    }
}

impl Housekeeping<'_> {
    /// Lets events and time limits take effect.
    pub(crate) fn run_housekeeping(&mut self, mut events: Vec<Event>) -> PendingNotices {
        let Self { database, reconciler, keepalives, policy_rebuild, devices, .. } = self;
        let before = database.snapshot();
        events.retain(|event| match event {
            Event::NarrowPath(to) => {
                reconciler.path_mtus.note(*to);
                false
            }
            Event::SaSoftLimit(_)
            | Event::SaHardLimit(_)
            | Event::PolicySoftLimit(..)
            | Event::PolicyHardLimit(..)
            | Event::Acquire { .. }
            | Event::Mapping { .. } => true,
        });
        events.iter().for_each(|event| database.observe(event));
        database.handle_timeout(now(), &mut events);
        devices.maintain(database, &mut events);
        policy_rebuild.maintain(database);
        keepalives.send(database.take_keepalives());
        reconciler.apply_pending(database);
        // Nobody waits for an answer: rounds of requests end with a commit of their own.
        let _undone = reconciler.commit(database);
        reconciler.review(database);
        events.iter().for_each(log);
        PendingNotices { events, before }
    }

    /// Tells who listens.
    pub(crate) fn tell(&mut self, news: &PendingNotices, outbox: &mut Outbox) {
        let Self { database, xfrm, devices, .. } = self;
        xfrm.announce(&news.events, &news.before, database, outbox);
        xfrm.tell_counters(database, outbox);
        devices.tell(outbox);
    }

    /// Tells workers what became of acquires. The last step.
    pub(crate) fn settle(&mut self) -> AcquireProgress {
        let requested = Arc::clone(&self.database.snapshot().acquires);
        self.xfrm.settle(self.database);
        let answered = !Arc::ptr_eq(&requested, &self.database.snapshot().acquires);
        let came = self.reconciler.take_new_states();
        if came || answered { AcquireProgress::Answered } else { AcquireProgress::Pending }
    }
}

/// Notes what happened. Of a peer behind a NAT that moved each packet may tell, for as long as no
/// key manager says where it is now.
fn log(event: &Event) {
    match event {
        Event::Mapping { state, from } => {
            let SaId { destination, spi, .. } = state;
            tracing::debug!(%spi, %destination, %from, "ESP comes from another address or port");
        }
        Event::NarrowPath(to) => tracing::debug!(destination = %to, "path MTU shrank"),
        Event::SaSoftLimit(id) => expiry_of_state("soft", *id),
        Event::SaHardLimit(id) => expiry_of_state("hard", *id),
        Event::PolicySoftLimit(entry) => expiry_of_policy("soft", entry),
        Event::PolicyHardLimit(entry) => expiry_of_policy("hard", entry),
        Event::Acquire { policy, wanted, flow, .. } => tracing::info!(
            policy = policy.0,
            source = %wanted.source,
            destination = %wanted.destination,
            reqid = wanted.reqid.0,
            flow = %flow,
            "a packet needs a state: acquire"
        ),
    }
}

fn expiry_of_state(limit: &str, SaId { destination, spi, .. }: SaId) {
    tracing::info!(limit, %spi, %destination, "state reached its limit");
}

fn expiry_of_policy(limit: &str, entry: &PolicyEntry) {
    let (policy, selector) = (entry.index().0, entry.selector());
    tracing::info!(limit, policy, %selector, "policy reached its limit");
}
