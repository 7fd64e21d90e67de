//! Estimates how long frames waited: a ring has no timestamps, but each look shows which frames are
//! there.

use std::collections::VecDeque;
use std::time::Duration;

/// Ring positions up to which frames had arrived, with times in nanoseconds. Positions wrap.
#[derive(Debug, Default)]
pub(super) struct ArrivalTimes {
    looks: VecDeque<(u32, u64)>,
    waited: Duration,
}

impl ArrivalTimes {
    /// Records at time `now` that the frames from `read` up to `written` are there.
    pub(super) fn record(&mut self, read: u32, written: u32, now: u64) {
        while self.looks.front().is_some_and(|(before, _)| !is_after(*before, read)) {
            self.looks.pop_front();
        }
        if read == written {
            return;
        }
        let first = self.looks.front().map_or(now, |(_, at)| *at);
        self.waited = Duration::from_nanos(now.saturating_sub(first));
        if self.looks.back().is_none_or(|(before, _)| is_after(written, *before)) {
            self.looks.push_back((written, now));
        }
    }

    /// Least waiting time of the first frame of the last look that found any.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }
}

fn is_after(position: u32, other: u32) -> bool {
    position.wrapping_sub(other).cast_signed() > 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frame_seen_earlier_has_waited_since() {
        let mut arrival_times = ArrivalTimes::default();
        let mut waited = |read, written, now| {
            arrival_times.record(read, written, now);
            arrival_times.waited().as_nanos()
        };
        let start = u32::MAX - 1;
        let at = |frames: u32| start.wrapping_add(frames);
        assert_eq!(waited(at(0), at(0), 100), 0);
        assert_eq!(waited(at(0), at(3), 200), 0, "just come, for all we know");
        assert_eq!(waited(at(2), at(4), 300), 100, "the third was there at 200");
        assert_eq!(waited(at(3), at(4), 450), 150, "the fourth at 300");
        assert_eq!(waited(at(4), at(4), 500), 150, "none: as before");
        assert_eq!(waited(at(4), at(9), 600), 0);
    }

    proptest! {
        /// Compares with exact arrival times.
        #[test]
        fn waiting_time_is_at_least_since_first_seen(
            steps in prop::collection::vec((0..5_u32, 0..5_u32, 1..9_u64), 0..200),
        ) {
            let start = u32::MAX - 20;
            let (mut arrival_times, mut seen) = (ArrivalTimes::default(), VecDeque::new());
            let (mut read, mut now, mut waited) = (start, 0, 0);
            for (come, taken, passed) in steps {
                now += passed;
                seen.extend((0..come).map(|_| now));
                let written = read.wrapping_add(u32::try_from(seen.len()).unwrap());
                arrival_times.record(read, written, now);
                waited = seen.front().map_or(waited, |at| now - at);
                prop_assert_eq!(u64::try_from(arrival_times.waited().as_nanos()).unwrap(), waited);
                let taken = taken.min(u32::try_from(seen.len()).unwrap());
                seen.drain(..taken as usize);
                read = read.wrapping_add(taken);
            }
            prop_assert!(arrival_times.looks.len() <= 200);
        }
    }
}
