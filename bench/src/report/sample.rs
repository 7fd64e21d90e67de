//! Statistics over the rounds of a measurement.

/// One figure of each round: cycles per packet, most often.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// One round more.
    pub fn push(&mut self, cycles_per_packet: f64) {
        self.0.push(cycles_per_packet);
    }

    /// The middle one; not a number without any.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The one that a share of all, from 0 to 1, is below; not a number without any.
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

    /// The mean of all but the dearest one of a hundred, which other things on the machine make; not a number without any.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean")]
    pub fn mean(&self) -> f64 {
        let sorted = self.sorted();
        let most = &sorted[..sorted.len() - sorted.len() / 100];
        most.iter().sum::<f64>() / most.len() as f64
    }

    /// Between which ones the true median lies with 95 % confidence, whatever the distribution: those about √n places from the
    /// middle (the binomial distribution of how many are below it, as a normal one).
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a few rounds")]
    pub fn confidence(&self) -> [f64; 2] {
        let count = self.rounds() as f64;
        let away = (0.98 * count.sqrt() + 0.5) / count;
        [self.quantile(0.5 - away), self.quantile(0.5 + away)]
    }

    /// The largest one; not a number without any.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }

    /// The smallest one; not a number without any.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    /// Each round's figure by that of the same round of another.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        Self(self.0.iter().zip(&other.0).map(|(one, other)| one / other).collect())
    }

    /// How many there are.
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
    fn a_median_of_many_is_known_better() {
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
