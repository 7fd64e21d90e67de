//! Whether a flow cache pays: it counts how many packets find their flows, takes more room or steps aside, and tries again.

/// What comes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing that the table has to know.
    Continue,
    /// Flows push each other out.
    Grow,
    /// It does not pay. It is not to be tried again before so many packets.
    Bypass(usize),
}

/// In view of what a window is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowContext {
    pub(crate) may_grow: bool,
    pub(crate) worth: HitBenefit,
    /// Flows that are known, all of which a change of policies may make outdated.
    pub(crate) known: usize,
}

/// How much is gained by a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HitBenefit {
    /// Hardly more than is lost by a miss.
    Little,
    /// More, but a few misses eat it up.
    Some,
    /// As much as is lost by a miss, or the cache was asked for: that it misses half of all packets never pays.
    Much,
}

/// How a cache does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HitRateWindow {
    window: Window,
    /// How often it stepped aside of late.
    bypasses: u32,
    /// Packets that may yet come before it is judged: an empty cache needs each flow two times.
    grace: u32,
    /// Outdated packets that are not held against it: what its hits have left it to lose.
    credit: u32,
}

/// What packets found, since the last decision.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    asked: u32,
    found: u32,
    /// Packets whose flows were known, but under other policies.
    outdated: u32,
    evicted: u32,
}

/// Packets between two decisions.
const WINDOW: u32 = 4096;
/// Hits of a hundred packets with which it takes no more room.
const ENOUGH_HITS: u32 = 99;
/// Of so many packets one pushes another flow out when there is too little room.
const CROWDED_EVICTIONS: u32 = 256;
/// For so many packets it does not look out when it stepped aside a second time, longer and longer from then on.
const BACK_OFF: usize = 1 << 18;
const MAX_BYPASSES: u32 = 8;
/// A key manager changes the policies of a tunnel one by one: so many times all flows may be outdated after a long quiet.
const FORGIVEN_FLUSHES: u32 = 2;

impl HitRateWindow {
    /// That of a cache that so many flows at the most have yet to fill, or to find outdated.
    pub(crate) fn refill(&mut self, flows: usize) {
        let credit = count(flows).max(4 * WINDOW);
        *self = Self { grace: grace(flows), credit, bypasses: self.bypasses, ..Self::default() };
    }

    /// Counts some packets, how many of them found their flows, and how many pushed others out; true when there is something to
    /// [decide](Self::decide).
    #[inline]
    pub(crate) fn note(&mut self, asked: usize, found: usize, evicted: usize) -> bool {
        self.window.asked += count(asked);
        self.window.found += count(found);
        self.window.evicted += count(evicted);
        self.window.asked >= WINDOW
    }

    /// Counts a packet, of those that are [noted](Self::note), whose flow was known under other policies.
    #[inline]
    pub(crate) fn note_outdated(&mut self) {
        self.window.outdated += 1;
    }

    /// What is to be done after a window.
    pub(crate) fn decide(&mut self, prospects: WindowContext) -> Decision {
        let WindowContext { may_grow, worth, .. } = prospects;
        let window = std::mem::take(&mut self.window);
        self.grace = self.grace.saturating_sub(window.asked);
        let forgiven = self.forgive_outdated(window, prospects);
        if window.share(window.outdated - forgiven) > worth.max_misses() {
            // However long it takes to fill, what it holds does not last.
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

    /// How many outdated packets are not held against it. It may lose as many of all as it may miss, but those after a change come all at once.
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
    /// So many of its packets, of a hundred.
    fn share(self, packets: u32) -> u32 {
        packets * 100 / self.asked.max(1)
    }
}

impl HitBenefit {
    /// Below how many hits of a hundred packets it steps aside.
    const fn bypass_below(self) -> u32 {
        match self {
            Self::Much => 50,
            Self::Some => 75,
            Self::Little => 90,
        }
    }

    /// How many of a hundred packets may find nothing that holds.
    const fn max_misses(self) -> u32 {
        100 - self.bypass_below()
    }

    /// Of how many of a hundred packets the flows must have come before, for it to come back.
    pub(crate) const fn resume_above(self) -> u32 {
        match self {
            Self::Much => 60,
            Self::Some => 80,
            Self::Little => 85,
        }
    }
}

/// Packets until a cache that so many flows fill is as full as it will be. In a small one that takes longer: more flows than it holds keep each other
/// out for a while, and only once it is full is it seen that they push each other out.
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

    /// What is decided after a window in which so many packets found their flows, and found them outdated.
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
    fn a_small_cache_is_judged_once_it_is_full_and_takes_room_for_flows_in_turn() {
        let mut hit_rate = HitRateWindow::default();
        hit_rate.refill(2048);
        // Twice as many flows as it has room for, in turn: their first packets, their second ones, and then they push each other out.
        for (found, evicted) in [(0, 0), (0, 0), (1500, 1400)] {
            assert!(hit_rate.note(4096, found, evicted));
            assert_eq!(hit_rate.decide(PROSPECTS), Decision::Continue);
        }
        assert!(hit_rate.note(4096, 1700, 800));
        assert_eq!(hit_rate.decide(PROSPECTS), Decision::Grow);
    }

    #[test]
    fn flows_that_do_not_come_again_are_done_without() {
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
    fn what_a_rare_change_made_outdated_is_forgiven_and_what_many_did_is_not() {
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
    fn a_cache_that_fills_is_not_waited_for_while_what_it_holds_does_not_last() {
        let mut hit_rate = HitRateWindow::default();
        hit_rate.refill(1 << 15);
        let decisions: Vec<_> = (0..9).map(|_| window(&mut hit_rate, 0, 4096, 1 << 15)).collect();
        assert_eq!(decisions[..8], [Decision::Continue; 8]);
        assert_eq!(decisions[8], Decision::Bypass(0), "a whole room of flows was outdated");
    }
}
