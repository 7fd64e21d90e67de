//! Statistics over the rounds of a measurement.

/// One figure of each round, mostly cycles per packet.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds a round.
    pub fn push(&mut self, cycles_per_packet: f64) {
        self.0.push(cycles_per_packet);
    }

    /// The median; not a number without rounds.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The quantile of a share from 0 to 1; not a number without rounds.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place among few"
    )]
    pub fn quantile(&self, share: f64) -> f64 {
        let sorted = self.sorted();
        let at = (sorted.len() as f64 * share.clamp(0.0, 1.0)) as usize;
        sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    }

    /// The mean of all but the highest hundredth, which is other load on the machine; not a number
    /// without rounds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn mean(&self) -> f64 {
        let sorted = self.sorted();
        let most = &sorted[..sorted.len() - sorted.len() / 100];
        most.iter().sum::<f64>() / most.len() as f64
    }

    /// The bounds of the true median with 95 % confidence, whatever the distribution: about √n
    /// ranks from the middle (the normal approximation of the binomial distribution).
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a few rounds")]
    pub fn confidence(&self) -> [f64; 2] {
        let count = self.rounds() as f64;
        let away = (0.98 * count.sqrt() + 0.5) / count;
        [self.quantile(0.5 - away), self.quantile(0.5 + away)]
    }

    /// The largest; not a number without rounds.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }

    /// The smallest; not a number without rounds.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    /// Each round's figure divided by that of the same round in `other`.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    /// The number of rounds.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.0.len()
    }

    pub(super) fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_narrows_with_more_rounds() {
        let confidence = |count: u32| {
            let mut sample = Samples::default();
            (0..count).for_each(|value| sample.push(f64::from(value)));
            sample.confidence()
        };
        // The binomial distribution has ranks 40 and 61 of 100, and 2 and 9 of 10.
        assert_eq!(confidence(100), [39.0, 60.0]);
        assert_eq!(confidence(10), [1.0, 8.0]);
        assert_eq!(confidence(1), [0.0, 0.0]);
    }
}
