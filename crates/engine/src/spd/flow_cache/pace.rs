//! Whether a flow cache pays: it counts how many packets find their flows, takes more room or steps aside, and tries again.

/// What comes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nothing that the table has to know.
    GoOn,
    /// More room may help.
    TakeRoom,
}

/// How much is gained by a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worth {
    /// Hardly more than is lost by a miss.
    Little,
    /// Much more.
    Much,
    /// Whatever it is, the cache was asked for.
    Asked,
}

/// Decided anew after every window.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    aside: bool,
    asked: u32,
    found: u32,
    /// Look-ups that passed by.
    passed: u32,
    /// Packets that pass by before it is even tried again, longer with each time that this was in vain.
    sits_out: u32,
    lapses: u32,
    /// Packets that may yet come before it is judged: an empty cache needs each flow two times.
    patience: u32,
}

/// Packets between two decisions.
const WINDOW: u32 = 4096;
/// Hits of a hundred packets with which it takes no more room.
const ENOUGH: u32 = 95;
/// Of so many look-ups one asks the cache when it stands aside.
const SAMPLE: u32 = 32;
/// For so many packets at first it does not ask at all.
const SITS_OUT: u32 = 1 << 18;

impl Pace {
    /// That of a cache that has just got this much room, and is empty.
    pub(crate) fn of_room(room: usize) -> Self {
        Self { patience: patience(room), ..Self::default() }
    }

    /// Whether most look-ups go past the cache.
    pub(crate) const fn stands_aside(&self) -> bool {
        self.aside
    }

    /// Whether this look-up goes past the cache.
    #[inline]
    pub(crate) fn is_aside(&mut self, packets: usize) -> bool {
        if !self.aside {
            return false;
        }
        if self.sits_out > 0 {
            self.sits_out = self.sits_out.saturating_sub(u32::try_from(packets).unwrap_or(0));
            return true;
        }
        self.passed = self.passed.wrapping_add(1);
        !self.passed.is_multiple_of(SAMPLE)
    }

    /// Counts some packets, and how many of them found their flows; true when there is something to [decide](Self::decide).
    #[inline]
    pub(crate) fn note(&mut self, asked: usize, found: usize) -> bool {
        self.asked += u32::try_from(asked).unwrap_or(0);
        self.found += u32::try_from(found).unwrap_or(0);
        self.asked >= if self.aside { WINDOW / 4 } else { WINDOW }
    }

    /// What is to be done after a window, with this much room, of `most` that there may be.
    pub(crate) fn decide(&mut self, room: usize, most: usize, worth: Worth) -> Decision {
        self.patience = self.patience.saturating_sub(self.asked);
        let percent = self.found * 100 / self.asked.max(1);
        (self.asked, self.found) = (0, 0);
        let (leave, come) = limits(worth);
        match (self.aside, self.patience) {
            (true, _) if percent >= come => {
                (self.aside, self.patience) = (false, patience(room));
            }
            (false, 0) if percent < ENOUGH && room < most => return Decision::TakeRoom,
            (false, 0) if percent < leave => {
                self.aside = true;
                self.sits_out = SITS_OUT << self.lapses;
                self.lapses = (self.lapses + 1).min(8);
            }
            (false, 0) => self.lapses = self.lapses.saturating_sub(1),
            (true | false, _) => {}
        }
        Decision::GoOn
    }
}

/// Below how many hits of a hundred packets it steps aside, and above how many it comes back.
const fn limits(worth: Worth) -> (u32, u32) {
    match worth {
        Worth::Asked => (10, 20),
        Worth::Much => (50, 60),
        Worth::Little => (90, 95),
    }
}

/// Packets until a cache with that much room is as full as it will be.
fn patience(room: usize) -> u32 {
    u32::try_from(room).unwrap_or(u32::MAX).saturating_mul(3)
}
