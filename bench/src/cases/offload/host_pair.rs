//! Two hosts with their workers, and the device thread between them.
//!
//! Each runs on its own thread, but only one of them at a time: there may be fewer processors than
//! threads, and nothing else may run while a host is measured. Workers of one host run at once, as
//! in a gateway. Each thread is pinned to a processor, the device thread to its own if there is
//! one.

use anyhow::{Context, ensure};
use uxfrm_io::affinity;

use super::association::HostSide;
use super::device_thread::DeviceThread;
use super::host::{HostWorker, WorkerPort};
use super::host_config::HostConfig;
use super::plan::{PacketSize, ProtectionPath};
use super::rings::DeviceRings;
use super::{REPLY, REQUEST, UNCOUNTED_TURNS};
use crate::barrier::SpinBarrier;
use crate::report::Samples;

/// Two hosts with their SAs, policies and devices.
#[derive(Debug)]
pub(super) struct HostPair {
    left: HostConfig,
    right: HostConfig,
    pairs: Vec<WorkerPair>,
}

/// The memory that all host pairs use in turn: all that packets touch but the workers' own. So
/// paths differ only in what they do.
#[derive(Debug)]
pub(super) struct SharedMemory {
    network: DeviceThread,
    /// One for each pair of workers.
    all_rings: Vec<DeviceRings>,
    ports: Vec<PortPair>,
    /// The workers' processors, then the device thread's; reused if there are too few.
    cpus: Vec<usize>,
}

/// The ports of a pair's two workers.
#[derive(Debug)]
struct PortPair {
    left: WorkerPort,
    right: WorkerPort,
}

/// A worker and its port.
type WorkerWithPort<'a> = (&'a mut HostWorker, &'a mut WorkerPort);

/// One worker of each host.
#[derive(Debug)]
struct WorkerPair {
    left: HostWorker,
    right: HostWorker,
}

/// Cycles of one round, per packet or per message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycles {
    pub(super) sending: f64,
    pub(super) receiving: f64,
    pub(super) device: f64,
}

/// One turn of a pair: cycles, and packets on the wire.
#[derive(Clone, Copy, Debug, Default)]
struct TurnCycles {
    sending: u64,
    receiving: u64,
    packets: usize,
}

impl HostPair {
    pub(super) fn new(path: ProtectionPath, workers: usize) -> anyhow::Result<Self> {
        let (left, right) =
            (HostConfig::new(HostSide::Left, path)?, HostConfig::new(HostSide::Right, path)?);
        let pairs = (0..workers).map(|number| -> anyhow::Result<WorkerPair> {
            Ok(WorkerPair {
                left: HostWorker::new(&left, HostSide::Left, number)?,
                right: HostWorker::new(&right, HostSide::Right, number)?,
            })
        });
        let pairs = pairs.collect::<anyhow::Result<_>>()?;
        Ok(Self { left, right, pairs })
    }

    /// Sends full rings of packets from left to right, `turns` times; cycles per packet.
    pub(super) fn forward(
        &mut self,
        shared: &mut SharedMemory,
        size: PacketSize,
        turns: usize,
    ) -> anyhow::Result<Cycles> {
        self.take_turns(shared, &[HostSide::Left], turns, |pair, ports, rings, barriers| {
            pair.forward(size, ports, rings, barriers)
        })
    }

    /// Sends a request from left to right and its reply, `turns` times; cycles per message.
    pub(super) fn messages(
        &mut self,
        shared: &mut SharedMemory,
        turns: usize,
    ) -> anyhow::Result<Cycles> {
        self.take_turns(shared, &HostSide::BOTH, turns, WorkerPair::message)
    }

    /// Has each pair run `job` for each turn. `job` sends from each of `senders` once.
    fn take_turns(
        &mut self,
        shared: &mut SharedMemory,
        senders: &[HostSide],
        turns: usize,
        job: impl Fn(&mut WorkerPair, &mut PortPair, &DeviceRings, &TurnBarriers) -> TurnCycles + Sync,
    ) -> anyhow::Result<Cycles> {
        let Self { left, right, pairs } = self;
        let (left, right) = (left.nic(), right.nic());
        let nics = |from: &HostSide| match from {
            HostSide::Left => (left, right),
            HostSide::Right => (right, left),
        };
        let SharedMemory { network, all_rings, ports, cpus } = shared;
        let workers = pairs.len();
        let turns = UNCOUNTED_TURNS + turns;
        let all_rings = &all_rings[..workers];
        // If the processor is gone, any other will do.
        let keep_to = |place: usize| drop(affinity::pin(cpus[place % cpus.len()]));
        let barriers = TurnBarriers::of(workers);
        let (done, device) = std::thread::scope(|scope| {
            let (job, barriers, keep_to) = (&job, &barriers, &keep_to);
            let pairs = pairs.iter_mut().zip(ports).zip(all_rings).enumerate();
            let work = pairs.map(|(place, ((pair, ports), rings))| {
                scope.spawn(move || {
                    keep_to(place);
                    (0..turns).map(|_| job(pair, ports, rings, barriers)).collect::<Vec<_>>()
                })
            });
            let work: Vec<_> = work.collect();
            let mut carry = || {
                let carried = senders.iter().map(|from| {
                    barriers.turn.wait();
                    let carried = all_rings.iter().map(|rings| network.carry(nics(from), rings));
                    let cycles: u64 = carried.sum();
                    barriers.turn.wait();
                    cycles
                });
                carried.sum()
            };
            let device = scope.spawn(move || {
                keep_to(workers);
                (0..turns).map(|_| carry()).collect::<Vec<u64>>()
            });
            let done = work.into_iter().map(|worker| worker.join().ok());
            (done.collect::<Option<Vec<_>>>(), device.join().ok())
        });
        self.check()?;
        Ok(medians(&done.context("a worker failed")?, &device.context("the network failed")?))
    }

    /// Checks that all packets that were sent came in.
    fn check(&self) -> anyhow::Result<()> {
        for WorkerPair { left, right } in &self.pairs {
            let [(left_out, left_in), (right_out, right_in)] =
                [left, right].map(HostWorker::traffic);
            ensure!(left_out.dropped + right_out.dropped == 0, "a packet was not sent");
            ensure!(left_in.dropped + right_in.dropped == 0, "a packet was refused");
            let (sent, came) = (left_out.sent + right_out.sent, left_in.sent + right_in.sent);
            ensure!(sent == came, "{came} of {sent} packets came in");
        }
        Ok(())
    }
}

/// Barriers that order the threads.
#[derive(Debug)]
struct TurnBarriers {
    /// All workers and the device thread.
    turn: SpinBarrier,
    /// All workers.
    together: SpinBarrier,
}

impl TurnBarriers {
    const fn of(workers: usize) -> Self {
        Self { turn: SpinBarrier::new(workers + 1), together: SpinBarrier::new(workers) }
    }
}

impl SharedMemory {
    pub(super) fn new(workers: usize) -> anyhow::Result<Self> {
        let network = DeviceThread::new()?;
        let ports = || PortPair { left: WorkerPort::new(), right: WorkerPort::new() };
        Ok(Self {
            all_rings: (0..workers).map(|_| DeviceRings::new(network.waker())).collect(),
            ports: (0..workers).map(|_| ports()).collect(),
            network,
            cpus: affinity::allowed().context("which processors there are")?,
        })
    }
}

impl WorkerPair {
    fn forward(
        &mut self,
        size: PacketSize,
        ports: &mut PortPair,
        rings: &DeviceRings,
        barriers: &TurnBarriers,
    ) -> TurnCycles {
        let PortPair { left, right } = ports;
        let packets = self.left.flow.fill(size, &mut left.pool, &mut left.outgoing);
        let ends = ((&mut self.left, left), (&mut self.right, right));
        let (sending, receiving) = carry(ends, rings, barriers);
        TurnCycles { sending, receiving, packets }
    }

    fn message(
        &mut self,
        ports: &mut PortPair,
        rings: &DeviceRings,
        barriers: &TurnBarriers,
    ) -> TurnCycles {
        let PortPair { left, right } = ports;
        self.left.flow.message(REQUEST, &mut left.pool, &mut left.outgoing);
        let ends = ((&mut self.left, &mut *left), (&mut self.right, &mut *right));
        let there = carry(ends, rings, barriers);
        self.right.flow.message(REPLY, &mut right.pool, &mut right.outgoing);
        let ends = ((&mut self.right, right), (&mut self.left, left));
        let back = carry(ends, rings, barriers);
        TurnCycles { sending: there.0 + back.0, receiving: there.1 + back.1, packets: 1 }
    }
}

/// Sends the packets of one host's port to the other host; cycles of the sender and the receiver.
fn carry(
    ((sender, from), (receiver, to)): (WorkerWithPort<'_>, WorkerWithPort<'_>),
    rings: &DeviceRings,
    barriers: &TurnBarriers,
) -> (u64, u64) {
    from.outgoing.reverse();
    barriers.together.wait();
    let sending = sender.send(from, rings);
    barriers.turn.wait();
    barriers.turn.wait();
    barriers.together.wait();
    (sending, receiver.receive(to, rings))
}

/// Medians over the turns of all workers.
fn medians(pairs: &[Vec<TurnCycles>], device: &[u64]) -> Cycles {
    let turns = || pairs.iter().flat_map(|turns| &turns[UNCOUNTED_TURNS..]);
    let packets = turns().map(|turn| turn.packets).max().unwrap_or(1) as u64;
    let median = |cycles: Vec<u64>, packets: u64| {
        let mut sample = Samples::default();
        cycles.into_iter().for_each(|cycles| sample.push(precise(cycles) / precise(packets)));
        sample.median()
    };
    Cycles {
        sending: median(turns().map(|turn| turn.sending).collect(), packets),
        receiving: median(turns().map(|turn| turn.receiving).collect(), packets),
        device: median(device[UNCOUNTED_TURNS..].to_vec(), packets * pairs.len() as u64),
    }
}

/// Counts here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn precise(count: u64) -> f64 {
    count as f64
}
