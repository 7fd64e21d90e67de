//! What the control thread does between two waits, beside answering requests: events of the data path and time limits take effect, what follows the
//! databases follows, and key managers are told.

use std::sync::Arc;

use uxfrm_engine::{Database, Event, PolicyEntry, Snapshot};

use crate::{
    clock::now,
    control::Xfrm,
    devices::Devices,
    ports::keepalive::Keepalives,
    protocol::Outbox,
    reconcile::{Following, rebuild::Planner},
};

/// What it works on.
pub(crate) struct Round<'a> {
    pub(crate) database: &'a mut Database,
    pub(crate) following: &'a mut Following,
    pub(crate) xfrm: &'a mut Xfrm,
    pub(crate) keepalives: &'a mut Keepalives,
    pub(crate) planner: &'a mut Planner,
    pub(crate) devices: &'a mut Devices,
}

/// What happened, for who listens.
pub(crate) struct News {
    events: Vec<Event>,
    /// The databases before it.
    before: Arc<Snapshot>,
}

/// Whether packets that wait for states may have got what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// They may.
    Served,
    /// Nothing came.
    On,
}

impl Round<'_> {
    /// Lets events and time limits take effect.
    pub(crate) fn keep_time(&mut self, mut events: Vec<Event>) -> News {
        let Self { database, following, keepalives, planner, devices, .. } = self;
        let before = database.snapshot();
        events.retain(|event| match event {
            Event::NarrowPath(to) => {
                following.note_narrow_path(*to);
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
        devices.look_after(database, &mut events);
        planner.look_after(database);
        keepalives.send(database.take_keepalives());
        following.keep_up(database);
        // Nobody waits for an answer: rounds of requests end with a commit of their own.
        let _undone = following.commit(database);
        following.review(database);
        events.iter().for_each(log);
        News { events, before }
    }

    /// Tells who listens.
    pub(crate) fn tell(&mut self, news: &News, outbox: &mut Outbox) {
        let Self { database, xfrm, devices, .. } = self;
        xfrm.announce(&news.events, &news.before, database, outbox);
        xfrm.tell_counters(database, outbox);
        devices.tell(outbox);
    }

    /// Tells workers what became of acquires. The last step.
    pub(crate) fn settle(&mut self) -> Waiting {
        let asked = Arc::clone(&self.database.snapshot().acquires);
        self.xfrm.settle(self.database);
        let answered = !Arc::ptr_eq(&asked, &self.database.snapshot().acquires);
        let came = self.following.take_news();
        if came || answered { Waiting::Served } else { Waiting::On }
    }
}

/// Notes what happened. Of a peer behind a NAT that moved each packet may tell, for as long as no key manager says where it is now.
fn log(event: &Event) {
    match event {
        Event::Mapping { .. } => tracing::debug!(?event, "mapping"),
        Event::NarrowPath(_) => tracing::debug!(?event, "narrow path"),
        Event::SaSoftLimit(_) | Event::SaHardLimit(_) => tracing::info!(?event, "expiry"),
        Event::PolicySoftLimit(entry) => expiry("soft", entry),
        Event::PolicyHardLimit(entry) => expiry("hard", entry),
        Event::Acquire { .. } => tracing::info!(?event, "acquire"),
    }
}

fn expiry(limit: &str, entry: &PolicyEntry) {
    let (index, direction) = (entry.index(), entry.direction());
    tracing::info!(limit, ?index, ?direction, "expiry of a policy");
}
