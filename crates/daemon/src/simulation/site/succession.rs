//! An upgrade: a successor is built beside the running gateway and takes its
//! place, or does not.

use anyhow::Context as _;
use uxfrm_crypto::Backend;
use uxfrm_engine::{Database, Moment, Output, ReceivedPacket, Sa};
use uxfrm_io::poll::Poller;
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_testkit::split_burst;

use super::{
    super::client::{GROUPS, IKE, SCRIPT},
    ACQUIRE_EXPIRES, EndState, Name, Nic, Run, Site, machine,
};
use crate::{
    clock::now,
    config::{AtExit, Config},
    control::XfrmServer,
    devices::{DeviceCreation, Devices},
    ports::keepalive::Keepalives,
    reconcile::{
        Reconciler,
        rebuild::PolicyRebuild,
        sequences::{SequenceStore, WitnessPlace, condition::Condition},
    },
    reload::Reload,
    tunnels::{TunnelService, TunnelSpec},
    upgrade::{
        Upgrade,
        rehearsal::{ConfirmedState, Restored},
    },
};

/// A successor, while its predecessor carries packets.
pub(in super::super) struct Building {
    confirmed: ConfirmedState,
    restored: Restored,
    store: SequenceStore,
    database: Database,
    devices: Devices,
    nic: Option<Nic>,
    xfrm: XfrmServer,
    poller: Poller,
    condition: Condition,
    seed: u64,
}

/// Packets in flight when workers paused.
#[derive(Debug)]
pub(in super::super) struct Drained {
    pub(in super::super) wire: Vec<PacketBuf>,
    pub(in super::super) delivered: Vec<PacketBuf>,
    /// Progress of all states.
    pub(in super::super) left: EndState,
}

impl Site {
    /// Builds a successor, as `gateway::succession` does.
    pub(in super::super) fn begin_upgrade(&mut self) -> anyhow::Result<Building> {
        let before = self.run.as_mut().context("it does not run")?;
        // Without more reserved numbers the gateway goes on.
        let _reserved = before.reconciler.reserve_for_long();
        let (server, written) = (before.xfrm.server(), before.reload.written());
        let confirmed =
            ConfirmedState::tell(server, &before.database, written, before.reconciler.fastest());
        self.starts += 1;
        let seed = (self.number as u64) << 32 | self.starts;
        let poller = Poller::new()?;
        let storage = Box::new(self.storage.clone());
        let remembered = WitnessPlace { storage, waker: poller.waker() };
        let disk = Box::new(self.disk.clone());
        let mut store = SequenceStore::on(disk, Some(remembered), machine::draw)?;
        let condition = store.condition();
        let mut database = Database::new(Backend::Portable, seed);
        database.track_changes_with(store.keeper());
        let mut devices = Devices::plug(&[], DeviceCreation::DryRun, 0, &mut database)?;
        let nic = self.offload.map(|_| Nic::new(&mut devices, self.starts));
        let mut xfrm = XfrmServer::seeded(seed, ACQUIRE_EXPIRES, 8);
        let restored = confirmed.restore(&mut xfrm, &mut database, &mut store)?;
        database.push_sequence_limits();
        database.publish();
        Ok(Building {
            confirmed,
            restored,
            store,
            database,
            devices,
            nic,
            xfrm,
            poller,
            condition,
            seed,
        })
    }

    /// The successor fails.
    pub(in super::super) fn call_off(&mut self) {
        if let Some(run) = &mut self.run {
            run.reconciler.tables.mark_unverified();
        }
    }

    /// The successor takes over.
    pub(in super::super) fn take_over(&mut self, building: Building) -> anyhow::Result<Drained> {
        let mut before = self.run.take().context("it does not run")?;
        let (wire, delivered) = before.drain();
        let Building { confirmed, restored, store, mut database, devices, nic, .. } = building;
        let waiting = before.workers.iter().enumerate().flat_map(|(number, worker)| {
            worker.copy_waiting().into_iter().map(move |packet| (number, packet))
        });
        let device_events: Vec<_> =
            before.events.drain(..).chain(before.device_events.drain(..)).collect();
        let finals = confirmed.finals(&mut before.database, &device_events, waiting);
        let waiting = restored.go_on_from(&finals, &mut database)?;
        let workers = self.workers_of(building.seed, &database)?;
        drop(before);
        let snapshot = database.snapshot();
        let (guard, mut routes) = self.kernel.start(&snapshot.spd, &self.own());
        routes.take_route_news().into_iter().for_each(|host| database.set_host(host));
        database.publish();
        let written = restored.written(&confirmed, &database);
        let config = Config::parse("simulation", "")?;
        let plan = TunnelSpec::read(&config)?;
        let name = |sa: &Sa| -> Name { (sa.id().destination, sa.id().spi.0) };
        let highest_received =
            snapshot.sad.iter().map(|sa| (name(sa), sa.highest_received())).collect();
        let mut run = Run {
            workers,
            nic,
            reload: Reload::new(&self.batch, config, written, plan),
            database,
            reconciler: Reconciler::new(store, Some(guard), None, None, routes, &snapshot.spd),
            xfrm: building.xfrm,
            devices,
            tunnels: TunnelService::default(),
            at_exit: AtExit::Block,
            upgrade: Upgrade::default(),
            policy_rebuild: PolicyRebuild::new(building.poller.waker()),
            keepalives: Keepalives::new(0),
            device_events: Vec::new(),
            events: Vec::new(),
            poller: building.poller,
            pool: Pool::new(),
            out: Output::default(),
            condition: building.condition,
            packets_in: [0; 2],
            packets_out: [0; 2],
        };
        run.reconciler.replace_witness();
        for (client, groups) in [(IKE, GROUPS), (SCRIPT, 0)] {
            run.join(client, groups);
        }
        run.xfrm.settle(&mut run.database);
        let mut wire = wire;
        for (number, packets) in waiting {
            run.packets_in[0] += packets.iter().map(|packet| packet.count as u64).sum::<u64>();
            let Run { workers, pool, out, .. } = &mut run;
            workers[number].adopt_waiting(packets, now(), pool, out);
            wire.extend(run.collect().0);
        }
        self.run = Some(run);
        Ok(Drained { wire, delivered, left: EndState { highest_received, is_exact: true } })
    }
}

impl Run {
    /// Flushes what a device has delayed.
    fn drain(&mut self) -> (Vec<PacketBuf>, Vec<PacketBuf>) {
        let Some(Nic { nic, queues, .. }) = &mut self.nic else { return Default::default() };
        let mut wire = Batch::new();
        nic.lock().unwrap().complete(Moment(u64::MAX), &mut wire, queues);
        let mut received: Vec<ReceivedPacket> = queues.drain().collect();
        self.packets_in[1] += received.len() as u64;
        let Self { workers, pool, out, .. } = self;
        workers[0].inbound_from_device(&mut received, now(), pool, out);
        let delivered = self.collect().1;
        (wire.drain().flat_map(|sent| split_burst(&sent)).collect(), delivered)
    }
}
