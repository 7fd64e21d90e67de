//! What a look-up of policies found, for a trace.

use crate::{Direction, PolicyCache, TraceStep, VerdictId};

/// The step of a verdict; how the cache answered is filled in by who asked.
pub(crate) fn look_up_step(
    policies: &PolicyCache,
    direction: Direction,
    verdict: VerdictId,
) -> TraceStep {
    let deciding = policies.policies(verdict).iter().take(2);
    TraceStep::LookUp {
        direction,
        outcome: verdict.outcome(),
        policies: deciding.map(|entry| entry.index()).collect(),
        cache: None,
    }
}
