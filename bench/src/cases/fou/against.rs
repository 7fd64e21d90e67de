//! How a tunnel in UDP stands to the same tunnel without.

use super::plan::Encap;
use crate::report::{Row, Sample};

/// What the project wants: the published figures are 9310 against 9354 Mbit/s and 1.170 against 1.182 million transactions a second.
const MOST: f64 = 1.03;

/// The time that a trial takes, of that which another one takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Against {
    /// The median of what the rounds say.
    median: f64,
    /// Where the true median is with 95 % confidence.
    between: [f64; 2],
}

impl Against {
    /// Compares the times of trials that were visited in turn, twice each round.
    pub(super) fn of(times: &[f64], bare: &[f64]) -> Self {
        let mut ratios = Sample::default();
        for (times, bare) in times.chunks_exact(2).zip(bare.chunks_exact(2)) {
            ratios.push(times.iter().sum::<f64>() / bare.iter().sum::<f64>());
        }
        Self { median: ratios.median(), between: ratios.confidence() }
    }

    /// Adds what was found to a row, and whether FOU is as cheap as it is to be.
    pub(super) fn add(self, row: &mut Row, encap: Encap) {
        row.figure("time_against_none", self.median, 3);
        if encap == Encap::None {
            return;
        }
        row.figure("against_from", self.between[0], 3);
        row.figure("against_to", self.between[1], 3);
        if encap != Encap::Gue {
            row.figures.insert("goal".to_owned(), self.verdict().into());
        }
    }

    fn verdict(self) -> String {
        let word = if self.median <= MOST { "met" } else { "MISSED" };
        format!("{word}: time_against_none ≤ {MOST}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_slows_down_evenly_changes_nothing() {
        // A B B A, in a round that begins at 100 and in one that begins at 200.
        let bare = [100.0, 130.0, 200.0, 230.0];
        let times = [110.0 * 1.1, 120.0 * 1.1, 210.0 * 1.1, 220.0 * 1.1];
        let against = Against::of(&times, &bare);
        assert!((against.median - 1.1).abs() < 1e-9, "{against:?}");
        assert_eq!(against.verdict(), "MISSED: time_against_none ≤ 1.03");
        assert_eq!(Against::of(&bare, &bare).verdict(), "met: time_against_none ≤ 1.03");
    }
}
