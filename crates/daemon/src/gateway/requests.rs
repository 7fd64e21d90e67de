//! Dispatches requests of the control socket: states and policies to the netlink server, the others
//! to tunnels, devices, reload and upgrade.

use std::sync::Arc;

use uxfrm_control::greeting::Dialect;
use uxfrm_control_client::reload::{ReloadAnswer, ReloadRequest};
use uxfrm_engine::{Database, Event, Moment};
use uxfrm_io::poll::Poller;

use crate::{
    clock::now,
    config::AtExit,
    control::XfrmServer,
    devices::Devices,
    protocol::{ClientId, DumpProgress, Identity, Outbox, Protocol},
    reconcile::Reconciler,
    reload::{self, Outcome, Reload, intake::IntakeStep, sync::SyncTargets},
    tunnels::TunnelService,
    upgrade::{Obstacle, Upgrade},
};

/// The parts of a gateway that requests work on.
#[derive(Debug)]
pub(crate) struct RequestHandler<'a> {
    pub(crate) xfrm: &'a mut XfrmServer,
    pub(crate) database: &'a mut Database,
    pub(crate) reconciler: &'a mut Reconciler,
    pub(crate) tunnels: &'a mut TunnelService,
    pub(crate) devices: &'a mut Devices,
    /// What key managers are to hear of what was done to devices.
    pub(crate) device_events: &'a mut Vec<Event>,
    pub(crate) reload: &'a mut Reload,
    pub(crate) at_exit: &'a mut AtExit,
    pub(crate) upgrade: &'a mut Upgrade,
    /// What else the gateway waits for, and how long at the most.
    pub(crate) poller: &'a Poller,
    pub(crate) until: Moment,
}

impl Protocol for RequestHandler<'_> {
    fn join(&mut self, client: ClientId, identity: Identity) {
        self.xfrm.join(client, identity);
    }

    fn leave(&mut self, client: ClientId) {
        self.xfrm.leave(client);
        self.devices.forget(client);
        self.reload.forget(client);
    }

    fn handle(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox) {
        let identity = self.xfrm.identity(client);
        let dialect = identity.map_or(Dialect::Xfrm, |identity| identity.dialect);
        match (dialect, identity) {
            (Dialect::Xfrm, _) | (_, None) => {
                let Self { xfrm, database, reconciler, .. } = self;
                xfrm.handle(client, datagram, database, reconciler, outbox);
            }
            (Dialect::Devices, Some(_)) => {
                let Self { devices, database, device_events, .. } = self;
                devices.answer(client, datagram, database, device_events, outbox);
            }
            (Dialect::AcquireExpires, Some(_)) => self.xfrm.take_acquire_expires(datagram),
            (Dialect::Reload, Some(_)) => self.answer_reload(client, datagram, outbox),
            (Dialect::Upgrade, Some(_)) => {
                let obstacles = self.obstacles();
                if let Some(answer) = self.upgrade.ask(client, datagram, obstacles) {
                    // It has no maps, the only thing that may not be had as JSON.
                    outbox.send(client, serde_json::to_vec(&answer).unwrap_or_default());
                }
            }
            (Dialect::Generic | Dialect::Route, Some(identity)) => {
                for answer in self.tunnels.answer(client.0, identity, datagram) {
                    outbox.share(client, Arc::new(answer));
                }
            }
        }
    }

    fn waits_for_disk(&self) -> bool {
        self.reconciler.waits_for_disk()
    }

    fn commit(&mut self, outbox: &mut Outbox) {
        self.xfrm.commit(self.database, self.reconciler, outbox);
    }

    fn finish_deferred(&mut self) {
        self.reconciler.tables.finish_deferred();
    }

    fn is_wanted(&self) -> bool {
        now() >= self.until || self.poller.is_ready().unwrap_or(true)
    }

    fn prepare(&mut self) {
        self.database.prepare();
    }

    fn carry_on(&mut self, client: ClientId, outbox: &mut Outbox) -> DumpProgress {
        let devices = self.devices.carry_on(client, outbox);
        match self.xfrm.carry_on(client, self.database, outbox) {
            DumpProgress::More => DumpProgress::More,
            DumpProgress::Done => devices,
        }
    }
}

impl RequestHandler<'_> {
    /// What does not pass to another process.
    fn obstacles(&self) -> Vec<Obstacle> {
        let all = [(self.database.has_stand_ins(), Obstacle::StandIn)];
        all.into_iter().filter_map(|(is_there, obstacle)| is_there.then_some(obstacle)).collect()
    }

    /// Reads files again, and tells listeners what that changed.
    pub(crate) fn reload(&mut self, request: &ReloadRequest, outbox: &mut Outbox) -> Outcome {
        // What others asked for in this round is theirs, whatever comes of this.
        self.commit(outbox);
        let Self { database, reconciler, tunnels, at_exit, .. } = self;
        let targets = reload::Targets { database, reconciler, tunnels, at_exit };
        let outcome = self.reload.answer(request, targets);
        if let Some(seconds) = outcome.acquire_expires {
            self.xfrm.set_acquire_expires(seconds);
        }
        self.xfrm.tell_changes(&outcome.changes, outbox);
        outcome
    }

    /// Reads a part of a text that a client has sent. After the last one it does what that says,
    /// and tells the client and listeners.
    pub(crate) fn read_on(&mut self, outbox: &mut Outbox) {
        let Some(text) = self.reload.read_on() else { return };
        self.commit(outbox);
        let Self { database, reconciler, .. } = self;
        let (client, outcome) = self.reload.sync(text, SyncTargets { database, reconciler });
        self.xfrm.tell_changes(&outcome.changes, outbox);
        send(client, outcome.answers(), outbox);
    }

    /// No part is read any more: whoever has sent it is told why.
    pub(crate) fn give_reading_up(&mut self, why: &str, outbox: &mut Outbox) {
        if let Some(client) = self.reload.give_reading_up() {
            send(client, [ReloadAnswer::Failed(why.to_owned())], outbox);
        }
    }

    fn answer_reload(&mut self, client: ClientId, datagram: &[u8], outbox: &mut Outbox) {
        let failed = |why: &str| vec![ReloadAnswer::Failed(why.to_owned())];
        let answers: Vec<_> = match self.reload.intake.take(client, datagram, now()) {
            Some(IntakeStep::More) => return,
            Some(IntakeStep::TooMuch) => failed("the text is longer than it was said to be"),
            Some(IntakeStep::Whole(text)) => {
                let Self { database, devices, .. } = self;
                match self.reload.begin_sync(client, text, database, devices) {
                    Ok(()) => return,
                    Err(outcome) => outcome.answers().collect(),
                }
            }
            None => match serde_json::from_slice(datagram) {
                Ok(ReloadRequest::Sync(_)) if self.reload.is_reading() => failed(BUSY),
                Ok(ReloadRequest::Sync(request)) => {
                    let begun = self.reload.intake.begin(client, request, now());
                    vec![begun.map_or_else(ReloadAnswer::Failed, |()| ReloadAnswer::Ready)]
                }
                Ok(request) => self.reload(&request, outbox).answers().collect(),
                // Without what is wrong in it: it may be a piece of a text with keys.
                Err(_) => failed("that is no request"),
            },
        };
        send(client, answers, outbox);
    }
}

/// Why a text is not taken.
const BUSY: &str = "the text of another client is being read: try again";

fn send(client: ClientId, answers: impl IntoIterator<Item = ReloadAnswer>, outbox: &mut Outbox) {
    for answer in answers {
        // It has no maps, the only thing that may not be had as JSON.
        outbox.send(client, serde_json::to_vec(&answer).unwrap_or_default());
    }
}
