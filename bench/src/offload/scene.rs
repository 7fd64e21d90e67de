//! Two hosts with their workers, and the network between them: each on a thread of its own, and never two of them at once.
//!
//! Hosts and network take turns, so that nothing but the host runs while the host is measured: there may be fewer processors than threads. Workers of one
//! host do run at once, as they would.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, ensure};

use super::association::End;
use super::host::Host;
use super::network::Network;
use super::plan::{Path, Size};
use super::site::Site;
use super::wire::Wire;
use super::{REPLY, REQUEST};
use crate::report::Sample;

/// What is set up once, and measured with all sizes.
#[derive(Debug)]
pub(super) struct Scene {
    left: Site,
    right: Site,
    lanes: Vec<Lane>,
    network: Network,
    /// Each lane's.
    wires: Vec<Wire>,
}

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
        let network = Network::new()?;
        let wires = (0..workers).map(|_| Wire::new(network.waker())).collect();
        Ok(Self { left, right, lanes, network, wires })
    }

    /// Full rings of packets from left to right, `turns` times; by packet.
    pub(super) fn forward(&mut self, size: Size, turns: usize) -> anyhow::Result<Cycles> {
        self.take_turns(&[End::Left], turns, |lane, wire, pace| lane.forward(size, wire, pace))
    }

    /// Requests from left to right, and replies, `turns` times one after the other; by message.
    pub(super) fn messages(&mut self, turns: usize) -> anyhow::Result<Cycles> {
        self.take_turns(&End::BOTH, turns, Lane::message)
    }

    /// Has each lane do a job so often, in which it sends from each of `ways` once.
    fn take_turns(
        &mut self,
        ways: &[End],
        turns: usize,
        job: impl Fn(&mut Lane, &Wire, &Pace<'_>) -> Turn + Sync,
    ) -> anyhow::Result<Cycles> {
        let Self { left, right, lanes, network, wires } = self;
        let sites = |from: &End| match from {
            End::Left => (&*left, &*right),
            End::Right => (&*right, &*left),
        };
        let (turn, together) = (Barrier::new(lanes.len() + 1), AtomicUsize::new(0));
        let pace = Pace { turn: &turn, together: &together, workers: lanes.len() };
        let (done, device) = std::thread::scope(|scope| {
            let (job, pace) = (&job, &pace);
            let work = lanes.iter_mut().zip(&*wires).map(|(lane, wire)| {
                scope.spawn(move || (0..turns).map(|_| job(lane, wire, pace)).collect::<Vec<_>>())
            });
            let workers: Vec<_> = work.collect();
            let mut carry = || {
                let carried = ways.iter().map(|from| {
                    turn.wait();
                    let carried = wires.iter().map(|wire| network.carry(sites(from), wire));
                    let cycles: u64 = carried.sum();
                    turn.wait();
                    cycles
                });
                carried.sum()
            };
            let device: Vec<u64> = (0..turns).map(|_| carry()).collect();
            (
                workers.into_iter().map(|worker| worker.join().ok()).collect::<Option<Vec<_>>>(),
                device,
            )
        });
        self.check()?;
        Ok(middle(&done.context("a worker failed")?, &device))
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
struct Pace<'a> {
    turn: &'a Barrier,
    together: &'a AtomicUsize,
    workers: usize,
}

impl Pace<'_> {
    /// Waits for the other workers, without sleep.
    fn meet(&self) {
        let place = self.together.fetch_add(1, Ordering::AcqRel);
        let all = (place / self.workers + 1) * self.workers;
        let mut spins = 0_u32;
        while self.together.load(Ordering::Acquire) < all {
            spins += 1;
            if spins.is_multiple_of(10_000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

impl Lane {
    fn forward(&mut self, size: Size, wire: &Wire, pace: &Pace<'_>) -> Turn {
        let Host { flow, pool, outgoing, .. } = &mut self.left;
        let packets = flow.fill(size, pool, outgoing);
        let (sending, receiving) = carry(&mut self.left, &mut self.right, wire, pace);
        Turn { sending, receiving, packets }
    }

    fn message(&mut self, wire: &Wire, pace: &Pace<'_>) -> Turn {
        let Self { left, right } = self;
        left.flow.message(REQUEST, &mut left.pool, &mut left.outgoing);
        let there = carry(left, right, wire, pace);
        right.flow.message(REPLY, &mut right.pool, &mut right.outgoing);
        let back = carry(right, left, wire, pace);
        Turn { sending: there.0 + back.0, receiving: there.1 + back.1, packets: 1 }
    }
}

/// Cycles of one host that sends what its port holds, and of the other one that receives it.
fn carry(sender: &mut Host, receiver: &mut Host, wire: &Wire, pace: &Pace<'_>) -> (u64, u64) {
    sender.outgoing.reverse();
    pace.meet();
    let sending = sender.send(wire);
    pace.turn.wait();
    pace.turn.wait();
    pace.meet();
    (sending, receiver.receive(wire))
}

/// The medians over turns, of all workers' turns together.
fn middle(lanes: &[Vec<Turn>], device: &[u64]) -> Cycles {
    let turns = || lanes.iter().flatten();
    let packets = turns().map(|turn| turn.packets).max().unwrap_or(1) as u64;
    let median = |cycles: Vec<u64>, packets: u64| {
        let mut sample = Sample::default();
        cycles.into_iter().for_each(|cycles| sample.push(precise(cycles) / precise(packets)));
        sample.median()
    };
    Cycles {
        sending: median(turns().map(|turn| turn.sending).collect(), packets),
        receiving: median(turns().map(|turn| turn.receiving).collect(), packets),
        device: median(device.to_vec(), packets * lanes.len() as u64),
    }
}

/// Counts here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn precise(count: u64) -> f64 {
    count as f64
}
