//! A device that gathers frames while many come.
//!
//! Gathering lets more frames pass where many come anyway, and has each wait where few do: a
//! question and its answer take twice as long. So a device gathers only while it is busy, and
//! unless that is wished only where it [pays](ab_test).

mod ab_test;

use std::sync::Arc;
use std::time::Duration;

use uxfrm_engine::Moment;
use uxfrm_io::{napi::NapiDeferral, xdp::Program};

use ab_test::{AbTest, Delivery};

/// Frames per second from which on a device is busy, and those below which it is no longer: more
/// than one who waits for each answer makes.
const BUSY: u64 = 30_000;
const QUIET: u64 = 15_000;

/// How often it is looked at.
pub(crate) const EVERY: Duration = Duration::from_millis(100);

/// A device, and whether it batches now.
#[derive(Debug)]
pub(crate) struct NapiBatching {
    batching: NapiDeferral,
    program: Arc<Program>,
    load: Load,
    rule: Rule,
}

/// When a busy device gathers.
#[derive(Clone, Debug)]
enum Rule {
    /// As it was told to.
    Always,
    /// If more frames come so.
    IfItPays(AbTest),
}

/// How many frames come.
#[derive(Clone, Copy, Debug)]
struct Load {
    seen: u64,
    at: Moment,
    is_high: bool,
}

impl NapiBatching {
    /// One that gathers whenever many frames come by the program's queues.
    pub(crate) fn always(batching: NapiDeferral, program: Arc<Program>, now: Moment) -> Self {
        Self::new(batching, program, now, Rule::Always)
    }

    /// One that does so where it lets more of them pass.
    pub(crate) fn if_it_pays(batching: NapiDeferral, program: Arc<Program>, now: Moment) -> Self {
        Self::new(batching, program, now, Rule::IfItPays(AbTest::new()))
    }

    fn new(mut batching: NapiDeferral, program: Arc<Program>, now: Moment, rule: Rule) -> Self {
        batching.restore();
        let load = Load { seen: program.received(), at: now, is_high: false };
        Self { batching, program, load, rule }
    }

    /// It is `now`: it begins to gather, goes on also with queues that are new, or rests.
    pub(crate) fn look(&mut self, now: Moment) {
        let before = self.load.is_high;
        let Some(per_second) = self.load.count(self.program.received(), now) else { return };
        let pace = match (before, self.load.is_high) {
            (false, true) => self.rule.begin(),
            (true, true) => self.rule.go_on(per_second),
            (_, false) => Delivery::Immediate,
        };
        self.keep(pace);
    }

    /// Has it do as it did; the next [look](Self::look) has it gather again, if many frames come.
    pub(crate) fn rest(&mut self) {
        self.batching.restore();
    }

    fn keep(&mut self, pace: Delivery) {
        match pace {
            Delivery::Batched => {
                if let Err(error) = self.batching.reapply() {
                    tracing::debug!(%error, "a device does not gather frames");
                }
            }
            Delivery::Immediate => self.batching.restore(),
        }
    }
}

impl Rule {
    fn begin(&mut self) -> Delivery {
        match self {
            Self::Always => Delivery::Batched,
            Self::IfItPays(trial) => trial.begin(),
        }
    }

    fn go_on(&mut self, per_second: u64) -> Delivery {
        match self {
            Self::Always => Delivery::Batched,
            Self::IfItPays(trial) => trial.go_on(per_second),
        }
    }
}

impl Load {
    /// By `now` so many frames have come in all; how many per second since it was counted last, if
    /// that was long ago.
    fn count(&mut self, seen: u64, now: Moment) -> Option<u64> {
        let passed = now.since(self.at);
        if passed < EVERY {
            return None;
        }
        let frames = u128::from(seen.wrapping_sub(self.seen));
        let per_second = frames * 1_000_000_000 / passed.as_nanos().max(1);
        let per_second = u64::try_from(per_second).unwrap_or(u64::MAX);
        let bound = if self.is_high { QUIET } else { BUSY };
        *self = Self { seen, at: now, is_high: per_second >= bound };
        Some(per_second)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn napi_batching_starts_under_load() {
        let mut load = Load { seen: 0, at: Moment(0), is_high: false };
        let (mut seen, mut now) = (0, 0);
        let mut after = |milliseconds: u64, per_second: u64| {
            seen += per_second * milliseconds / 1000;
            now += milliseconds * 1_000_000;
            load.count(seen, Moment(now));
            load.is_high
        };
        assert!(!after(100, 29_000));
        assert!(!after(50, 1_000_000), "too early to say");
        assert!(after(50, 30_000));
        assert!(after(100, 16_000), "less than busy, and not quiet");
        assert!(!after(400, 14_000));
        assert!(!after(100, 29_000));
        assert!(after(100, 31_000));
        assert!(!after(500, 0));
    }
}
