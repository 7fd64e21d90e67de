//! Numbers that may have been received: for each state an edge above which it accepts nothing,
//! which is moved ahead of use.
//!
//! A crash of the machine costs what lies between the highest number and the edge, as packets up to
//! it are refused then. So the edge is about a second ahead at the rate at which numbers come, four
//! at a rate that rises, and is drawn back where that was more than now. A state that has received
//! nothing yet has [`FIRST_RESERVED`], as its peer may begin at full rate; one that was fast keeps
//! as much, as it may come in bursts.

use std::time::Duration;

use uxfrm_engine::{FIRST_RESERVED, Moment, ReplayWindow, Sa};

use super::{sa_name::SaName, witness::Left};

/// What is reserved ahead at the most.
pub(super) const MOST_AHEAD: u64 = 1 << 22;
/// What is reserved ahead at the least, of a state that was never faster.
pub(super) const LEAST_AHEAD: u64 = 1 << 11;
/// How many seconds are reserved ahead at a rate that has more than doubled, and so may rise on.
const RISING: u64 = 4;
/// At its first look a state may have received all it did within a twentieth of a second.
const YOUNG: u64 = 20;
/// The shortest time that tells a rate.
const SHORTEST: Duration = Duration::from_millis(1);
/// So long a reservation stays that is larger than the rate asks for.
const QUIET: Duration = Duration::from_secs(10);

/// Numbers that a state may have received before this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedBefore {
    /// It received this one.
    pub(super) from: u64,
    /// It may have received all up to this one.
    pub(super) edge: u64,
}

impl ReceivedBefore {
    /// Of a state that was never in force.
    pub(super) const fn unused(self) -> Self {
        Self { edge: self.from, ..self }
    }

    /// What is known where the last run left something. A witness that has all knows of each state
    /// that received anything.
    pub(super) fn settled(self, state: SaName, left: &Left) -> Self {
        let Self { from, edge } = self;
        let exact = match left.heads.get(&state.digest()) {
            Some(head) => from.max(*head),
            None if left.is_complete => from,
            None => edge,
        };
        Self { from: exact, edge: exact }
    }
}

/// The rate at which a state's numbers arrive.
#[derive(Clone, Copy, Debug)]
pub(super) struct NumberRate {
    head: u64,
    at: Moment,
    /// Numbers a second, when it was looked at last.
    rate: u64,
    /// The highest rate so far; `None` where nothing was received yet.
    peak: Option<u64>,
    /// Until when nothing is drawn back.
    quiet: Moment,
    /// The edge was drawn back to there, and the journal does not say so yet.
    drawn_back: Option<u64>,
}

/// A new edge of a state for the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdgeMove {
    /// It may accept no more before this is on the disk.
    Ahead(u64),
    /// It accepts no more already.
    Back(u64),
}

impl NumberRate {
    pub(super) fn new(sa: &Sa, now: Moment) -> Self {
        let head = sa.highest_received();
        Self { head, at: now, rate: 0, peak: None, quiet: now.plus(QUIET), drawn_back: None }
    }

    /// The same, that is in use and known to be so fast.
    pub(super) const fn at_rate(self, rate: u64) -> Self {
        Self { rate, peak: Some(rate), ..self }
    }

    /// The same of a state that came a moment ago, and began at `start`.
    pub(super) fn since(self, start: u64) -> Self {
        match self.head.saturating_sub(start) {
            0 => self,
            some => self.at_rate(some.saturating_mul(YOUNG)),
        }
    }

    /// Numbers a second, when it was looked at last.
    pub(super) const fn rate(&self) -> u64 {
        self.rate
    }

    /// Looks how far a window is: what is to be written down, if anything is.
    pub(super) fn look(&mut self, window: &ReplayWindow, now: Moment) -> Option<EdgeMove> {
        let (head, edge, before) = (window.wanted(), window.reserved(), self.rate);
        self.measure(head, now);
        let rises = self.rate / 2 > before;
        let rate = if rises { self.rate.saturating_mul(RISING) } else { self.rate };
        let ahead = rate.clamp(self.least(), MOST_AHEAD);
        if let Some(back) = self.drawn_back.take().filter(|back| *back == edge && head <= *back) {
            return Some(EdgeMove::Back(back));
        }
        let left = edge.saturating_sub(head);
        if left < ahead / 2 {
            self.quiet = now.plus(QUIET);
            return Some(EdgeMove::Ahead(head.saturating_add(ahead)));
        }
        if left > 2 * ahead && now >= self.quiet {
            // Workers that have read the old edge may pass it yet: the journal waits for the next
            // look.
            let back = head.saturating_add(ahead);
            window.reserve(back);
            (self.drawn_back, self.quiet) = (Some(back), now.plus(QUIET));
        }
        window.raise_edge();
        None
    }

    /// What is reserved ahead at the least: a peer that was fast may be so again at once, and
    /// nobody knows of one that has yet to begin.
    fn least(&self) -> u64 {
        self.peak.map_or(FIRST_RESERVED, |peak| peak.clamp(LEAST_AHEAD, FIRST_RESERVED))
    }

    fn measure(&mut self, head: u64, now: Moment) {
        let (numbers, time) = (head.saturating_sub(self.head), now.since(self.at));
        if numbers > 0 {
            self.peak.get_or_insert(0);
        }
        if time < SHORTEST {
            return;
        }
        let rate = u128::from(numbers) * 1_000_000_000 / time.as_nanos();
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        // Up at once, down by halves: a pause of a moment is no change of rate.
        self.rate = rate.max(self.rate / 2);
        self.peak = self.peak.map(|peak| peak.max(self.rate));
        (self.head, self.at) = (head, now);
    }
}
