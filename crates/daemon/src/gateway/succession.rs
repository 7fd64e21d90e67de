//! One process of a gateway takes another's place: what is particular about its start, and about the other's end.

use std::{os::fd::AsFd as _, path::Path};

use anyhow::Context as _;
use uxfrm_io::{
    link::Link,
    poll::{Poller, Ready},
    signal::Signals,
};

use super::{Gateway, Opening, Parts, SUCCESSOR, SUPERVISOR, empty, open_store, xfrm};
use crate::{
    config::Config,
    control::{ClientId, Control, Outbox, Terms},
    descriptor_store::DescriptorStore,
    devices::Making,
    host::Before,
    lanes,
    reload::Reload,
    sandbox,
    stat::{self, StatSocket},
    tunnels::Plan,
    upgrade::{self, Handing, Successor, Supervisor, Upgrade},
};

/// Takes the place of the process at the other end of a link, which goes on as it was if that fails.
pub(super) fn take_over(
    path: &Path,
    signals: &Signals,
    supervisor: Supervisor,
    before: Link,
) -> anyhow::Result<()> {
    let config = Config::load(path).inspect_err(|why| Successor::decline(&before, why))?;
    sandbox::begin(&config);
    supervisor.declare_written(&sandbox::written(path, &config))?;
    let (mut successor, mut descriptors) = Successor::ask(before, &config)?;
    let built = build_successor(path, &config, &mut successor, &mut descriptors);
    let (opening, stat, mut control) = match built {
        Ok(built) => built,
        Err(error) => {
            successor.refuse(&error);
            return Err(error);
        }
    };
    let Opening { mut gateway, mut lanes } = opening;
    let programs = lanes.programs.clone();
    let in_charge = || {
        lanes.take_up()?;
        supervisor.take_over()
    };
    let (client, rested) = successor.take_over(&mut gateway.database, in_charge)?;
    gateway.following.replace_witness();
    let mut gateway = Opening { gateway, lanes }.start(&config)?;
    let answer = upgrade::Answer::done(rested);
    stat.listen_as_ours()?;
    gateway.upgrade = Upgrade::under(Some(supervisor));
    tracing::info!(?answer, "this process has taken over");
    if let Some(control) = &mut control {
        control.take_seats(&mut gateway.serving())?;
        control.publish(|outbox| tell(outbox, client, &answer));
    }
    // The kernel takes its time, while packets pass already.
    lanes::put_in_place(&programs);
    let _confined = sandbox::close(path, &config);
    gateway.go_on(signals, &stat, control)
}

/// All that a successor needs, beside the process whose place it takes: nobody notices yet.
fn build_successor(
    path: &Path,
    config: &Config,
    successor: &mut Successor,
    descriptors: &mut DescriptorStore,
) -> anyhow::Result<(Opening, StatSocket, Option<Control>)> {
    let poller = Poller::new()?;
    let stat = descriptors.take(stat::DESCRIPTOR).context("no socket of the counters")?;
    let stat = StatSocket::of_socket(stat)?;
    let mut store = open_store(config, poller.waker(), descriptors)?;
    let (mut database, devices) = empty(config, Making::Real, Some(&store))?;
    let mut xfrm = xfrm(config)?;
    successor.restore(&mut xfrm, &mut database)?;
    successor.adopt(&mut store, &mut database);
    database.share_numbers();
    database.publish();
    let terms = Terms { user: config.control.user, mark: config.wire.mark.get() };
    let control = successor.control(descriptors, terms)?;
    let written = successor.written(&database);
    let reload = Reload::new(path, config.clone(), written, Plan::read(config)?);
    let mut descriptors = std::mem::take(descriptors);
    descriptors.keep(stat::DESCRIPTOR, stat.as_fd())?;
    let destinations = successor.destinations();
    let parts = Parts { poller, database, store, devices, reload, descriptors, xfrm, destinations };
    let mut opening = Gateway::open(config, parts, Before::Runs)?;
    opening.gateway.drops.push(successor.drops());
    Ok((opening, stat, control))
}

fn tell(outbox: &mut Outbox, client: ClientId, answer: &upgrade::Answer) {
    // It has no maps, the only thing that may not be had as JSON.
    outbox.send(client, serde_json::to_vec(answer).unwrap_or_default());
}

impl Gateway {
    /// Goes on with an upgrade that is under way.
    pub(super) fn upgrade_by(
        &mut self,
        ready: &Ready,
        control: &mut Control,
    ) -> anyhow::Result<()> {
        let is_led = self.upgrade.link().is_some();
        let mut told = if ready.has(SUPERVISOR) { self.upgrade.hear_supervisor()? } else { None };
        if let Some(link) = self.upgrade.link().filter(|_| !is_led) {
            self.poller.add(link.as_fd(), SUCCESSOR)?;
        }
        if ready.has(SUCCESSOR) && self.upgrade.link().is_some() {
            told = self.hand_over(control)?.or(told);
        }
        self.upgrade.look();
        if let Some((client, answer)) = told {
            control.publish(|outbox| tell(outbox, client, &answer));
        }
        Ok(())
    }

    /// The successor has asked: everything but the lanes rests. When this returns the successor has not taken over.
    fn hand_over(
        &mut self,
        control: &mut Control,
    ) -> anyhow::Result<Option<(ClientId, upgrade::Answer)>> {
        control.settle(&mut self.serving());
        self.keep_time(Some(control));
        self.keeping.rest();
        if let Err(error) = self.following.reserve_for_long() {
            tracing::warn!(%error, "no more sequence numbers are reserved for the time of an upgrade");
        }
        let (drops, fastest) = (self.counts(), self.following.fastest());
        let destinations = self.asked.all();
        let Self { upgrade, database, xfrm, descriptors, reload, lanes, events, happened, .. } =
            self;
        let guidance = &mut self.guidance;
        let told = upgrade.hand_over(Handing {
            config: reload.config(),
            database,
            server: xfrm.server(),
            control,
            descriptors,
            written: reload.written(),
            drops,
            fastest,
            destinations,
            lanes,
            guidance,
            events,
            happened,
        });
        self.following.doubt();
        told
    }
}
