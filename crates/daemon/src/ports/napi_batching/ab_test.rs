//! A/B trial of batching on a busy device: both ways in turn, and again after a while.
//!
//! A timer costs some machines less than a wake for each frame, and others more: which of them this
//! is shows in how many frames come.

/// Who goes first and last is changed round, so that a load which grows meanwhile favours neither.
const ORDER: [Delivery; 8] = {
    use Delivery::{Batched, Immediate};
    [Batched, Immediate, Immediate, Batched, Immediate, Batched, Batched, Immediate]
};

/// For so many looks what was found holds.
const HOLDS: usize = 300;

/// One frame more for so many must come by gathering, which has each of them wait.
const FEW: u64 = 20;

/// How a device delivers frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Batched,
    Immediate,
}

/// A running trial, or its result.
#[derive(Clone, Debug)]
pub(super) enum AbTest {
    /// So many looks were had, in the order of [`ORDER`]; what came in them each way.
    Goes { looks: usize, batched: u64, immediate: u64 },
    /// For so many looks more.
    Found { pace: Delivery, looks: usize },
}

impl AbTest {
    /// One that begins with the next look.
    pub(super) const fn new() -> Self {
        Self::Goes { looks: 0, batched: 0, immediate: 0 }
    }

    /// How the device begins, when it has become busy. A trial that was broken off begins anew.
    pub(super) fn begin(&mut self) -> Delivery {
        match *self {
            Self::Found { pace, .. } => pace,
            Self::Goes { .. } => {
                *self = Self::new();
                ORDER[0]
            }
        }
    }

    /// How it goes on, when so many frames per second came since the last look.
    pub(super) fn go_on(&mut self, per_second: u64) -> Delivery {
        match self {
            Self::Goes { looks, batched, immediate } => {
                match ORDER[*looks] {
                    Delivery::Batched => *batched += per_second,
                    Delivery::Immediate => *immediate += per_second,
                }
                *looks += 1;
                if let Some(next) = ORDER.get(*looks) {
                    return *next;
                }
                let pays = *batched > *immediate + *immediate / FEW;
                let pace = if pays { Delivery::Batched } else { Delivery::Immediate };
                tracing::debug!(batched, immediate, ?pace, "AF_XDP: frames of a busy device");
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

    /// What a trial finds where so many frames come each way, and the load grows or shrinks by so
    /// much with each look.
    fn found(batched: u64, immediate: u64, growth: i64) -> Delivery {
        let mut trial = AbTest::new();
        let mut pace = trial.begin();
        for look in 0..8_i64 {
            assert!(matches!(trial, AbTest::Goes { .. }), "after {look} looks");
            let frames = if pace == Delivery::Batched { batched } else { immediate };
            pace = trial.go_on(frames.saturating_add_signed(look * growth));
        }
        assert!(matches!(trial, AbTest::Found { .. }));
        pace
    }

    #[test]
    fn ab_test_picks_batching_if_it_gains() {
        for growth in [-10_000, 0, 50_000] {
            assert_eq!(found(500_000, 400_000, growth), Delivery::Batched, "{growth}");
            assert_eq!(found(400_000, 500_000, growth), Delivery::Immediate, "{growth}");
            assert_eq!(
                found(410_000, 400_000, growth),
                Delivery::Immediate,
                "hardly more: {growth}"
            );
        }
    }

    #[test]
    fn ab_test_result_holds_for_a_while() {
        let mut trial = AbTest::new();
        let mut pace = trial.begin();
        for _look in ORDER {
            pace = trial.go_on(if pace == Delivery::Batched { 200_000 } else { 100_000 });
        }
        for _look in 0..HOLDS / 2 {
            assert_eq!(trial.go_on(1), Delivery::Batched);
        }
        assert_eq!(trial.begin(), Delivery::Batched, "busy again");
        for _look in 0..HOLDS / 2 {
            assert_eq!(trial.go_on(1), Delivery::Batched);
        }
        assert_eq!(trial.go_on(1), ORDER[0]);
        assert!(matches!(trial, AbTest::Goes { looks: 0, .. }));
    }

    #[test]
    fn ab_test_interrupted_starts_over() {
        let mut trial = AbTest::new();
        assert_eq!(trial.begin(), ORDER[0]);
        assert_eq!(trial.go_on(1_000_000), ORDER[1]);
        assert_eq!(trial.begin(), ORDER[0]);
        assert!(matches!(trial, AbTest::Goes { looks: 0, batched: 0, immediate: 0 }));
    }
}
