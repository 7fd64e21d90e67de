//! A counter of the kernel that goes on where it begins anew, as the counters of a table do that
//! somebody took away and that is put up again.

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counter {
    total: u64,
    /// What the kernel said last.
    seen: u64,
}

impl Counter {
    /// The kernel says this now; less than before if it has begun anew.
    pub(super) fn read(&mut self, now: u64) {
        self.total += now.checked_sub(self.seen).unwrap_or(now);
        self.seen = now;
    }

    pub(super) const fn total(self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_restarted_by_kernel_is_added() {
        let mut counter = Counter::default();
        let totals = [3, 100, 100, 2, 2, 150].map(|now| {
            counter.read(now);
            counter.total()
        });
        assert_eq!(totals, [3, 100, 100, 102, 102, 250]);
    }
}
