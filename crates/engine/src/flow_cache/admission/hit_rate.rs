//! Judges a flow cache by its hit rate over windows of packets: keep, grow or bypass it.

/// Decision after a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Keep the table.
    Continue,
    /// Grow: flows evict each other.
    Grow,
    /// Bypass: the cache does not pay. No sampling for this many packets.
    Bypass(usize),
}

/// What a window is judged by, besides its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowContext {
    pub(crate) may_grow: bool,
    pub(crate) worth: HitBenefit,
    /// Cached flows, all of which a policy change may invalidate.
    pub(crate) known: usize,
}

/// Benefit of a hit, compared with the loss of a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HitBenefit {
    /// Hardly more than a miss loses.
    Little,
    /// More, but offset by a few misses.
    Some,
    /// As much as a miss loses, or the cache was requested; a hit rate below half never pays.
    Much,
}

/// Hit rate of a cache, with its history.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HitRateWindow {
    window: Window,
    /// Recent number of bypasses.
    bypasses: u32,
    /// Packets of grace before it is judged: an empty cache needs each flow twice.
    grace: u32,
    /// Budget of stale packets that do not count against it, earned by hits.
    credit: u32,
}

/// Counts since the last decision.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    asked: u32,
    found: u32,
    /// Packets whose verdict was stale.
    outdated: u32,
    evicted: u32,
}

/// Packets per window.
const WINDOW: u32 = 4096;
/// Hit rate in percent above which it does not grow.
const ENOUGH_HITS: u32 = 99;
/// One eviction in this many packets means too little room.
const CROWDED_EVICTIONS: u32 = 256;
/// Packets without sampling after a second bypass; doubles with each further one.
const BACK_OFF: usize = 1 << 18;
const MAX_BYPASSES: u32 = 8;
/// Number of times that all flows may become stale after a long quiet: a key manager changes a
/// tunnel's policies one by one.
const FORGIVEN_FLUSHES: u32 = 2;

impl HitRateWindow {
    /// Starts over with a cache that up to `flows` flows have yet to fill, or to find stale.
    pub(crate) fn refill(&mut self, flows: usize) {
        let credit = count(flows).max(4 * WINDOW);
        *self = Self { grace: grace(flows), credit, bypasses: self.bypasses, ..Self::default() };
    }

    /// Counts packets, hits and evictions; true when it is time to [decide](Self::decide).
    #[inline]
    pub(crate) fn note(&mut self, asked: usize, found: usize, evicted: usize) -> bool {
        self.window.asked += count(asked);
        self.window.found += count(found);
        self.window.evicted += count(evicted);
        self.window.asked >= WINDOW
    }

    /// Counts a stale packet among those [noted](Self::note).
    #[inline]
    pub(crate) fn note_outdated(&mut self) {
        self.window.outdated += 1;
    }

    /// Decides after a window.
    pub(crate) fn decide(&mut self, prospects: WindowContext) -> Decision {
        let WindowContext { may_grow, worth, .. } = prospects;
        let window = std::mem::take(&mut self.window);
        self.grace = self.grace.saturating_sub(window.asked);
        let forgiven = self.forgive_outdated(window, prospects);
        if window.share(window.outdated - forgiven) > worth.max_misses() {
            // No grace: what it holds does not last.
            return self.bypass_for();
        }
        let percent = window.share(window.found + forgiven);
        if self.grace > 0 {
            return Decision::Continue;
        }
        if percent < ENOUGH_HITS && may_grow && window.evicted > window.asked / CROWDED_EVICTIONS {
            return Decision::Grow;
        }
        if percent < worth.bypass_below() {
            return self.bypass_for();
        }
        self.bypasses = self.bypasses.saturating_sub(1);
        Decision::Continue
    }

    /// Number of stale packets forgiven. The cache may lose as many as it may miss, but those after
    /// a change come all at once.
    fn forgive_outdated(&mut self, window: Window, prospects: WindowContext) -> u32 {
        let most =
            count(prospects.known).saturating_mul(FORGIVEN_FLUSHES).saturating_add(4 * WINDOW);
        let earned = window.found.saturating_mul(prospects.worth.max_misses()) / 100;
        self.credit = self.credit.saturating_add(earned).min(most);
        let forgiven = window.outdated.min(self.credit);
        self.credit -= forgiven;
        forgiven
    }

    fn bypass_for(&mut self) -> Decision {
        let out = if self.bypasses == 0 { 0 } else { BACK_OFF << self.bypasses };
        self.bypasses = (self.bypasses + 1).min(MAX_BYPASSES);
        Decision::Bypass(out)
    }
}

impl Window {
    /// Percentage of the window's packets.
    fn share(self, packets: u32) -> u32 {
        packets * 100 / self.asked.max(1)
    }
}

impl HitBenefit {
    /// Hit rate in percent below which it is bypassed.
    const fn bypass_below(self) -> u32 {
        match self {
            Self::Much => 50,
            Self::Some => 75,
            Self::Little => 90,
        }
    }

    /// Percentage of packets that may miss.
    const fn max_misses(self) -> u32 {
        100 - self.bypass_below()
    }

    /// Percentage of sampled packets that must recur before it is used again.
    pub(crate) const fn resume_above(self) -> u32 {
        match self {
            Self::Much => 60,
            Self::Some => 80,
            Self::Little => 85,
        }
    }
}

/// Packets until a cache for `flows` flows is full. A small one takes longer: flows that do not fit
/// keep each other out at first, and only then are evictions seen.
fn grace(flows: usize) -> u32 {
    count(flows).saturating_mul(3).max(4 * WINDOW)
}

#[inline]
fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROSPECTS: WindowContext =
        WindowContext { may_grow: true, worth: HitBenefit::Some, known: 2048 };

    /// What is decided after a window in which so many packets found their flows, and found them
    /// outdated.
    fn window(
        hit_rate: &mut HitRateWindow,
        found: usize,
        outdated: usize,
        known: usize,
    ) -> Decision {
        (0..outdated).for_each(|_| hit_rate.note_outdated());
        assert!(hit_rate.note(4096, found, 0));
        hit_rate.decide(WindowContext { known, ..PROSPECTS })
    }

    #[test]
    fn hit_rate_small_full_cache_with_evictions_grows() {
        let mut hit_rate = HitRateWindow::default();
        hit_rate.refill(2048);
        // Twice as many flows as it has room for, in turn: their first packets, their second ones,
        // and then they push each other out.
        for (found, evicted) in [(0, 0), (0, 0), (1500, 1400)] {
            assert!(hit_rate.note(4096, found, evicted));
            assert_eq!(hit_rate.decide(PROSPECTS), Decision::Continue);
        }
        assert!(hit_rate.note(4096, 1700, 800));
        assert_eq!(hit_rate.decide(PROSPECTS), Decision::Grow);
    }

    #[test]
    fn hit_rate_without_reuse_bypasses() {
        let mut hit_rate = HitRateWindow::default();
        hit_rate.refill(2048);
        let decisions = [(); 4].map(|()| {
            hit_rate.note(4096, 0, 0);
            hit_rate.decide(PROSPECTS)
        });
        assert_eq!(decisions[..3], [Decision::Continue; 3]);
        assert!(matches!(decisions[3], Decision::Bypass(_)));
    }

    #[test]
    fn hit_rate_stale_flows_forgiven_after_rare_changes_only() {
        let mut hit_rate = HitRateWindow::default();
        hit_rate.refill(16_384);
        let quiet = |hit_rate: &mut HitRateWindow| {
            assert!((0..100).all(|_| window(hit_rate, 4096, 0, 16_384) == Decision::Continue));
        };
        let changes = |hit_rate: &mut HitRateWindow, most: u32| {
            (0..most).position(|_| window(hit_rate, 0, 4096, 16_384) != Decision::Continue)
        };
        for _ in 0..3 {
            // Two policies of a tunnel, one by one.
            quiet(&mut hit_rate);
            assert_eq!(changes(&mut hit_rate, 8), None);
        }
        quiet(&mut hit_rate);
        assert_eq!(changes(&mut hit_rate, 100), Some(12));
    }

    #[test]
    fn hit_rate_grace_ends_when_entries_do_not_last() {
        let mut hit_rate = HitRateWindow::default();
        hit_rate.refill(1 << 15);
        let decisions: Vec<_> = (0..9).map(|_| window(&mut hit_rate, 0, 4096, 1 << 15)).collect();
        assert_eq!(decisions[..8], [Decision::Continue; 8]);
        assert_eq!(decisions[8], Decision::Bypass(0), "a whole room of flows was outdated");
    }
}
