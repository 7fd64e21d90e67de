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

/// What packets found, since the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    asked: u32,
    found: u32,
    evicted: u32,
    /// How often it stepped aside of late.
    lapses: u32,
    /// Packets that may yet come before it is judged: an empty cache needs each flow two times.
    patience: u32,
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

impl Pace {
    /// That of a cache that so many flows at the most have yet to fill.
    pub(crate) fn refill(&mut self, flows: usize) {
        *self = Self { patience: patience(flows), lapses: self.lapses, ..Self::default() };
    }

    /// Counts some packets, how many of them found their flows, and how many pushed others out; true when there is something to
    /// [decide](Self::decide).
    #[inline]
    pub(crate) fn note(&mut self, asked: usize, found: usize, evicted: usize) -> bool {
        self.asked += u32::try_from(asked).unwrap_or(0);
        self.found += u32::try_from(found).unwrap_or(0);
        self.evicted += u32::try_from(evicted).unwrap_or(0);
        self.asked >= WINDOW
    }

    /// What is to be done after a window, when there may be more room or not.
    pub(crate) fn decide(&mut self, may_grow: bool, worth: Worth) -> Decision {
        let Self { asked, found, evicted, .. } = *self;
        self.patience = self.patience.saturating_sub(asked);
        (self.asked, self.found, self.evicted) = (0, 0, 0);
        let percent = found * 100 / asked.max(1);
        if self.patience > 0 {
            return Decision::GoOn;
        }
        if percent < ENOUGH && may_grow && evicted > asked / CROWDED {
            return Decision::TakeRoom;
        }
        if percent >= worth.leave() {
            self.lapses = self.lapses.saturating_sub(1);
            return Decision::GoOn;
        }
        let out = if self.lapses == 0 { 0 } else { SITS_OUT << self.lapses };
        self.lapses = (self.lapses + 1).min(MOST_LAPSES);
        Decision::StepAside(out)
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
    u32::try_from(flows).unwrap_or(u32::MAX).saturating_mul(3).max(4 * WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_cache_is_judged_once_it_is_full_and_takes_room_for_flows_in_turn() {
        let mut pace = Pace::default();
        pace.refill(2048);
        // Twice as many flows as it has room for, in turn: their first packets, their second ones, and then they push each other out.
        for (found, evicted) in [(0, 0), (0, 0), (1500, 1400)] {
            assert!(pace.note(4096, found, evicted));
            assert_eq!(pace.decide(true, Worth::Some), Decision::GoOn);
        }
        assert!(pace.note(4096, 1700, 800));
        assert_eq!(pace.decide(true, Worth::Some), Decision::TakeRoom);
    }

    #[test]
    fn flows_that_do_not_come_again_are_done_without() {
        let mut pace = Pace::default();
        pace.refill(2048);
        let decisions = [(); 4].map(|()| {
            pace.note(4096, 0, 0);
            pace.decide(true, Worth::Some)
        });
        assert_eq!(decisions[..3], [Decision::GoOn; 3]);
        assert!(matches!(decisions[3], Decision::StepAside(_)));
    }
}
