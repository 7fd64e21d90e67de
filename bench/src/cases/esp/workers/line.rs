//! One operation on a cache line that workers share.

use std::sync::{Arc, Mutex};

use anyhow::bail;
use uxfrm_engine::{DropReason, PolicyEntry, Sa};
use uxfrm_io::affinity;

use super::{MODE, SaSharing, WINDOW};
use crate::BenchOptions;
use crate::barrier::SpinBarrier;
use crate::cases::esp::ends::{NOW, TunnelEnds};
use crate::cases::esp::plan::EspSetup;
use crate::clock::TscClock;
use crate::direction::TestDirection;
use crate::report::Samples;

/// A cache line that packets write and workers may share.
#[derive(Clone, Copy, Debug)]
pub(super) enum SharedLine {
    /// The sequence counter of outbound packets.
    Sequence,
    /// An SA's byte and packet counts.
    Counts,
    /// A policy's counts.
    Policy,
    /// The replay window.
    Window,
}

/// The SA and the policy that are written.
struct Target {
    state: Arc<Sa>,
    policy: Arc<PolicyEntry>,
}

/// Consecutive sequence numbers of one operation.
const NEIGHBOURS: u32 = 32;
const BURSTS: u32 = 400;

/// Operations between two barriers: few enough that the numbers of all workers fit the window,
/// whichever is last.
fn burst(workers: u32) -> u32 {
    WINDOW / NEIGHBOURS / 2 / workers
}

impl SharedLine {
    pub(super) const ALL: [Self; 4] = [Self::Sequence, Self::Counts, Self::Policy, Self::Window];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Counts => "counts",
            Self::Policy => "policy",
            Self::Window => "window",
        }
    }

    /// Runs the operation once. `turn` differs in each call of any worker.
    #[inline]
    fn write(self, target: &Target, turn: u32) -> Result<(), DropReason> {
        match self {
            Self::Sequence => target.state.sequence().take(NEIGHBOURS).map(drop),
            Self::Counts => {
                // Without limits there is no event.
                let _ = target.state.charge(NEIGHBOURS, 64 * u64::from(NEIGHBOURS), NOW);
                Ok(())
            }
            Self::Policy => {
                target.policy.record_use(NEIGHBOURS, 64 * u64::from(NEIGHBOURS), NOW);
                Ok(())
            }
            Self::Window => {
                let window = target.state.replay();
                window.check(turn.wrapping_mul(NEIGHBOURS)).and_then(|number| window.accept(number))
            }
        }
    }
}

/// Cycles of an operation while workers on these processors run it at once.
pub(super) fn measure(
    line: SharedLine,
    states: SaSharing,
    cpus: &[usize],
    options: &BenchOptions,
) -> anyhow::Result<Samples> {
    let workers = cpus.len();
    let targets = targets(if states == SaSharing::Separate { workers } else { 1 })?;
    let bursts = if options.quick { 4 } else { BURSTS };
    let barrier = SpinBarrier::new(workers);
    let (all, failed) = (Mutex::new(Samples::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for (place, cpu) in (0..).zip(cpus) {
            let (barrier, all, failed) = (&barrier, &all, &failed);
            let writer = Writer { line, target: &targets[place as usize % targets.len()], place };
            scope.spawn(move || {
                // If the processor is gone, any other will do.
                let _ = affinity::pin(*cpu);
                let (cycles, result) = writer.write(barrier, bursts);
                if let Ok(mut all) = all.lock() {
                    // The first bursts find cold caches.
                    cycles
                        .into_iter()
                        .skip(bursts as usize / 4)
                        .for_each(|cycles| all.push(cycles));
                }
                if let (Err(reason), Ok(mut failed)) = (result, failed.lock()) {
                    *failed = Some(reason);
                }
            });
        }
    });
    match failed.into_inner() {
        Ok(Some(reason)) => bail!("{} refused: {reason:?}", line.name()),
        Ok(None) | Err(_) => Ok(all.into_inner().unwrap_or_default()),
    }
}

/// One of several writers.
struct Writer<'a> {
    line: SharedLine,
    target: &'a Target,
    place: u32,
}

impl Writer<'_> {
    /// Cycles of an operation for each burst, and the first error. After an error it goes on,
    /// because the others wait for it.
    fn write(&self, barrier: &SpinBarrier, bursts: u32) -> (Vec<f64>, Result<(), DropReason>) {
        let workers = barrier.size();
        let burst = burst(workers);
        let (mut cycles, mut result) = (Vec::new(), Ok(()));
        for first in (0..bursts).map(|round| round * burst) {
            barrier.wait();
            let from = TscClock::now();
            let written = (first..first + burst)
                .try_for_each(|at| self.line.write(self.target, at * workers + self.place + 1));
            cycles.push(TscClock::per_packet(from, burst as usize));
            result = result.and(written);
        }
        (cycles, result)
    }
}

/// SAs and policies as the data path has them.
fn targets(count: usize) -> anyhow::Result<Vec<Target>> {
    let transform = uxfrm_crypto::Transform::cipher_auth(None, None)?;
    let setup = EspSetup { name: "null", transform, mode: MODE, sas: count, window: WINDOW };
    let sites = TunnelEnds::new(&setup, TestDirection::Out)?;
    let snapshot = sites.sender.database.snapshot();
    let targets = snapshot.sad.iter().zip(snapshot.spd.iter());
    let targets = targets.map(|(state, policy)| {
        let (state, policy) = (Arc::clone(state), Arc::clone(policy));
        state.activate();
        Target { state, policy }
    });
    Ok(targets.collect())
}
