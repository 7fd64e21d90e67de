//! Which size to try next: the largest one that passes, found by halves.

/// What came of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// It was answered.
    Passed,
    /// Somebody says that it is too large, and perhaps what would fit.
    TooBig(Option<u32>),
    /// Nothing came.
    Lost,
}

/// The sizes that are left.
#[derive(Debug)]
pub(super) struct Search {
    least: usize,
    /// The largest that passed.
    passed: Option<usize>,
    /// The smallest that did not, and what came of it.
    failed: Option<(usize, Trial)>,
    most: usize,
    /// A size that somebody named.
    hint: Option<usize>,
}

/// What a tunnel over Ethernet takes at most, by AES-GCM in IPv4.
const USUAL: usize = 1446;

impl Search {
    /// From the least size, without which nothing else makes sense, to the most.
    pub(super) const fn new(least: usize, most: usize) -> Self {
        Self { least, passed: None, failed: None, most, hint: None }
    }

    /// The size to try; `None` once the largest one that passes is known, or nothing does.
    pub(super) fn next_size(&mut self) -> Option<usize> {
        let Some(passed) = self.passed else {
            return self.failed.is_none().then_some(self.least);
        };
        let open = passed + 1..self.fails().unwrap_or(self.most + 1);
        if open.is_empty() {
            return None;
        }
        let hint = self.hint.take().filter(|hint| open.contains(hint));
        let usual = [USUAL, USUAL + 1].into_iter().find(|size| open.contains(size));
        hint.or(usual).or(Some(passed + (open.end - passed) / 2))
    }

    pub(super) fn note(&mut self, size: usize, trial: Trial) {
        if trial == Trial::Passed {
            self.passed = Some(self.passed.map_or(size, |old| old.max(size)));
            return;
        }
        if self.fails().is_none_or(|failed| size < failed) {
            self.failed = Some((size, trial));
        }
        if let Trial::TooBig(Some(mtu)) = trial {
            self.hint = usize::try_from(mtu).ok();
        }
    }

    /// The largest that passed.
    pub(super) const fn passes(&self) -> Option<usize> {
        self.passed
    }

    /// The smallest that did not.
    pub(super) fn fails(&self) -> Option<usize> {
        self.failed.map(|(size, _)| size)
    }

    /// Whether somebody said that the smallest that did not pass was too large.
    pub(super) fn is_told(&self) -> bool {
        matches!(self.failed, Some((_, Trial::TooBig(_))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches on a path that takes `mtu` bytes, and tells so or not; the number of trials.
    fn search(mtu: usize, tells: bool) -> (Option<usize>, Option<usize>, usize) {
        let mut search = Search::new(48, 9000);
        let mut trials = 0;
        while let Some(size) = search.next_size() {
            trials += 1;
            let told = tells.then(|| u32::try_from(mtu).unwrap());
            let trial = match (size <= mtu, told) {
                (true, _) => Trial::Passed,
                (false, Some(_)) => Trial::TooBig(told),
                (false, None) => Trial::Lost,
            };
            search.note(size, trial);
        }
        (search.passes(), search.fails(), trials)
    }

    #[test]
    fn largest_size_is_found_exactly_and_soon() {
        for mtu in [48, 49, 576, 1279, 1280, 1372, 1445, 1446, 1447, 1500, 8999] {
            for tells in [true, false] {
                let (passes, fails, trials) = search(mtu, tells);
                assert_eq!((passes, fails), (Some(mtu), Some(mtu + 1)), "{mtu} {tells}");
                assert!(trials <= 18, "{trials} trials for {mtu}");
            }
        }
        assert_eq!(search(9000, false).0, Some(9000));
        assert_eq!(search(0, false), (None, Some(48), 1), "nobody answers");
        assert!(search(1446, false).2 <= 3, "the usual case is quick");
    }

    #[test]
    fn only_the_smallest_failure_counts() {
        let mut search = Search::new(48, 9000);
        search.note(48, Trial::Passed);
        search.note(1447, Trial::TooBig(Some(1400)));
        assert!(search.is_told());
        search.note(1400, Trial::Lost);
        assert!(!search.is_told(), "the host's own limit hides no hole below it");
        search.note(1446, Trial::TooBig(None));
        assert_eq!((search.fails(), search.is_told()), (Some(1400), false));
    }
}
