//! One operation on what workers share.

use std::sync::{Arc, Mutex};

use anyhow::bail;
use uxfrm_engine::{DropReason, PolicyEntry, Sa};
use uxfrm_io::affinity;

use super::{SHAPE, States, WINDOW};
use crate::Options;
use crate::barrier::SpinBarrier;
use crate::cases::esp::gateways::{NOW, Sites};
use crate::cases::esp::plan::{Scene, Way};
use crate::clock::TscClock;
use crate::report::Sample;

/// What is written for packets and shared by workers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line {
    /// Numbers of packets that leave.
    Sequence,
    /// What a state has carried.
    Counts,
    /// What a policy has decided over.
    Policy,
    /// Numbers that came.
    Window,
}

/// What the operations are done to.
struct Target {
    state: Arc<Sa>,
    policy: Arc<PolicyEntry>,
}

/// Numbers that a window takes as one.
const NEIGHBOURS: u32 = 32;
const BURSTS: u32 = 400;

/// Operations between two meetings of so many workers: whoever is last, the numbers of all of them are in the window.
fn burst(workers: u32) -> u32 {
    WINDOW / NEIGHBOURS / 2 / workers
}

impl Line {
    pub(super) const ALL: [Self; 4] = [Self::Sequence, Self::Counts, Self::Policy, Self::Window];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sequence => "sequence",
            Self::Counts => "counts",
            Self::Policy => "policy",
            Self::Window => "window",
        }
    }

    /// Once. `turn` is another each time, whoever does it.
    #[inline]
    fn write(self, target: &Target, turn: u32) -> Result<(), DropReason> {
        match self {
            Self::Sequence => target.state.sequence().take(NEIGHBOURS).map(drop),
            Self::Counts => {
                // Without limits there is nothing to be said.
                let _ = target.state.charge(NEIGHBOURS, 64 * u64::from(NEIGHBOURS), NOW);
                Ok(())
            }
            Self::Policy => {
                target.policy.charge(NEIGHBOURS, 64 * u64::from(NEIGHBOURS), NOW);
                Ok(())
            }
            Self::Window => {
                let window = target.state.replay();
                window.check(turn.wrapping_mul(NEIGHBOURS)).and_then(|number| window.accept(number))
            }
        }
    }
}

/// Cycles of an operation that workers on these processors do at once.
pub(super) fn measure(
    line: Line,
    states: States,
    cpus: &[usize],
    options: &Options,
) -> anyhow::Result<Sample> {
    let workers = cpus.len();
    let targets = targets(if states == States::Own { workers } else { 1 })?;
    let bursts = if options.quick { 4 } else { BURSTS };
    let barrier = SpinBarrier::of(workers);
    let (all, failed) = (Mutex::new(Sample::default()), Mutex::new(None));
    std::thread::scope(|scope| {
        for (place, cpu) in (0..).zip(cpus) {
            let (barrier, all, failed) = (&barrier, &all, &failed);
            let writer = Writer { line, target: &targets[place as usize % targets.len()], place };
            scope.spawn(move || {
                // Without such a processor any other will do.
                let _ = affinity::pin(*cpu);
                let (cycles, result) = writer.write(barrier, bursts);
                if let Ok(mut all) = all.lock() {
                    // The first ones find cold caches.
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

/// One of several that write at once.
struct Writer<'a> {
    line: Line,
    target: &'a Target,
    place: u32,
}

impl Writer<'_> {
    /// Cycles of an operation, by bursts, and what went wrong: whoever fails goes on, as others wait for it.
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

/// So many states and policies as the data path has them.
fn targets(count: usize) -> anyhow::Result<Vec<Target>> {
    let transform = uxfrm_crypto::Transform::cipher_auth(None, None)?;
    let scene = Scene { name: "null", transform, shape: SHAPE, sas: count, window: WINDOW };
    let sites = Sites::new(&scene, Way::Out)?;
    let snapshot = sites.sender.database.snapshot();
    let targets = snapshot.sad.iter().zip(snapshot.spd.iter());
    let targets = targets.map(|(state, policy)| {
        let (state, policy) = (Arc::clone(state), Arc::clone(policy));
        state.activate();
        Target { state, policy }
    });
    Ok(targets.collect())
}
