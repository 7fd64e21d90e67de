//! Workers that process packets at once.

use std::sync::Mutex;

use uxfrm_io::affinity;

use super::{SaSharing, WorkerPath};
use crate::BenchOptions;
use crate::barrier::SpinBarrier;
use crate::cases::esp::ends::{TunnelEnds, WorkerPair};
use crate::cases::esp::measurement::Measurement;
use crate::report::{Row, Samples};
use crate::ring::ROOM;

/// Batches of a round.
const STEPS: usize = 64;
/// Rounds of warm-up: flow caches hold all flows afterwards.
const WARM: usize = 3;

/// Workers of each end, as many of one as of the other, and their cycles per packet.
pub(super) struct WorkerGroup {
    states: SaSharing,
    workers: Vec<GroupWorker>,
    cpus: Vec<usize>,
    cycles: Samples,
    /// Their SAs and policies.
    _sites: TunnelEnds,
}

struct GroupWorker {
    pair: WorkerPair,
    measurement: Measurement,
}

impl WorkerGroup {
    pub(super) fn new(
        path: &WorkerPath,
        states: SaSharing,
        cpus: &[usize],
    ) -> anyhow::Result<Self> {
        let workers = cpus.len();
        let setup = path.setup(if states == SaSharing::Separate { workers } else { 1 });
        let sites = TunnelEnds::new(&setup, path.direction)?;
        let worker = |place: usize| {
            let flow = if states == SaSharing::Separate { place } else { 0 };
            let pair = sites.worker_pair(flow..flow + 1)?;
            Ok(GroupWorker { pair, measurement: Measurement::new(path.esp_case()) })
        };
        let workers = (0..workers).map(worker).collect::<anyhow::Result<_>>()?;
        let cpus = cpus.to_vec();
        Ok(Self { states, workers, cpus, cycles: Samples::default(), _sites: sites })
    }

    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }

    /// A worker's cycles per packet.
    pub(super) fn figure(&self) -> f64 {
        self.cycles.median()
    }

    /// `alone` is the cycles per packet of a single worker.
    pub(super) fn row(self, path: &WorkerPath, alone: Option<f64>, hz: f64) -> Row {
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

    /// All workers begin each batch at once. The round's figure is the median of all their batches.
    fn round(&mut self, steps: usize) -> anyhow::Result<()> {
        let barrier = SpinBarrier::new(self.workers.len());
        let (all, failed) = (Mutex::new(Samples::default()), Mutex::new(None));
        std::thread::scope(|scope| {
            for (worker, cpu) in self.workers.iter_mut().zip(&self.cpus) {
                let (barrier, all, failed) = (&barrier, &all, &failed);
                scope.spawn(move || {
                    // If the processor is gone, any other will do.
                    let _ = affinity::pin(*cpu);
                    let (cycles, result) = worker.carry(barrier, steps);
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

/// Runs rounds of all groups in turn, the warm-up first.
pub(super) fn measure(groups: &mut [WorkerGroup], options: &BenchOptions) -> anyhow::Result<()> {
    let (rounds, steps) = if options.quick { (2, 2) } else { (15, STEPS) };
    for round in 0..WARM + rounds {
        for group in &mut *groups {
            group.round(steps)?;
            if round < WARM {
                group.cycles = Samples::default();
            }
        }
    }
    Ok(())
}

impl GroupWorker {
    /// Cycles per packet of each batch, and the first error. After an error it goes on, because the
    /// others wait for it.
    fn carry(&mut self, barrier: &SpinBarrier, steps: usize) -> (Vec<f64>, anyhow::Result<()>) {
        let (mut cycles, mut result) = (Vec::with_capacity(steps), Ok(()));
        let direction = self.measurement.direction();
        for _ in 0..steps {
            let carried = self.measurement.walk(&mut self.pair, ROOM, |measurement, end| {
                barrier.wait();
                cycles.push(measurement.pass(end, direction));
                // No worker prepares the next batch while another is measured.
                barrier.wait();
            });
            result = result.and(carried);
        }
        (cycles, result)
    }
}
