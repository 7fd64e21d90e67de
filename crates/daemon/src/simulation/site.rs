//! One gateway: what the daemon is made of, without threads and descriptors, on a
//! [machine](super::machine) and a [kernel](super::kernel) of its own.

mod succession;
mod sync_client;

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use uxfrm_control::greeting::Dialect;
use uxfrm_crypto::Backend;
use uxfrm_engine::{
    Cpu, Database, Direction, DropReason, Event, Moment, OffloadKind, OffloadedPacket, Output,
    PathMtus, PolicyEntry, ReceivedPacket, Sa, Settings, Spi, Worker,
};
use uxfrm_io::poll::Poller;
use uxfrm_offload::{Fault, HeldState, ModelNic, NicQueues};
use uxfrm_packet::{Batch, PacketBuf, Pool};
use uxfrm_testkit::{Rng, split_burst};

use super::{
    kernel::Kernel,
    machine::{self, FakeDisk, FakeStorage},
    names::{NETS, Name, PLACES, PolicyName, PolicySide, inner, outer},
};
use crate::{
    batch::{apply, provenance::FileOwned},
    clock::now,
    config::{AtExit, Config},
    control::XfrmServer,
    devices::{DeviceCreation, Devices},
    gateway::{housekeeping::Housekeeping, requests::RequestHandler},
    ports::keepalive::Keepalives,
    protocol::{ClientId, DumpProgress, Identity, Outbox, Protocol},
    reconcile::{
        Reconciler,
        fail_closed::{self, PolicyFiles, saved_policies::SavedPolicies},
        rebuild::PolicyRebuild,
        sequences::{SequenceStore, WitnessPlace, condition::Condition, journal_view::JournalView},
        tun_mtu,
    },
    reload::Reload,
    routes::LastingMtus,
    tunnels::{TunnelService, TunnelSpec},
    upgrade::Upgrade,
};

pub(super) use succession::Drained;

/// Seconds that larval states live.
const ACQUIRE_EXPIRES: u32 = 30;

/// A gateway's machine, whether it runs or not.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) number: usize,
    pub(super) disk: FakeDisk,
    pub(super) storage: FakeStorage,
    pub(super) kernel: Kernel,
    /// The policies file of the last run.
    policies: Option<String>,
    /// Policies and states that are there from the start.
    pub(super) batch: PathBuf,
    pub(super) workers: u32,
    /// The offload kind of states with static keys.
    pub(super) offload: Option<OffloadKind>,
    pub(super) run: Option<Run>,
    pub(super) starts: u64,
}

/// One process of a gateway.
#[derive(Debug)]
pub(super) struct Run {
    workers: Vec<Worker>,
    pub(super) nic: Option<Nic>,
    pub(super) database: Database,
    reconciler: Reconciler,
    xfrm: XfrmServer,
    devices: Devices,
    tunnels: TunnelService,
    reload: Reload,
    at_exit: AtExit,
    upgrade: Upgrade,
    policy_rebuild: PolicyRebuild,
    keepalives: Keepalives,
    device_events: Vec<Event>,
    events: Vec<Event>,
    poller: Poller,
    pool: Pool,
    out: Output,
    pub(super) condition: Condition,
    /// Packets outbound and inbound that went in and came out, to check workers' counts.
    packets_in: [u64; 2],
    packets_out: [u64; 2],
}

/// A device and its receive queues.
#[derive(Debug)]
pub(super) struct Nic {
    nic: Arc<Mutex<ModelNic>>,
    queues: NicQueues,
    /// Its interface index.
    pub(super) index: u32,
    /// Whether it may refuse what it had before.
    pub(super) refuses: bool,
}

impl Nic {
    /// Its name in batch files.
    pub(super) const NAME: &str = "nic0";

    fn new(devices: &mut Devices, starts: u64) -> Self {
        let (nic, index) = devices.simulate(Self::NAME, u16::try_from(starts % 1000).unwrap());
        let queues = nic.lock().unwrap().queues();
        Self { nic, queues, index, refuses: false }
    }

    /// Injects a fault.
    pub(super) fn inject(&mut self, fault: Fault) {
        self.refuses |= matches!(fault, Fault::FullTables(1..) | Fault::Busy(1..));
        self.nic.lock().unwrap().inject(fault);
    }

    /// Its states and their counts, a line each.
    pub(super) fn state_lines(&self) -> Vec<String> {
        let nic = self.nic.lock().unwrap();
        let state_line = |held: HeldState| {
            let HeldState { state, kind, direction, counts, .. } = held;
            // With kind crypto the engine owns the numbers.
            let own = (kind == OffloadKind::Packet).then_some((counts.sent, counts.received));
            format!("{state:?} {kind:?} {direction:?} {own:?}")
        };
        nic.held().map(state_line).collect()
    }

    /// The highest number that a state of kind packet has received.
    fn received(&self, (destination, spi): (IpAddr, Spi)) -> Option<u64> {
        let nic = self.nic.lock().unwrap();
        let mut held = nic.held().filter(|held| held.kind == OffloadKind::Packet);
        let held =
            held.find(|held| (held.state.destination, held.state.spi) == (destination, spi))?;
        Some(held.counts.received)
    }

    /// Sends packets that the engine offloaded, and those that it sealed itself.
    fn send(
        &self,
        handed: &mut Vec<OffloadedPacket>,
        through: Vec<PacketBuf>,
        pool: &mut Pool,
    ) -> Vec<PacketBuf> {
        let (mut nic, mut wire) = (self.nic.lock().unwrap(), Batch::new());
        nic.transmit(handed, now(), pool, &mut wire);
        let mut through: Batch = through.into_iter().collect();
        nic.forward(&mut through, now(), pool, &mut wire);
        wire.drain().flat_map(|sent| split_burst(&sent)).collect()
    }

    fn receive(&mut self, packet: PacketBuf, pool: &mut Pool) -> Vec<ReceivedPacket> {
        let mut batch: Batch = std::iter::once(packet).collect();
        self.nic.lock().unwrap().receive(&mut batch, now(), pool, &mut self.queues);
        self.queues.drain().collect()
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// SIGTERM.
    Orderly,
    /// A worker fails, and the daemon cleans up.
    Fault,
    /// SIGKILL.
    Killed,
    /// The machine loses power.
    PowerLoss,
}

/// State of the host after a run.
#[derive(Debug)]
pub(super) struct EndState {
    /// The highest number that each state had received, as the next run has to know it.
    pub(super) highest_received: Vec<(Name, u64)>,
    /// Whether the next run must know exactly these numbers.
    pub(super) is_exact: bool,
}

/// The outcome of a packet from the wire.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) delivered: Vec<PacketBuf>,
    pub(super) drops: Vec<(DropReason, u64)>,
}

impl Site {
    pub(super) fn new(
        number: usize,
        batch: PathBuf,
        workers: u32,
        offload: Option<OffloadKind>,
    ) -> Self {
        Self {
            number,
            disk: FakeDisk::default(),
            storage: FakeStorage::default(),
            kernel: Kernel::default(),
            policies: None,
            batch,
            workers,
            offload,
            run: None,
            starts: 0,
        }
    }

    fn own(&self) -> Vec<IpAddr> {
        let inner = (0..NETS).map(|net| inner(self.number, net));
        let outer = (0..PLACES).map(|place| outer(self.number, place));
        inner.chain(outer).map(IpAddr::from).collect()
    }

    /// Starts as [`gateway::run`] does.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        self.starts += 1;
        let seed = (self.number as u64) << 32 | self.starts;
        let poller = Poller::new()?;
        let storage = Box::new(self.storage.clone());
        let remembered = WitnessPlace { storage, waker: poller.waker() };
        let disk = Box::new(self.disk.open());
        let mut store = SequenceStore::on(disk, Some(remembered), machine::draw)?;
        let condition = store.condition();
        let mut database = Database::new(Backend::Portable, seed);
        database.track_changes_with(store.keeper());
        let mut devices = Devices::plug(&[], DeviceCreation::DryRun, 0, &mut database)?;
        let nic = self.offload.map(|_| Nic::new(&mut devices, self.starts));
        let loaded = apply::load(&mut database, std::slice::from_ref(&self.batch), now());
        loaded.map_err(|faults| anyhow::anyhow!("{faults:?}"))?;
        let config = Config::parse("simulation", "")?;
        let plan = TunnelSpec::read(&config)?;
        let reload = Reload::new(&self.batch, config, FileOwned::all(&database), plan);
        let saved = self.policies.as_deref().map(|text| SavedPolicies::parse(text).expect("whole"));
        if let Some(saved) = saved {
            fail_closed::hold(&mut database, &saved, PolicyFiles::Decide);
        }
        crate::reconcile::databases::reserve(&mut database, &mut store)?;
        let snapshot = database.snapshot();
        let workers = self.workers_of(seed, &database)?;
        let (guard, mut routes) = self.kernel.start(&snapshot.spd, &self.own());
        routes.take_route_news().into_iter().for_each(|host| database.set_host(host));
        database.publish();
        let reconciler = Reconciler::new(store, Some(guard), None, None, routes, &snapshot.spd);
        self.run = Some(Run {
            workers,
            nic,
            database,
            reconciler,
            xfrm: XfrmServer::seeded(seed, ACQUIRE_EXPIRES, 8),
            devices,
            tunnels: TunnelService::default(),
            reload,
            at_exit: AtExit::Block,
            upgrade: Upgrade::default(),
            policy_rebuild: PolicyRebuild::new(poller.waker()),
            keepalives: Keepalives::new(0),
            device_events: Vec::new(),
            events: Vec::new(),
            poller,
            pool: Pool::new(),
            out: Output::default(),
            condition,
            packets_in: [0; 2],
            packets_out: [0; 2],
        });
        Ok(())
    }

    /// Saves the policies file.
    pub(super) fn write_policies_down(&mut self) {
        let Some(run) = &self.run else { return };
        let saved = SavedPolicies::of(&run.database.snapshot().spd, run.reload.written());
        self.policies = Some(saved.to_text());
    }

    /// The TUN's MTU is that of the largest packet that fits into a tunnel; of a hub all of it.
    pub(super) fn expect_tun_fits(&self) {
        let Some(run) = &self.run else { return };
        let own = self.own().into_iter().collect();
        let paths = LastingMtus { usual: 1500, narrow: PathMtus::new() };
        let fits = tun_mtu::largest(&run.database.current().sad, &own, &paths);
        let relays = tun_mtu::relay::relays(&run.database.current().spd);
        let fits = if relays { Some(paths.usual) } else { fits };
        if fits.is_some() {
            assert_eq!(self.kernel.tun_mtu(), fits, "the TUN of site {}", self.number);
        }
    }

    fn workers_of(&self, seed: u64, database: &Database) -> anyhow::Result<Vec<Worker>> {
        let workers = (0..self.workers).map(|number| {
            let settings = Settings {
                cpu: Cpu(number),
                seed: seed ^ u64::from(number) << 16,
                ..Settings::default()
            };
            Ok(Worker::new(settings, &database.published())?)
        });
        workers.collect()
    }

    /// Ends as [`gateway::run`] does, or with the machine.
    pub(super) fn end(&mut self, end: End) -> Option<EndState> {
        if end == End::Killed || end == End::PowerLoss {
            self.storage.freeze();
        }
        if end == End::Orderly {
            self.write_policies_down();
        }
        let run = self.run.take()?;
        let snapshot = run.database.snapshot();
        let name = |sa: &Sa| (sa.id().destination, sa.id().spi.0);
        let highest_received =
            snapshot.sad.iter().map(|sa| (name(sa), sa.highest_received())).collect();
        let Run { workers, mut database, mut reconciler, .. } = run;
        drop(workers);
        let is_exact = match end {
            End::Orderly => reconciler.close_store(&mut database).is_ok(),
            // A successor has no witness before its first commit.
            End::Fault | End::Killed => reconciler.has_witness(),
            End::PowerLoss => {
                self.storage.reboot();
                self.kernel.reboot();
                false
            }
        };
        Some(EndState { highest_received, is_exact })
    }
}

impl Run {
    fn serving(&mut self) -> RequestHandler<'_> {
        let until = Moment(u64::MAX);
        let Self { xfrm, database, reconciler, tunnels, devices, device_events, .. } = self;
        let (reload, at_exit, poller) = (&mut self.reload, &mut self.at_exit, &self.poller);
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

    /// A client connects, and listens to groups.
    pub(super) fn join(&mut self, client: u32, groups: u32) {
        let port = 100 + client;
        let identity = Identity { port, groups, options: 0, dialect: Dialect::Xfrm, process: port };
        self.serving().join(ClientId(client), identity);
    }

    /// A round of requests: all are handled, committed together, and then answered.
    pub(super) fn round(
        &mut self,
        requests: &[(u32, Vec<u8>)],
        outbox: &mut Outbox,
    ) -> Vec<(u32, Vec<u8>)> {
        let mut answers = Vec::new();
        for (client, datagram) in requests {
            self.serving().handle(ClientId(*client), datagram, outbox);
        }
        self.serving().commit(outbox);
        deliver(outbox, &mut answers);
        self.serving().finish_deferred();
        for (client, _) in requests {
            while self.serving().carry_on(ClientId(*client), outbox) == DumpProgress::More {
                deliver(outbox, &mut answers);
            }
            deliver(outbox, &mut answers);
        }
        answers
    }

    /// Requests are handled, and the process ends before they are committed.
    pub(super) fn handle_only(&mut self, requests: &[(u32, Vec<u8>)], outbox: &mut Outbox) {
        for (client, datagram) in requests {
            self.serving().handle(ClientId(*client), datagram, outbox);
        }
    }

    /// Asserts that all numbers that may be used are on the disk.
    pub(super) fn check_reservations(&self, file: &[u8]) {
        let kept = JournalView::read(file);
        for sa in self.database.snapshot().sad.iter() {
            let (sent, received) = kept.of(sa);
            let (may_send, may_receive) = (sa.sequence().reserved(), sa.reserved_to_receive());
            let name = (sa.id().destination, sa.id().spi);
            assert!(may_send <= sent, "{name:?} may send up to {may_send}, the disk has {sent}");
            assert!(
                may_receive <= received || may_receive == u64::MAX,
                "{name:?} may receive up to {may_receive}, the disk has {received}"
            );
            if let Some(taken) = self.nic.as_ref().and_then(|nic| nic.received(name)) {
                // Nothing was accepted where the window began after a restart.
                assert!(
                    taken <= received.max(sa.restarted_at()),
                    "the device received {taken} for {name:?}, the disk has {received}"
                );
            }
        }
    }

    /// The kernel tells that the machine goes on from a snapshot.
    pub(super) fn resume_from_vm_snapshot(&mut self) {
        self.reconciler.resume_from_vm_snapshot(&mut self.database);
    }

    /// The control thread's work between two waits; returns events for clients.
    pub(super) fn run_housekeeping(&mut self, outbox: &mut Outbox) -> Vec<(u32, Vec<u8>)> {
        let events = self.events.drain(..).chain(self.device_events.drain(..)).collect();
        let Self { database, reconciler, xfrm, keepalives, policy_rebuild, devices, .. } = self;
        let mut housekeeping =
            Housekeeping { database, reconciler, xfrm, keepalives, policy_rebuild, devices };
        let news = housekeeping.run_housekeeping(events);
        housekeeping.tell(&news, outbox);
        let _waiting = housekeeping.settle();
        let mut answers = Vec::new();
        deliver(outbox, &mut answers);
        answers
    }

    /// Packets from the host; returns those for the wire.
    pub(super) fn outbound(&mut self, packets: Vec<PacketBuf>, worker: usize) -> Vec<PacketBuf> {
        self.packets_in[0] += packets.len() as u64;
        let worker = worker % self.workers.len();
        let mut batch: Batch = packets.into_iter().collect();
        let Self { workers, pool, out, .. } = self;
        workers[worker].outbound(&mut batch, now(), pool, out);
        let mut handed = std::mem::take(&mut self.out.offloaded);
        self.packets_out[0] += handed.len() as u64;
        let wire = self.collect().0;
        match &self.nic {
            Some(nic) => nic.send(&mut handed, wire, &mut self.pool),
            None => wire,
        }
    }

    /// Sends all packets that waited for states.
    pub(super) fn release(&mut self) -> Vec<PacketBuf> {
        (0..self.workers.len()).flat_map(|worker| self.outbound(Vec::new(), worker)).collect()
    }

    /// A packet from the wire.
    pub(super) fn inbound(&mut self, packet: PacketBuf, worker: usize) -> Arrival {
        let worker = worker % self.workers.len();
        let before = self.drops();
        let Self { workers, nic, pool, out, packets_in, .. } = self;
        if let Some(nic) = nic {
            let mut received = nic.receive(packet, pool);
            packets_in[1] += received.len() as u64;
            workers[worker].inbound_from_device(&mut received, now(), pool, out);
        } else {
            packets_in[1] += 1;
            let mut batch: Batch = std::iter::once(packet).collect();
            workers[worker].inbound(&mut batch, now(), pool, out);
        }
        let (wire, delivered) = self.collect();
        assert!(wire.is_empty(), "what came from the wire goes back there");
        let drops = self.drops().into_iter().zip(before);
        let drops = drops.map(|((reason, after), (_, before))| (reason, after - before));
        Arrival { delivered, drops: drops.filter(|(_, count)| *count > 0).collect() }
    }

    fn collect(&mut self) -> (Vec<PacketBuf>, Vec<PacketBuf>) {
        self.workers.iter_mut().for_each(Worker::settle);
        self.events.append(&mut self.out.events);
        let wire: Vec<_> = self.out.wire.drain().flat_map(|sent| split_burst(&sent)).collect();
        let host: Vec<_> = self.out.host.drain().flat_map(|came| split_burst(&came)).collect();
        self.packets_out[0] += wire.len() as u64;
        self.packets_out[1] += host.len() as u64;
        (wire, host)
    }

    fn drops(&self) -> Vec<(DropReason, u64)> {
        let of = |reason| self.workers.iter().map(|worker| worker.drops().of(reason)).sum();
        DropReason::ALL.iter().map(|reason| (*reason, of(*reason))).collect()
    }

    /// Asserts that each packet came out, was dropped under one reason, or waits.
    pub(super) fn check_accounts(&self) {
        let [mut outward, mut inward] = [[0; 5]; 2];
        for worker in &self.workers {
            for (sum, traffic) in [(&mut outward, worker.outward()), (&mut inward, worker.inward())]
            {
                let held = traffic.held + traffic.absorbed;
                let here =
                    [traffic.received, traffic.sent, traffic.dropped, held, traffic.originated];
                sum.iter_mut().zip(here).for_each(|(sum, here)| *sum += here);
            }
        }
        for [received, sent, dropped, held, _] in [outward, inward] {
            assert_eq!(received, sent + dropped + held, "packets in and out of a worker");
        }
        let named: u64 = self.drops().iter().map(|(_, count)| count).sum();
        assert_eq!(named, outward[2] + inward[2], "drops have names");
        assert_eq!(self.packets_in, [outward[0], inward[0]], "packets that went in");
        let made = outward[4] + inward[4];
        let came_out = self.packets_out.iter().sum::<u64>();
        assert_eq!(came_out, outward[1] + inward[1] + made, "packets that came out");
    }

    /// States, as workers see them.
    pub(super) fn names(&self) -> Vec<Name> {
        let snapshot = self.database.snapshot();
        snapshot.sad.iter().map(|sa| (sa.id().destination, sa.id().spi.0)).collect()
    }

    /// Policies, as workers see them.
    pub(super) fn policies(&self) -> BTreeSet<PolicyName> {
        let net = |address: IpAddr| match address {
            IpAddr::V4(v4) => {
                let [_, site, net, _] = v4.octets();
                (usize::from(site).wrapping_sub(1), net)
            }
            IpAddr::V6(_) => unreachable!("there is no IPv6 here"),
        };
        let name = |entry: &Arc<PolicyEntry>| {
            let side = match entry.direction() {
                Direction::Out => PolicySide::Out,
                Direction::In | Direction::Forward => PolicySide::In,
            };
            let selector = entry.selector();
            (side, net(selector.source.address()), net(selector.destination.address()))
        };
        self.database.snapshot().spd.iter().map(name).collect()
    }

    /// A state by its name.
    pub(super) fn state(&self, (destination, spi): Name) -> Option<Arc<Sa>> {
        let snapshot = self.database.snapshot();
        let mut states = snapshot.sad.iter();
        states.find(|sa| sa.id().destination == destination && sa.id().spi == Spi(spi)).cloned()
    }
}

fn deliver(outbox: &mut Outbox, answers: &mut Vec<(u32, Vec<u8>)>) {
    let datagrams = outbox.take_all();
    answers.extend(datagrams.into_iter().map(|(client, datagram)| (client.0, datagram.to_vec())));
}

/// A random element.
pub(super) fn pick<'a, T>(rng: &mut Rng, of: &'a [T]) -> Option<&'a T> {
    if of.is_empty() { None } else { of.get(rng.below(of.len())) }
}
