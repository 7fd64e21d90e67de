//! Workers that carry packets at once.

use std::sync::Mutex;

use uxfrm_io::affinity;

use super::{Path, States};
use crate::Options;
use crate::barrier::SpinBarrier;
use crate::cases::esp::gateways::{Gateways, Sites};
use crate::cases::esp::trial::Trial;
use crate::report::{Row, Sample};
use crate::ring::ROOM;

/// Batches of a round.
const STEPS: usize = 64;
/// Rounds that are not counted: flow caches know all flows then.
const WARM: usize = 3;

/// As many workers of each end, and what their packets cost.
pub(super) struct Team {
    states: States,
    members: Vec<Member>,
    cpus: Vec<usize>,
    cycles: Sample,
    /// Their states and policies.
    _sites: Sites,
}

struct Member {
    gateways: Gateways,
    trial: Trial,
}

impl Team {
    pub(super) fn new(path: &Path, states: States, cpus: &[usize]) -> anyhow::Result<Self> {
        let workers = cpus.len();
        let scene = path.scene(if states == States::Own { workers } else { 1 });
        let sites = Sites::new(&scene, path.way)?;
        let member = |place: usize| {
            let flow = if states == States::Own { place } else { 0 };
            let gateways = sites.gateways(flow..flow + 1)?;
            Ok(Member { gateways, trial: Trial::new(path.variant()) })
        };
        let members = (0..workers).map(member).collect::<anyhow::Result<_>>()?;
        let cpus = cpus.to_vec();
        Ok(Self { states, members, cpus, cycles: Sample::default(), _sites: sites })
    }

    pub(super) fn workers(&self) -> usize {
        self.members.len()
    }

    /// Cycles per packet of a worker.
    pub(super) fn figure(&self) -> f64 {
        self.cycles.median()
    }

    /// `alone` is what one worker by itself takes for a packet.
    pub(super) fn row(self, path: &Path, alone: Option<f64>, hz: f64) -> Row {
        #[expect(clippy::cast_precision_loss, reason = "a few workers")]
        let workers = self.workers() as f64;
        let case = path.case(self.workers(), self.states);
        let mut row = Row::of_packets(case, &self.cycles, path.bytes, hz);
        let pps = workers * hz / self.figure();
        row.figure("mpps", pps / 1e6, 3);
        row.figure("gbps", pps * f64::from(path.bytes) * 8.0 / 1e9, 2);
        if let Some(alone) = alone {
            row.figure("scaling", workers * alone / self.figure(), 2);
        }
        row
    }

    /// Each batch is begun by all at once. The median of all workers' batches is the round's figure.
    fn round(&mut self, steps: usize) -> anyhow::Result<()> {
        let barrier = SpinBarrier::of(self.members.len());
        let (all, failed) = (Mutex::new(Sample::default()), Mutex::new(None));
        std::thread::scope(|scope| {
            for (member, cpu) in self.members.iter_mut().zip(&self.cpus) {
                let (barrier, all, failed) = (&barrier, &all, &failed);
                scope.spawn(move || {
                    // Without such a processor any other will do.
                    let _ = affinity::pin(*cpu);
                    let (cycles, result) = member.carry(barrier, steps);
                    if let Ok(mut all) = all.lock() {
                        cycles.into_iter().for_each(|cycles| all.push(cycles));
                    }
                    if let (Err(error), Ok(mut failed)) = (result, failed.lock()) {
                        failed.get_or_insert(error);
                    }
                });
            }
        });
        if let Ok(Some(error)) = failed.into_inner() {
            return Err(error);
        }
        self.cycles.push(all.into_inner().map_or(f64::NAN, |all| all.median()));
        Ok(())
    }
}

/// Rounds of all teams in turn, the first of which are not counted.
pub(super) fn measure(teams: &mut [Team], options: &Options) -> anyhow::Result<()> {
    let (rounds, steps) = if options.quick { (2, 2) } else { (15, STEPS) };
    for round in 0..WARM + rounds {
        for team in &mut *teams {
            team.round(steps)?;
            if round < WARM {
                team.cycles = Sample::default();
            }
        }
    }
    Ok(())
}

impl Member {
    /// Cycles per packet of each batch, and what went wrong first: whoever fails goes on, as others wait for it.
    fn carry(&mut self, barrier: &SpinBarrier, steps: usize) -> (Vec<f64>, anyhow::Result<()>) {
        let (mut cycles, mut result) = (Vec::with_capacity(steps), Ok(()));
        let way = self.trial.way();
        for _ in 0..steps {
            let carried = self.trial.walk(&mut self.gateways, ROOM, |trial, gateway| {
                barrier.wait();
                cycles.push(trial.pass(gateway, way));
                // Nobody makes packets for the next batch while others are measured.
                barrier.wait();
            });
            result = result.and(carried);
        }
        (cycles, result)
    }
}
