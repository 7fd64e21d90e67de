//! Whether a client asks again as soon as it has its answer, as `ip -batch` does: then its next
//! request is waited for awake, a moment long. Going to sleep and being woken costs both ends more
//! than a request.
//!
//! Nobody is waited for who did not just do so, so that a gateway without such clients costs
//! nothing; nor where there is but one processor, which the client needs to ask; nor for a while
//! after it was in vain twice in a row, which gets longer each time more: on a machine with more to
//! do than it has processors it mostly is.

use std::time::{Duration, Instant};

use crate::protocol::ClientId;

/// From an answer to the next request, with both ends woken in between: who takes longer is not
/// waited for.
const QUICK: Duration = Duration::from_micros(500);

/// How long a quick client is waited for: longer than it takes a virtual machine to wake an idle
/// processor.
pub(crate) const PATIENCE: Duration = Duration::from_micros(200);

/// The most requests that are slept for at a time.
const MOST_SLEPT: u32 = 64;

/// When whom was last answered.
#[derive(Debug)]
pub(crate) struct FollowUp {
    answered: Option<(ClientId, Instant)>,
    several_processors: bool,
    /// How many quick requests are left to sleep for.
    tired: u32,
    /// How many there will be after the next one that does not come in time.
    next: u32,
}

impl FollowUp {
    /// Nobody was answered yet.
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { answered: None, several_processors: processors > 1, tired: 0, next: 0 }
    }

    /// A client's requests were taken at `heard` and answered now; whether it is worth waiting for
    /// the next one.
    pub(crate) fn note(&mut self, client: ClientId, heard: Instant, now: Instant) -> bool {
        let before = self.answered.replace((client, now));
        let is_quick = |(last, answered): (ClientId, Instant)| {
            last == client && heard.saturating_duration_since(answered) < QUICK
        };
        let rested = self.tired == 0;
        self.tired = self.tired.saturating_sub(1);
        self.several_processors && rested && before.is_some_and(is_quick)
    }

    /// A client was waited for in vain.
    pub(crate) fn pause_waiting(&mut self) {
        self.tired = self.next;
        self.next = (2 * self.next).clamp(1, MOST_SLEPT);
    }

    /// A client came in time.
    pub(crate) fn rest(&mut self) {
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_poll_waits_only_for_immediate_follow_ups() {
        let start = Instant::now();
        let at = |micros| start + Duration::from_micros(micros);
        let mut follow_up =
            FollowUp { answered: None, several_processors: true, tired: 0, next: 0 };
        let (one, other) = (ClientId(1), ClientId(2));
        assert!(!follow_up.note(one, at(0), at(10)), "its first request");
        assert!(follow_up.note(one, at(100), at(110)));
        assert!(!follow_up.note(other, at(120), at(130)));
        assert!(!follow_up.note(one, at(140), at(150)), "another one was heard in between");
        assert!(!follow_up.note(one, at(700), at(710)), "it took its time");
        follow_up.several_processors = false;
        assert!(!follow_up.note(one, at(720), at(730)));
        follow_up.several_processors = true;
        let mut asks = (74_u64..).map(at);
        let mut sleeps = |follow_up: &mut FollowUp| {
            asks.by_ref().take_while(|at| !follow_up.note(one, *at, *at)).count()
        };
        for slept in [0, 1, 2, 4, 8, 16, 32, 64, 64] {
            follow_up.pause_waiting();
            assert_eq!(sleeps(&mut follow_up), slept);
        }
        follow_up.rest();
        for slept in [0, 1] {
            follow_up.pause_waiting();
            assert_eq!(sleeps(&mut follow_up), slept);
        }
    }
}
