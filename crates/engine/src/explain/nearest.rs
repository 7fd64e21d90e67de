//! The few candidates with the fewest misfits.

/// Keeps the nearest of many candidates, nearest first; among equals the one that came first.
#[derive(Debug)]
pub(super) struct Nearest<T> {
    /// Ascending by distance.
    kept: Vec<(u32, T)>,
    most: usize,
}

impl<T> Nearest<T> {
    /// Keeps up to `most` candidates.
    pub(super) const fn new(most: usize) -> Self {
        Self { kept: Vec::new(), most }
    }

    /// Offers a candidate; `make` is called only if it is kept.
    pub(super) fn offer(&mut self, distance: u32, make: impl FnOnce() -> T) {
        let place = self.kept.partition_point(|(kept, _)| *kept <= distance);
        if place < self.most {
            self.kept.truncate(self.most - 1);
            self.kept.insert(place, (distance, make()));
        }
    }

    /// The candidates kept, nearest first.
    pub(super) fn into_vec(self) -> Vec<T> {
        self.kept.into_iter().map(|(_, kept)| kept).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_candidates_are_kept_in_order() {
        let mut nearest = Nearest::new(3);
        for (name, distance) in [("a", 5), ("b", 1), ("c", 5), ("d", 2), ("e", 1), ("f", 9)] {
            nearest.offer(distance, || name);
        }
        assert_eq!(nearest.into_vec(), ["b", "e", "d"]);
        assert_eq!(Nearest::<u8>::new(2).into_vec(), []);
    }
}
