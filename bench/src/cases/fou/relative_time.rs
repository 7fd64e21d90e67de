//! The time that a tunnel in UDP takes, relative to the same tunnel without.

use super::plan::FouEncap;
use crate::report::{Row, Samples};

/// The project's goal. Published were 9310 against 9354 Mbit/s, and 1.170 against 1.182 million
/// transactions a second.
const GOAL: f64 = 1.03;

/// A case's time divided by another's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RelativeTime {
    /// The median over the rounds.
    median: f64,
    /// The bounds of the true median with 95 % confidence.
    between: [f64; 2],
}

impl RelativeTime {
    /// Compares the times of two cases, each visited twice a round.
    pub(super) fn of(times: &[f64], bare: &[f64]) -> Self {
        let mut ratios = Samples::default();
        for (times, bare) in times.chunks_exact(2).zip(bare.chunks_exact(2)) {
            ratios.push(times.iter().sum::<f64>() / bare.iter().sum::<f64>());
        }
        Self { median: ratios.median(), between: ratios.confidence() }
    }

    /// Adds the ratio to a row, and whether FOU meets the goal.
    pub(super) fn add(self, row: &mut Row, encap: FouEncap) {
        row.figure("time_against_none", self.median, 3);
        if encap == FouEncap::None {
            return;
        }
        row.figure("against_from", self.between[0], 3);
        row.figure("against_to", self.between[1], 3);
        if encap != FouEncap::Gue {
            row.figures.insert("goal".to_owned(), self.verdict().into());
        }
    }

    fn verdict(self) -> String {
        let word = if self.median <= GOAL { "met" } else { "MISSED" };
        format!("{word}: time_against_none ≤ {GOAL}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_time_is_unaffected_by_steady_drift() {
        // A B B A, in a round that begins at 100 and in one that begins at 200.
        let bare = [100.0, 130.0, 200.0, 230.0];
        let times = [110.0 * 1.1, 120.0 * 1.1, 210.0 * 1.1, 220.0 * 1.1];
        let against = RelativeTime::of(&times, &bare);
        assert!((against.median - 1.1).abs() < 1e-9, "{against:?}");
        assert_eq!(against.verdict(), "MISSED: time_against_none ≤ 1.03");
        assert_eq!(RelativeTime::of(&bare, &bare).verdict(), "met: time_against_none ≤ 1.03");
    }
}
