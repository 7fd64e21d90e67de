//! Whether a busy device gathers: it is tried both ways in turn, and again after a while.
//!
//! A timer costs some machines less than a wake for each frame, and others more: which of them this is shows in how many frames come.

/// Who goes first and last is changed round, so that a load which grows meanwhile favours neither.
const ORDER: [Pace; 8] = {
    use Pace::{AtOnce, Gathered};
    [Gathered, AtOnce, AtOnce, Gathered, AtOnce, Gathered, Gathered, AtOnce]
};

/// For so many looks what was found holds.
const HOLDS: usize = 300;

/// One frame more for so many must come by gathering, which has each of them wait.
const FEW: u64 = 20;

/// When a device tells of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Gathered,
    AtOnce,
}

/// What was found, or as far as the trial is.
#[derive(Clone, Debug)]
pub(super) enum Trial {
    /// So many looks were had, in the order of [`ORDER`]; what came in them each way.
    Goes { looks: usize, gathered: u64, at_once: u64 },
    /// For so many looks more.
    Found { pace: Pace, looks: usize },
}

impl Trial {
    /// One that begins with the next look.
    pub(super) const fn new() -> Self {
        Self::Goes { looks: 0, gathered: 0, at_once: 0 }
    }

    /// How the device begins, when it has become busy. A trial that was broken off begins anew.
    pub(super) fn begin(&mut self) -> Pace {
        match *self {
            Self::Found { pace, .. } => pace,
            Self::Goes { .. } => {
                *self = Self::new();
                ORDER[0]
            }
        }
    }

    /// How it goes on, when so many frames per second came since the last look.
    pub(super) fn go_on(&mut self, per_second: u64) -> Pace {
        match self {
            Self::Goes { looks, gathered, at_once } => {
                match ORDER[*looks] {
                    Pace::Gathered => *gathered += per_second,
                    Pace::AtOnce => *at_once += per_second,
                }
                *looks += 1;
                if let Some(next) = ORDER.get(*looks) {
                    return *next;
                }
                let pays = *gathered > *at_once + *at_once / FEW;
                let pace = if pays { Pace::Gathered } else { Pace::AtOnce };
                tracing::debug!(gathered, at_once, ?pace, "AF_XDP: frames of a busy device");
                *self = Self::Found { pace, looks: HOLDS };
                pace
            }
            Self::Found { looks: 0, .. } => {
                *self = Self::new();
                ORDER[0]
            }
            Self::Found { pace, looks } => {
                *looks -= 1;
                *pace
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a trial finds where so many frames come each way, and the load grows or shrinks by so much with each look.
    fn found(gathered: u64, at_once: u64, growth: i64) -> Pace {
        let mut trial = Trial::new();
        let mut pace = trial.begin();
        for look in 0..8_i64 {
            assert!(matches!(trial, Trial::Goes { .. }), "after {look} looks");
            let frames = if pace == Pace::Gathered { gathered } else { at_once };
            pace = trial.go_on(frames.saturating_add_signed(look * growth));
        }
        assert!(matches!(trial, Trial::Found { .. }));
        pace
    }

    #[test]
    fn it_gathers_where_more_frames_come_so() {
        for growth in [-10_000, 0, 50_000] {
            assert_eq!(found(500_000, 400_000, growth), Pace::Gathered, "{growth}");
            assert_eq!(found(400_000, 500_000, growth), Pace::AtOnce, "{growth}");
            assert_eq!(found(410_000, 400_000, growth), Pace::AtOnce, "hardly more: {growth}");
        }
    }

    #[test]
    fn what_was_found_holds_for_a_while_and_through_quiet_times() {
        let mut trial = Trial::new();
        let mut pace = trial.begin();
        for _look in ORDER {
            pace = trial.go_on(if pace == Pace::Gathered { 200_000 } else { 100_000 });
        }
        for _look in 0..HOLDS / 2 {
            assert_eq!(trial.go_on(1), Pace::Gathered);
        }
        assert_eq!(trial.begin(), Pace::Gathered, "busy again");
        for _look in 0..HOLDS / 2 {
            assert_eq!(trial.go_on(1), Pace::Gathered);
        }
        assert_eq!(trial.go_on(1), ORDER[0]);
        assert!(matches!(trial, Trial::Goes { looks: 0, .. }));
    }

    #[test]
    fn a_trial_that_was_broken_off_begins_anew() {
        let mut trial = Trial::new();
        assert_eq!(trial.begin(), ORDER[0]);
        assert_eq!(trial.go_on(1_000_000), ORDER[1]);
        assert_eq!(trial.begin(), ORDER[0]);
        assert!(matches!(trial, Trial::Goes { looks: 0, gathered: 0, at_once: 0 }));
    }
}
