//! Whether a flow cache pays: it counts how many packets find their flows, takes more room or steps aside, and tries again.

/// What comes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing that the table has to know.
    GoOn,
    /// Flows push each other out.
    TakeRoom,
    /// It does not pay. It is not to be tried again before so many packets.
    StepAside(usize),
}

/// In view of what a window is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prospects {
    pub(crate) may_grow: bool,
    pub(crate) worth: Worth,
    /// Flows that are known, all of which a change of policies may make outdated.
    pub(crate) known: usize,
}

/// How much is gained by a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Hardly more than is lost by a miss.
    Little,
    /// More, but a few misses eat it up.
    Some,
    /// As much as is lost by a miss, or the cache was asked for: that it misses half of all packets never pays.
    Much,
}

/// How a cache does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    window: Window,
    /// How often it stepped aside of late.
    lapses: u32,
    /// Packets that may yet come before it is judged: an empty cache needs each flow two times.
    patience: u32,
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
const ENOUGH: u32 = 99;
/// Of so many packets one pushes another flow out when there is too little room.
const CROWDED: u32 = 256;
/// For so many packets it does not look out when it stepped aside a second time, longer and longer from then on.
const SITS_OUT: usize = 1 << 18;
const MOST_LAPSES: u32 = 8;
/// A key manager changes the policies of a tunnel one by one: so many times all flows may be outdated after a long quiet.
const FORGIVEN: u32 = 2;

impl Pace {
    /// That of a cache that so many flows at the most have yet to fill, or to find outdated.
    pub(crate) fn refill(&mut self, flows: usize) {
        let credit = count(flows).max(4 * WINDOW);
        *self = Self { patience: patience(flows), credit, lapses: self.lapses, ..Self::default() };
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
    pub(crate) fn decide(&mut self, prospects: Prospects) -> Decision {
        let Prospects { may_grow, worth, .. } = prospects;
        let window = std::mem::take(&mut self.window);
        self.patience = self.patience.saturating_sub(window.asked);
        let forgiven = self.forgive(window, prospects);
        if window.share(window.outdated - forgiven) > worth.may_miss() {
            // However long it takes to fill, what it holds does not last.
            return self.step_aside();
        }
        let percent = window.share(window.found + forgiven);
        if self.patience > 0 {
            return Decision::GoOn;
        }
        if percent < ENOUGH && may_grow && window.evicted > window.asked / CROWDED {
            return Decision::TakeRoom;
        }
        if percent < worth.leave() {
            return self.step_aside();
        }
        self.lapses = self.lapses.saturating_sub(1);
        Decision::GoOn
    }

    /// How many outdated packets are not held against it. It may lose as many of all as it may miss, but those after a change come all at once.
    fn forgive(&mut self, window: Window, prospects: Prospects) -> u32 {
        let most = count(prospects.known).saturating_mul(FORGIVEN).saturating_add(4 * WINDOW);
        let earned = window.found.saturating_mul(prospects.worth.may_miss()) / 100;
        self.credit = self.credit.saturating_add(earned).min(most);
        let forgiven = window.outdated.min(self.credit);
        self.credit -= forgiven;
        forgiven
    }

    fn step_aside(&mut self) -> Decision {
        let out = if self.lapses == 0 { 0 } else { SITS_OUT << self.lapses };
        self.lapses = (self.lapses + 1).min(MOST_LAPSES);
        Decision::StepAside(out)
    }
}

impl Window {
    /// So many of its packets, of a hundred.
    fn share(self, packets: u32) -> u32 {
        packets * 100 / self.asked.max(1)
    }
}

impl Worth {
    /// Below how many hits of a hundred packets it steps aside.
    const fn leave(self) -> u32 {
        match self {
            Self::Much => 50,
            Self::Some => 75,
            Self::Little => 90,
        }
    }

    /// How many of a hundred packets may find nothing that holds.
    const fn may_miss(self) -> u32 {
        100 - self.leave()
    }

    /// Of how many of a hundred packets the flows must have come before, for it to come back.
    pub(crate) const fn come(self) -> u32 {
        match self {
            Self::Much => 60,
            Self::Some => 80,
            Self::Little => 85,
        }
    }
}

/// Packets until a cache that so many flows fill is as full as it will be. In a small one that takes longer: more flows than it holds keep each other
/// out for a while, and only once it is full is it seen that they push each other out.
fn patience(flows: usize) -> u32 {
    count(flows).saturating_mul(3).max(4 * WINDOW)
}

#[inline]
fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROSPECTS: Prospects = Prospects { may_grow: true, worth: Worth::Some, known: 2048 };

    /// What is decided after a window in which so many packets found their flows, and found them outdated.
    fn window(pace: &mut Pace, found: usize, outdated: usize, known: usize) -> Decision {
        (0..outdated).for_each(|_| pace.note_outdated());
        assert!(pace.note(4096, found, 0));
        pace.decide(Prospects { known, ..PROSPECTS })
    }

    #[test]
    fn a_small_cache_is_judged_once_it_is_full_and_takes_room_for_flows_in_turn() {
        let mut pace = Pace::default();
        pace.refill(2048);
        // Twice as many flows as it has room for, in turn: their first packets, their second ones, and then they push each other out.
        for (found, evicted) in [(0, 0), (0, 0), (1500, 1400)] {
            assert!(pace.note(4096, found, evicted));
            assert_eq!(pace.decide(PROSPECTS), Decision::GoOn);
        }
        assert!(pace.note(4096, 1700, 800));
        assert_eq!(pace.decide(PROSPECTS), Decision::TakeRoom);
    }

    #[test]
    fn flows_that_do_not_come_again_are_done_without() {
        let mut pace = Pace::default();
        pace.refill(2048);
        let decisions = [(); 4].map(|()| {
            pace.note(4096, 0, 0);
            pace.decide(PROSPECTS)
        });
        assert_eq!(decisions[..3], [Decision::GoOn; 3]);
        assert!(matches!(decisions[3], Decision::StepAside(_)));
    }

    #[test]
    fn what_a_rare_change_made_outdated_is_forgiven_and_what_many_did_is_not() {
        let mut pace = Pace::default();
        pace.refill(16_384);
        let quiet = |pace: &mut Pace| {
            assert!((0..100).all(|_| window(pace, 4096, 0, 16_384) == Decision::GoOn));
        };
        let changes = |pace: &mut Pace, most: u32| {
            (0..most).position(|_| window(pace, 0, 4096, 16_384) != Decision::GoOn)
        };
        for _ in 0..3 {
            // Two policies of a tunnel, one by one.
            quiet(&mut pace);
            assert_eq!(changes(&mut pace, 8), None);
        }
        quiet(&mut pace);
        assert_eq!(changes(&mut pace, 100), Some(12));
    }

    #[test]
    fn a_cache_that_fills_is_not_waited_for_while_what_it_holds_does_not_last() {
        let mut pace = Pace::default();
        pace.refill(1 << 15);
        let decisions: Vec<_> = (0..9).map(|_| window(&mut pace, 0, 4096, 1 << 15)).collect();
        assert_eq!(decisions[..8], [Decision::GoOn; 8]);
        assert_eq!(decisions[8], Decision::StepAside(0), "a whole room of flows was outdated");
    }
}
