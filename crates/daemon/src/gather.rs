//! A device that gathers frames while many come.
//!
//! Gathering lets more frames pass where many come anyway, and has each wait where few do: a question and its answer take twice as long. So
//! a device gathers only while it is busy.

use std::sync::Arc;
use std::time::Duration;

use uxfrm_engine::Moment;
use uxfrm_io::{napi::Gathering, xdp::Program};

/// Frames per second from which on a device is busy, and those below which it is no longer: more than one who waits for each answer makes.
const BUSY: u64 = 30_000;
const QUIET: u64 = 15_000;

/// How often it is looked at.
pub(crate) const EVERY: Duration = Duration::from_millis(100);

/// A device, and whether it gathers now.
#[derive(Debug)]
pub(crate) struct Gatherer {
    gathering: Gathering,
    program: Arc<Program>,
    load: Load,
}

/// How many frames come.
#[derive(Clone, Copy, Debug)]
struct Load {
    seen: u64,
    at: Moment,
    is_high: bool,
}

impl Gatherer {
    /// One that rests until many frames come by the program's queues.
    pub(crate) fn new(mut gathering: Gathering, program: Arc<Program>, now: Moment) -> Self {
        gathering.rest();
        let load = Load { seen: program.received(), at: now, is_high: false };
        Self { gathering, program, load }
    }

    /// It is `now`: it begins to gather, goes on also with queues that are new, or rests.
    pub(crate) fn look(&mut self, now: Moment) {
        let before = self.load.is_high;
        self.load.count(self.program.received(), now);
        match (before, self.load.is_high) {
            (_, true) => {
                if let Err(error) = self.gathering.renew() {
                    tracing::debug!(%error, "a device does not gather frames");
                }
            }
            (true, false) => self.gathering.rest(),
            (false, false) => {}
        }
    }
}

impl Load {
    /// By `now` so many frames have come in all.
    fn count(&mut self, seen: u64, now: Moment) {
        let passed = now.since(self.at);
        if passed < EVERY {
            return;
        }
        let frames = u128::from(seen.wrapping_sub(self.seen));
        let per_second = frames * 1_000_000_000 / passed.as_nanos().max(1);
        let bound = if self.is_high { QUIET } else { BUSY };
        *self = Self { seen, at: now, is_high: per_second >= u128::from(bound) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_busy_while_many_frames_come() {
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
