//! Records of what the guard dropped.
//!
//! The kernel counts on the guard's behalf and tells nothing of the packets. So a record says that
//! so many packets were dropped for a reason since the counters were read before, and when they
//! were read.

use std::time::Duration;

use uxfrm_engine::{DropCounts, DropReason, DropRecord, DropSubject, Moment};

use super::board::Posted;

/// How often the control thread is asked for the counters where nobody else asks.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);

/// What the guard had dropped when its counters were read last.
#[derive(Debug)]
pub(super) struct GuardDrops {
    seen: DropCounts,
    /// When the post was made that had them.
    read: Moment,
    /// When they were asked for last.
    asked: Moment,
}

impl GuardDrops {
    /// Of a gateway that has just started.
    pub(super) fn new(now: Moment) -> Self {
        Self { seen: DropCounts::default(), read: Moment(0), asked: now }
    }

    /// Whether its counters are to be asked for by now; they are, then. Where a post has said that
    /// there is no guard they are not.
    pub(super) fn take_due(&mut self, posted: &Posted, now: Moment) -> bool {
        let has_guard = posted.at == Moment(0) || posted.post.guard.is_some();
        let is_due = has_guard && now.since(self.asked.max(posted.at)) >= INTERVAL;
        if is_due {
            self.asked = now;
        }
        is_due
    }

    /// A record for each reason for which it has dropped packets since the post before.
    pub(super) fn take(&mut self, posted: &Posted) -> Vec<DropRecord> {
        let Some(counts) = posted.post.guard.as_ref().filter(|_| posted.at > self.read) else {
            return Vec::new();
        };
        let seen = std::mem::replace(&mut self.seen, counts.clone());
        self.read = posted.at;
        let more = |reason: &DropReason| counts.of(*reason).saturating_sub(seen.of(*reason));
        let records = DropReason::ALL.iter().map(|reason| record(*reason, more(reason), posted.at));
        records.filter(|record| record.packets > 0).collect()
    }
}

const fn record(reason: DropReason, packets: u64, at: Moment) -> DropRecord {
    let (subject, esp, sequence, flow, packet) = (DropSubject::NOBODY, None, None, None, None);
    DropRecord { at, reason, packets, subject, esp, sequence, flow, errno: None, packet }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::board::{Board, Post};
    use uxfrm_io::poll::Poller;

    fn dropped(reason: DropReason, packets: u64) -> Post {
        let mut counts = DropCounts::default();
        counts.add(reason, packets);
        Post { guard: Some(counts), ..Post::default() }
    }

    #[test]
    fn record_says_what_was_dropped_since_the_post_before() {
        let mut guard = GuardDrops::new(Moment(0));
        let board = Board::new(Poller::new().unwrap().waker());
        let mut told = |post: Post| {
            board.post(|| post);
            let posted = board.posted();
            let told = guard.take(&posted);
            assert!(guard.take(&posted).is_empty(), "once");
            told.iter().map(|record| (record.reason, record.packets)).collect::<Vec<_>>()
        };
        let unprotected = DropReason::InUnprotected;
        assert_eq!(told(dropped(unprotected, 0)), []);
        assert_eq!(told(dropped(unprotected, 3)), [(unprotected, 3)]);
        assert_eq!(told(dropped(unprotected, 3)), []);
        assert_eq!(told(Post::default()), [], "no guard");
        assert_eq!(told(dropped(unprotected, 10)), [(unprotected, 7)]);
    }

    #[test]
    fn counters_are_asked_for_where_there_is_a_guard_and_nobody_else_asks() {
        let mut guard = GuardDrops::new(Moment(0));
        let at = |seconds| Moment::from_secs(seconds);
        let mut unknown = Posted::default();
        assert!(!guard.take_due(&unknown, at(9)) && guard.take_due(&unknown, at(10)));
        assert!(!guard.take_due(&unknown, at(19)), "it was asked for");
        unknown.at = at(12);
        assert!(!guard.take_due(&unknown, at(100)), "there is none");
        unknown.post = dropped(DropReason::InUnprotected, 1);
        assert!(!guard.take_due(&unknown, at(21)) && guard.take_due(&unknown, at(22)));
    }
}
