//! One process of a gateway takes another's place: its start, and the other's end.

use std::{os::fd::AsFd as _, path::Path, sync::Arc};

use anyhow::Context as _;
use uxfrm_control_client::upgrade::UpgradeAnswer;
use uxfrm_engine::{DropReason, Drops};
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_io::{
    fd_channel::FdChannel,
    poll::{Poller, Ready},
    signal::Signals,
};
use uxfrm_status::drops::DropStatus;

use super::{
    Gateway, ReadyLine,
    event_loop::{SUCCESSOR, SUPERVISOR},
    startup::{GatewayParts, open_store, xfrm},
};
use crate::reconcile::databases::empty;
use crate::{
    config::Config,
    control::{AccessTerms, Control},
    descriptor_store::DescriptorStore,
    fallback_socket,
    ports::workers,
    protocol::{ClientId, Outbox},
    reload::Reload,
    routes::PreviousGateway,
    sandbox,
    status::{StatusThread, socket::StatusSocket},
    upgrade::{self, HandoverSource, Successor, Supervisor, TakenOver, Upgrade},
};

/// Takes the place of the process at the other end of a link, which goes on as it was if that
/// fails.
pub(super) fn take_over(
    path: &Path,
    signals: &Signals,
    (supervisor, before): (Supervisor, FdChannel),
    ready: ReadyLine,
) -> anyhow::Result<()> {
    let config = Config::load(path).inspect_err(|why| Successor::decline(&before, why))?;
    sandbox::begin(&config);
    // Before files are out of reach, and before the other process stops.
    let subordinates = SubordinateUsers::read();
    let _directory = fallback_socket::hold();
    supervisor.declare_written(&sandbox::written(path, &config))?;
    let (mut successor, mut descriptors) = Successor::ask(before, &config)?;
    let built = build_successor(path, &config, &mut successor, &mut descriptors);
    let (mut gateway, mut socket, mut control) = match built {
        Ok(built) => built,
        Err(error) => {
            successor.refuse(&error);
            return Err(error);
        }
    };
    let programs = gateway.prepared.programs.clone();
    let Gateway { database, tunnels, devices, prepared, .. } = &mut gateway;
    let in_charge = || {
        prepared.take_up()?;
        supervisor.take_over()
    };
    let taken = successor.take_over(database, (tunnels, devices), in_charge)?;
    let TakenOver { client, rested, waiting, left } = taken;
    gateway.reconciler.replace_witness();
    if let Some(control) = &mut control {
        control.take_sessions_over(&mut gateway.serving())?;
    }
    if !waiting.is_empty() {
        // They wait only while workers know of acquires.
        gateway.xfrm.settle(&mut gateway.database);
        gateway.prepared.wait_with(waiting);
    }
    gateway.start(&config, PreviousGateway::Runs)?;
    let answer = upgrade::takeover_answer(rested);
    socket.take_listeners_over()?;
    gateway.note_dropped(DropReason::OutWaitFull, left);
    gateway.upgrade = Upgrade::under(Some(supervisor));
    gateway.ready = ready;
    tracing::info!(?answer, "this process has taken over");
    if let Some(control) = &mut control {
        control.publish(|outbox| tell(outbox, client, &answer));
    }
    // The kernel takes its time, while packets pass already.
    workers::put_in_place(&programs);
    let _confined = sandbox::close(path, &config);
    let status = gateway.answer_status(path, &config, &socket, subordinates)?;
    gateway.run_until_stopped(signals, status, control)
}

/// All that a successor needs, beside the process whose place it takes: nobody notices yet.
fn build_successor(
    path: &Path,
    config: &Config,
    successor: &mut Successor,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<(Gateway, StatusSocket, Option<Control>)> {
    let poller = Poller::new()?;
    let socket = StatusSocket::take(descriptors)?.context("no status socket")?;
    let mut store = open_store(config, poller.waker(), descriptors)?;
    let mut database = empty(config, Some(&store))?;
    let devices = successor.devices(descriptors, config, &mut database)?;
    let mut xfrm = xfrm(config)?;
    successor.restore(&mut xfrm, &mut database, &devices)?;
    successor.adopt(&mut store, &mut database);
    database.push_sequence_limits();
    database.publish();
    let terms = AccessTerms { user: config.control.user, mark: config.wire.mark.get() };
    let control = successor.control(descriptors, terms)?;
    let written = successor.written(&database);
    let reload = Reload::new(path, config.clone(), written, successor.plan(config)?);
    let tunnels = successor.tunnels(descriptors)?;
    let mut descriptors = std::mem::take(descriptors);
    socket.keep_in(&mut descriptors)?;
    let destinations = successor.destinations();
    let parts =
        GatewayParts { poller, database, store, devices, reload, descriptors, xfrm, destinations };
    let mut gateway = Gateway::open(config, parts, PreviousGateway::Runs)?;
    gateway.drops.push(successor.drops());
    gateway.earlier_drops = successor.drop_records();
    gateway.tunnels = tunnels;
    Ok((gateway, socket, control))
}

/// Why a text is not carried out that was being read.
const HANDED_OVER: &str =
    "another process takes over, and nothing was changed: try again when it has";

fn tell(outbox: &mut Outbox, client: ClientId, answer: &UpgradeAnswer) {
    // It has no maps, the only thing that may not be had as JSON.
    outbox.send(client, serde_json::to_vec(answer).unwrap_or_default());
}

impl Gateway {
    fn note_dropped(&mut self, reason: DropReason, packets: u64) {
        let drops = Drops::default();
        drops.add(reason, packets);
        self.drops.push(Arc::new(drops));
    }

    /// Goes on with an upgrade that is under way.
    pub(super) fn continue_upgrade(
        &mut self,
        ready: &Ready,
        control: &mut Control,
        status: &StatusThread,
    ) -> anyhow::Result<()> {
        let is_led = self.upgrade.link().is_some();
        let mut told = if ready.has(SUPERVISOR) { self.upgrade.hear_supervisor()? } else { None };
        if let Some(link) = self.upgrade.link().filter(|_| !is_led) {
            self.poller.add(link.as_fd(), SUCCESSOR)?;
        }
        if ready.has(SUCCESSOR) && self.upgrade.link().is_some() {
            let mut serving = self.serving();
            control.publish(|outbox| serving.give_reading_up(HANDED_OVER, outbox));
            let drop_records = status.rest(|| self.post());
            told = self.hand_over(control, drop_records)?.or(told);
            status.resume();
        }
        self.upgrade.look();
        if let Some((client, answer)) = told {
            control.publish(|outbox| tell(outbox, client, &answer));
        }
        Ok(())
    }

    /// The successor has asked: everything but the workers rests. When this returns the successor
    /// has not taken over.
    fn hand_over(
        &mut self,
        control: &mut Control,
        drop_records: Vec<DropStatus>,
    ) -> anyhow::Result<Option<(ClientId, UpgradeAnswer)>> {
        control.settle(&mut self.serving());
        self.run_housekeeping(Some(control));
        self.policy_saver.rest();
        if let Err(error) = self.reconciler.reserve_for_long() {
            tracing::warn!(%error, "no more sequence numbers are reserved for the time of an upgrade");
        }
        // Devices hear of it now, as nobody tells them more meanwhile.
        self.database.push_sequence_limits();
        // Devices' own pass with them.
        let (drops, fastest) = (self.counts_but_devices(), self.reconciler.fastest());
        let destinations = self.requested.all();
        let Self {
            upgrade,
            database,
            xfrm,
            descriptors,
            reload,
            workers,
            events,
            device_events,
            ..
        } = self;
        let resolver = &mut self.resolver;
        let (tunnels, devices) = (&mut self.tunnels, &mut self.devices);
        let told = upgrade.hand_over(HandoverSource {
            config: reload.config(),
            database,
            server: xfrm.server(),
            control,
            descriptors,
            written: reload.written(),
            tunnels,
            devices,
            plan: reload.plan(),
            drops,
            drop_records,
            fastest,
            destinations,
            workers,
            resolver,
            events,
            device_events,
        });
        self.reconciler.tables.mark_unverified();
        told
    }
}
