//! What a gateway waits for, and what it does about it.

use std::{os::fd::AsFd as _, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use sd_notify::NotifyState;
use uxfrm_control_client::reload::ReloadRequest;
use uxfrm_engine::{DropCounts, DropReason};
use uxfrm_host_facts::subordinate_users::SubordinateUsers;
use uxfrm_io::{
    heap,
    nftables::TableWatch,
    secret_memory,
    signal::{SignalRequest, Signals},
    uevents::Uevents,
};
use uxfrm_runtime::WorkerThread;

use super::{Gateway, READY_TARGET, ReadyLine, requests::RequestHandler};
use crate::{
    clock::now,
    config::Config,
    control::Control,
    gateway::housekeeping::{AcquireProgress, Housekeeping},
    protocol::Outbox,
    status::{self, Makings, StatusThread, board::Post, socket::StatusSocket},
};

/// What the gateway waits for.
const SIGNALS: u8 = 0;
const CONTROL: u8 = 1;
const NETWORK: u8 = 2;
const PATHS: u8 = 3;
pub(super) const SUPERVISOR: u8 = 4;
pub(super) const SUCCESSOR: u8 = 5;
const SNAPSHOT: u8 = 6;
const FILTER: u8 = 7;

/// The longest that nobody looks after time limits and events.
const TICK: Duration = Duration::from_millis(200);

/// Gives free memory back to the system.
fn release_free() {
    if let Err(error) = secret_memory::unlocked(heap::release_free) {
        tracing::warn!(%error, "keys may be written to swap: memory can't be locked again");
    }
}

impl Gateway {
    /// Starts the thread that answers at the status socket.
    pub(super) fn answer_status(
        &self,
        path: &Path,
        config: &Config,
        socket: &StatusSocket,
        subordinates: SubordinateUsers,
    ) -> anyhow::Result<StatusThread> {
        let makings = Makings {
            published: self.database.published(),
            identity: status::identity(path, config),
            settings: self.settings.clone(),
            started: now(),
            feeds: self.feeds.clone(),
            earlier: self.earlier_drops.clone(),
            group: config.status.group.map(|group| group.number()),
            subordinates,
            control: self.poller.waker(),
            listeners: socket.listeners()?,
        };
        StatusThread::start(makings).context("no thread to answer `uxfrm status`")
    }

    /// Says that it is ready, and looks after everything until told to end.
    pub(super) fn run_until_stopped(
        mut self,
        signals: &Signals,
        mut status: StatusThread,
        mut control: Option<Control>,
    ) -> anyhow::Result<()> {
        self.announce_ready();
        let ended = self.serve(signals, &mut status, control.as_mut());
        self.notify(&[NotifyState::Stopping]);
        status.stop();
        match ended {
            Ok(()) => self.stop(),
            Err(error) => Err(self.abort(error)),
        }
    }

    /// Tells the service manager, if there is one.
    pub(super) fn notify(&self, states: &[NotifyState<'_>]) {
        match self.upgrade.supervisor() {
            Some(supervisor) => supervisor.notify(states),
            None => drop(sd_notify::notify(states)),
        }
    }

    pub(super) fn announce_ready(&self) {
        self.notify(&[NotifyState::Ready]);
        match self.ready {
            ReadyLine::Event => tracing::info!(target: READY_TARGET, "uxfrm: ready"),
            ReadyLine::Text => {
                use std::io::Write as _;
                // Whoever started us and closed our standard error does not want to know.
                let _closed = writeln!(std::io::stderr(), "uxfrm: ready");
            }
        }
    }

    /// Looks after signals, counters, events and time limits until told to stop or a worker ends.
    pub(super) fn serve(
        &mut self,
        signals: &Signals,
        status: &mut StatusThread,
        mut control: Option<&mut Control>,
    ) -> anyhow::Result<()> {
        self.poller.add(signals.as_fd(), SIGNALS)?;
        if let Some(supervisor) = self.upgrade.supervisor() {
            self.poller.add(supervisor.as_fd(), SUPERVISOR)?;
        }
        self.poller.add(self.network.as_fd(), NETWORK)?;
        self.icmp_errors.descriptors().try_for_each(|errors| self.poller.add(errors, PATHS))?;
        if let Some(control) = &control {
            self.poller.add(control.as_fd(), CONTROL)?;
        }
        if let Some(uevents) = &self.uevents {
            self.poller.add(uevents.as_fd(), SNAPSHOT)?;
        }
        if let Some(filter) = &self.filter {
            self.poller.add(filter.as_fd(), FILTER)?;
        }
        loop {
            let patience = self.patience();
            let ready = self.poller.wait(Some(patience))?;
            status.post_if_asked(|| self.post());
            if ready.has(NETWORK) {
                self.reconciler.tables.refresh_host(&self.network, &mut self.database);
            }
            if ready.has(FILTER) && self.filter.as_mut().is_some_and(TableWatch::take_gone) {
                self.reconciler.tables.restore_firewall(&self.database.snapshot().spd);
            }
            // First: what is asked for next may have states send.
            if ready.has(SNAPSHOT)
                && self.uevents.as_ref().is_some_and(Uevents::take_new_generation)
            {
                self.reconciler.resume_from_vm_snapshot(&mut self.database);
            }
            if ready.has(PATHS) {
                self.reconciler.read_icmp_errors(&self.icmp_errors, &self.database);
            }
            if let Some(control) = control.as_mut().filter(|_| ready.has(CONTROL)) {
                let mut serving = self.serving();
                control.serve(&mut serving).context("the control socket is broken")?;
            }
            if let Some(control) = control.as_deref_mut().filter(|_| self.reload.is_reading()) {
                let mut serving = self.serving();
                control.publish(|outbox| serving.read_on(outbox));
            }
            while ready.has(SIGNALS)
                && let Some(request) = signals.next()?
            {
                match request {
                    SignalRequest::Stop => return Ok(()),
                    SignalRequest::Reload => self.reload(control.as_deref_mut()),
                }
            }
            if let Some(control) = control.as_deref_mut() {
                self.continue_upgrade(&ready, control, status)?;
            }
            self.run_housekeeping(control.as_deref_mut());
            self.tunnels.maintain();
            status.maintain();
            let lane_ends = self.workers.iter().chain(&self.resolver).any(WorkerThread::has_ended);
            let ends = lane_ends || self.tunnels.has_ended() || self.devices.has_ended();
            anyhow::ensure!(!ends, "a worker ended by itself");
        }
    }

    /// SIGHUP, as from `systemctl reload`.
    pub(super) fn reload(&mut self, control: Option<&mut Control>) {
        if let Ok(since) = NotifyState::monotonic_usec_now() {
            self.notify(&[NotifyState::Reloading, since]);
        }
        let mut serving = self.serving();
        let mut reload = |outbox: &mut Outbox| serving.reload(&ReloadRequest::Apply, outbox);
        let outcome = match control {
            Some(control) => control.publish(reload),
            None => reload(&mut Outbox::default()),
        };
        outcome.log();
        self.notify(&[NotifyState::Ready]);
    }

    /// What requests work on.
    pub(super) fn serving(&mut self) -> RequestHandler<'_> {
        let until = now().plus(self.patience());
        let Self { xfrm, database, reconciler, tunnels, devices, device_events, poller, .. } = self;
        let (reload, at_exit) = (&mut self.reload, &mut self.at_exit);
        let upgrade = &mut self.upgrade;
        RequestHandler {
            xfrm,
            database,
            reconciler,
            tunnels,
            devices,
            device_events,
            reload,
            at_exit,
            upgrade,
            poller,
            until,
        }
    }

    /// Lets events and time limits take effect, and tells who listens.
    pub(super) fn run_housekeeping(&mut self, mut control: Option<&mut Control>) {
        let Self {
            database,
            reconciler,
            xfrm,
            keepalives,
            policy_rebuild,
            devices,
            device_events,
            ..
        } = self;
        let events = self.events.try_iter().chain(device_events.drain(..)).collect();
        let expired = &mut self.expired;
        let mut housekeeping =
            Housekeeping { database, reconciler, xfrm, keepalives, policy_rebuild, devices };
        let news = housekeeping.run_housekeeping(events);
        news.expired_states().for_each(|id| expired.note(id, now()));
        let unread = control.as_deref_mut().is_some_and(Control::take_freed);
        if housekeeping.database.take_freed() || unread {
            release_free();
        }
        if let Some(control) = control {
            control.publish(|outbox| housekeeping.tell(&news, outbox));
        }
        if housekeeping.settle() == AcquireProgress::Answered {
            self.workers.iter().for_each(WorkerThread::wake_if_waiting);
        }
        self.policy_saver.maintain(&self.database, self.reload.written());
    }

    /// What the status thread can't know by itself.
    pub(super) fn post(&mut self) -> Post {
        let mut others = DropCounts::default();
        self.devices.add_to(&mut others);
        let guard = self.reconciler.tables.guard_counts();
        if let Some(counts) = &guard {
            DropReason::ALL.iter().for_each(|reason| others.add(*reason, counts.of(*reason)));
        }
        Post {
            drops: self.drops.iter().chain(self.devices.drops()).cloned().collect(),
            others,
            guard,
            caches: self.caches.clone(),
            figures: self.figures.clone(),
            tunnels: self.tunnels.counts(),
            mtu: self.reload.config().host.mtu,
            notices: self.reconciler.notices(&self.database),
            nics: self.devices.nics(),
            devices: self.devices.interface_names(),
            expired: self.expired.all(),
            esp_errors: self.reconciler.esp_errors.recent(now()),
        }
    }

    /// All drops but those of devices themselves: the workers', and the kernel's on behalf of the
    /// guard.
    pub(super) fn counts_but_devices(&mut self) -> DropCounts {
        let mut counts =
            DropCounts::sum(self.drops.iter().chain(self.devices.drops()).map(Arc::as_ref));
        self.reconciler.tables.add_to(&mut counts);
        counts
    }

    pub(super) fn patience(&self) -> Duration {
        if self.reload.is_reading() {
            return Duration::ZERO;
        }
        let of_limits = self.database.poll_timeout().map(|timeout| timeout.at);
        let next = of_limits.into_iter().chain(self.xfrm.poll_timeout()).min();
        next.map_or(TICK, |next| next.since(now()).min(TICK))
    }
}
