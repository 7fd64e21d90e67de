//! Two hosts with their workers, and the network between them: each on a thread of its own, and never two of them at once.
//!
//! Hosts and network take turns, so that nothing but the host runs while the host is measured: there may be fewer processors than threads. Workers of one
//! host do run at once, as they would. Each thread keeps to a processor, the network to one of its own where there is one.

use anyhow::{Context, ensure};
use uxfrm_io::affinity;

use super::association::End;
use super::host::{Host, Port};
use super::network::Network;
use super::plan::{Path, Size};
use super::site::Site;
use super::wire::Wire;
use super::{REPLY, REQUEST, SETTLING};
use crate::barrier::SpinBarrier;
use crate::report::Sample;

/// Two hosts, and what protects their packets.
#[derive(Debug)]
pub(super) struct Scene {
    left: Site,
    right: Site,
    lanes: Vec<Lane>,
}

/// What all scenes play on, one after the other: whatever packets touch but the workers' own memory. So paths differ in what they do alone.
#[derive(Debug)]
pub(super) struct Stage {
    network: Network,
    /// Each lane's.
    wires: Vec<Wire>,
    ports: Vec<Ports>,
    /// For workers, and behind them for the network, counted round.
    cpus: Vec<usize>,
}

/// Those of a lane's two workers.
#[derive(Debug)]
struct Ports {
    left: Port,
    right: Port,
}

/// A worker and its port.
type Manned<'a> = (&'a mut Host, &'a mut Port);

/// One worker of each host.
#[derive(Debug)]
struct Lane {
    left: Host,
    right: Host,
}

/// Cycles of one round, each packet's or each message's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycles {
    pub(super) sending: f64,
    pub(super) receiving: f64,
    pub(super) device: f64,
}

/// What one turn of all was: cycles, and packets on the wire.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    sending: u64,
    receiving: u64,
    packets: usize,
}

impl Scene {
    pub(super) fn new(path: Path, workers: usize) -> anyhow::Result<Self> {
        let (left, right) = (Site::new(End::Left, path)?, Site::new(End::Right, path)?);
        let lanes = (0..workers).map(|number| -> anyhow::Result<Lane> {
            Ok(Lane {
                left: Host::new(&left, End::Left, number)?,
                right: Host::new(&right, End::Right, number)?,
            })
        });
        let lanes = lanes.collect::<anyhow::Result<_>>()?;
        Ok(Self { left, right, lanes })
    }

    /// Full rings of packets from left to right, `turns` times; by packet.
    pub(super) fn forward(
        &mut self,
        stage: &mut Stage,
        size: Size,
        turns: usize,
    ) -> anyhow::Result<Cycles> {
        self.take_turns(stage, &[End::Left], turns, |lane, ports, wire, pace| {
            lane.forward(size, ports, wire, pace)
        })
    }

    /// Requests from left to right, and replies, `turns` times one after the other; by message.
    pub(super) fn messages(&mut self, stage: &mut Stage, turns: usize) -> anyhow::Result<Cycles> {
        self.take_turns(stage, &End::BOTH, turns, Lane::message)
    }

    /// Has each lane do a job so often, in which it sends from each of `ways` once.
    fn take_turns(
        &mut self,
        stage: &mut Stage,
        ways: &[End],
        turns: usize,
        job: impl Fn(&mut Lane, &mut Ports, &Wire, &Pace) -> Turn + Sync,
    ) -> anyhow::Result<Cycles> {
        let Self { left, right, lanes } = self;
        let (left, right) = (left.nic(), right.nic());
        let nics = |from: &End| match from {
            End::Left => (left, right),
            End::Right => (right, left),
        };
        let Stage { network, wires, ports, cpus } = stage;
        let workers = lanes.len();
        let turns = SETTLING + turns;
        let wires = &wires[..workers];
        // Without such a processor any other will do.
        let keep_to = |place: usize| drop(affinity::pin(cpus[place % cpus.len()]));
        let pace = Pace::of(workers);
        let (done, device) = std::thread::scope(|scope| {
            let (job, pace, keep_to) = (&job, &pace, &keep_to);
            let lanes = lanes.iter_mut().zip(ports).zip(wires).enumerate();
            let work = lanes.map(|(place, ((lane, ports), wire))| {
                scope.spawn(move || {
                    keep_to(place);
                    (0..turns).map(|_| job(lane, ports, wire, pace)).collect::<Vec<_>>()
                })
            });
            let work: Vec<_> = work.collect();
            let mut carry = || {
                let carried = ways.iter().map(|from| {
                    pace.turn.wait();
                    let carried = wires.iter().map(|wire| network.carry(nics(from), wire));
                    let cycles: u64 = carried.sum();
                    pace.turn.wait();
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
        Ok(middle(&done.context("a worker failed")?, &device.context("the network failed")?))
    }

    /// All that went out must have come in.
    fn check(&self) -> anyhow::Result<()> {
        for Lane { left, right } in &self.lanes {
            let [(left_out, left_in), (right_out, right_in)] = [left, right].map(Host::traffic);
            ensure!(left_out.dropped + right_out.dropped == 0, "a packet was not sent");
            ensure!(left_in.dropped + right_in.dropped == 0, "a packet was refused");
            let (sent, came) = (left_out.sent + right_out.sent, left_in.sent + right_in.sent);
            ensure!(sent == came, "{came} of {sent} packets came in");
        }
        Ok(())
    }
}

/// Who runs when.
#[derive(Debug)]
struct Pace {
    /// Workers and the network.
    turn: SpinBarrier,
    /// Workers alone.
    together: SpinBarrier,
}

impl Pace {
    const fn of(workers: usize) -> Self {
        Self { turn: SpinBarrier::of(workers + 1), together: SpinBarrier::of(workers) }
    }
}

impl Stage {
    pub(super) fn new(workers: usize) -> anyhow::Result<Self> {
        let network = Network::new()?;
        let ports = || Ports { left: Port::new(), right: Port::new() };
        Ok(Self {
            wires: (0..workers).map(|_| Wire::new(network.waker())).collect(),
            ports: (0..workers).map(|_| ports()).collect(),
            network,
            cpus: affinity::allowed().context("which processors there are")?,
        })
    }
}

impl Lane {
    fn forward(&mut self, size: Size, ports: &mut Ports, wire: &Wire, pace: &Pace) -> Turn {
        let Ports { left, right } = ports;
        let packets = self.left.flow.fill(size, &mut left.pool, &mut left.outgoing);
        let ends = ((&mut self.left, left), (&mut self.right, right));
        let (sending, receiving) = carry(ends, wire, pace);
        Turn { sending, receiving, packets }
    }

    fn message(&mut self, ports: &mut Ports, wire: &Wire, pace: &Pace) -> Turn {
        let Ports { left, right } = ports;
        self.left.flow.message(REQUEST, &mut left.pool, &mut left.outgoing);
        let ends = ((&mut self.left, &mut *left), (&mut self.right, &mut *right));
        let there = carry(ends, wire, pace);
        self.right.flow.message(REPLY, &mut right.pool, &mut right.outgoing);
        let ends = ((&mut self.right, right), (&mut self.left, left));
        let back = carry(ends, wire, pace);
        Turn { sending: there.0 + back.0, receiving: there.1 + back.1, packets: 1 }
    }
}

/// Cycles of one host that sends what its port holds, and of the other one that receives it.
fn carry(
    ((sender, from), (receiver, to)): (Manned<'_>, Manned<'_>),
    wire: &Wire,
    pace: &Pace,
) -> (u64, u64) {
    from.outgoing.reverse();
    pace.together.wait();
    let sending = sender.send(from, wire);
    pace.turn.wait();
    pace.turn.wait();
    pace.together.wait();
    (sending, receiver.receive(to, wire))
}

/// The medians over turns, of all workers' turns together.
fn middle(lanes: &[Vec<Turn>], device: &[u64]) -> Cycles {
    let turns = || lanes.iter().flat_map(|turns| &turns[SETTLING..]);
    let packets = turns().map(|turn| turn.packets).max().unwrap_or(1) as u64;
    let median = |cycles: Vec<u64>, packets: u64| {
        let mut sample = Sample::default();
        cycles.into_iter().for_each(|cycles| sample.push(precise(cycles) / precise(packets)));
        sample.median()
    };
    Cycles {
        sending: median(turns().map(|turn| turn.sending).collect(), packets),
        receiving: median(turns().map(|turn| turn.receiving).collect(), packets),
        device: median(device[SETTLING..].to_vec(), packets * lanes.len() as u64),
    }
}

/// Counts here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn precise(count: u64) -> f64 {
    count as f64
}
