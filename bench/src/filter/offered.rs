//! The cases that were offered to a filter, to explain which values would select some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::FilterPairs;
use crate::report::Case;

/// Recorded cases, shared by all clones of a filter.
#[derive(Debug, Clone, Default)]
pub(super) struct OfferedCases(Arc<Mutex<BTreeSet<(OfferedExtent, Values)>>>);

/// A case's values by key.
type Values = BTreeMap<String, String>;

/// How much of a case was known when it was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OfferedExtent {
    /// More keys may follow.
    Prefix,
    Full,
}

impl OfferedCases {
    pub(super) fn record(&self, case: &Case, extent: OfferedExtent) {
        let value = |key: &str| Some((key.to_owned(), case.value(key)?));
        self.cases().insert((extent, case.keys().filter_map(value).collect()));
    }

    /// Which wanted values no case has, and which values there are. Values are checked one by one
    /// first: the cases of an unknown value may not have been offered in full.
    pub(super) fn explain_empty(&self, wanted: &FilterPairs) -> String {
        let cases = self.cases();
        let keys: BTreeSet<&str> = wanted.0.iter().map(|(key, _)| key.as_str()).collect();
        let unknown: Vec<String> =
            keys.iter().filter_map(|key| explain_value(&cases, wanted, key)).collect();
        if !unknown.is_empty() {
            return unknown.join("; ");
        }
        let combined: Vec<String> =
            keys.iter().filter_map(|key| explain_combination(&cases, wanted, key)).collect();
        if combined.is_empty() {
            format!("none has all of {wanted}")
        } else {
            format!("none has all of {wanted} ({})", combined.join("; "))
        }
    }

    /// One explanation for each wanted value that selects nothing while others do.
    pub(super) fn explain_unselected(&self, wanted: &FilterPairs) -> Vec<String> {
        let cases = self.cases();
        let is_admitted = |(extent, case): &&(OfferedExtent, Values)| {
            let known = |key: &str| *extent == OfferedExtent::Full || case.contains_key(key);
            wanted.only(known).admits(&|key| case.get(key).cloned())
        };
        let admitted: Vec<_> = cases.iter().filter(is_admitted).collect();
        if admitted.iter().all(|(extent, _)| *extent == OfferedExtent::Prefix) {
            return Vec::new();
        }
        let is_selected = |(key, value): &&(String, String)| {
            admitted.iter().any(|(_, case)| case.get(key) == Some(value))
        };
        let unselected = wanted.0.iter().filter(|pair| !is_selected(pair));
        let explained = unselected.map(|pair| {
            let single = FilterPairs(vec![pair.clone()]);
            let combined = || explain_combination(&cases, wanted, &pair.0);
            explain_value(&cases, &single, &pair.0)
                .or_else(|| Some(format!("{single} selects no case: {}", combined()?)))
                .unwrap_or_else(|| format!("{single} selects no case"))
        });
        explained.collect()
    }

    fn cases(&self) -> MutexGuard<'_, BTreeSet<(OfferedExtent, Values)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that no case has any of a key's wanted values; `None` if one does.
fn explain_value(
    cases: &BTreeSet<(OfferedExtent, Values)>,
    wanted: &FilterPairs,
    key: &str,
) -> Option<String> {
    let known: BTreeSet<&String> = cases.iter().filter_map(|(_, case)| case.get(key)).collect();
    let wanted = wanted.only(|other| other == key);
    let is_there = wanted.0.iter().any(|(_, value)| known.contains(value));
    (!is_there && !known.is_empty())
        .then(|| format!("none has {wanted} ({key} is {})", listed(known)))
}

/// Says which values a key has where all other keys are as wanted; `None` if that is nowhere.
fn explain_combination(
    cases: &BTreeSet<(OfferedExtent, Values)>,
    wanted: &FilterPairs,
    key: &str,
) -> Option<String> {
    let others = wanted.only(|other| other != key);
    let full =
        cases.iter().filter(|(extent, _)| *extent == OfferedExtent::Full).map(|(_, case)| case);
    let mut matching = full.filter(|case| others.admits(&|key| case.get(key).cloned())).peekable();
    matching.peek()?;
    let known: BTreeSet<&String> = matching.filter_map(|case| case.get(key)).collect();
    Some(if known.is_empty() {
        format!("with {others} there is no {key}")
    } else {
        format!("with {others}, {key} is {}", listed(known))
    })
}

/// Words, then numbers in their order.
fn listed(values: BTreeSet<&String>) -> String {
    let mut values: Vec<&str> = values.into_iter().map(String::as_str).collect();
    values.sort_by_key(|value| value.parse::<u64>().ok());
    match &values[..] {
        [value] => (*value).to_owned(),
        values => format!("one of {}", values.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use crate::CaseFilter;
    use crate::report::Case;

    /// A filter to which some cases were offered.
    fn offered(only: &str) -> CaseFilter {
        let filter: CaseFilter = only.parse().unwrap();
        let path = Case::new().with("path", "udp");
        if filter.may_admit(&path) {
            let clone = filter.clone();
            for congestion in ["cubic", "bbr"] {
                let tcp = path.clone().with("congestion", congestion).with("test", "tcp1");
                let _ = clone.admits(&tcp);
            }
            for bytes in [64, 1400, 512] {
                let _ = clone.admits(&path.clone().with("test", "rtt").with("bytes", bytes));
            }
        }
        filter
    }

    fn explained(only: &str) -> String {
        offered(only).explain_empty()
    }

    #[test]
    fn unknown_value_is_explained_with_the_known_ones() {
        assert_eq!(
            explained("bytes=65,bytes=66"),
            "none has bytes=65,bytes=66 (bytes is one of 64, 512, 1400)"
        );
        assert_eq!(
            explained("congestion=vegas,test=tcp1"),
            "none has congestion=vegas (congestion is one of bbr, cubic)"
        );
        assert_eq!(explained("path=tcp,test=tcp1"), "none has path=tcp (path is udp)");
    }

    #[test]
    fn empty_combination_is_explained_by_each_key() {
        assert_eq!(
            explained("congestion=cubic,test=rtt"),
            "none has all of congestion=cubic,test=rtt (with test=rtt there is no congestion; \
             with congestion=cubic, test is tcp1)"
        );
        assert_eq!(
            explained("congestion=cubic,test=tcp1,bytes=64"),
            "none has all of congestion=cubic,test=tcp1,bytes=64 \
             (with congestion=cubic,test=tcp1 there is no bytes)"
        );
    }

    #[test]
    fn value_that_selects_nothing_beside_others_is_explained() {
        let refused = |only: &str| offered(only).explain_unselected().join("; ");
        assert_eq!(refused("bytes=64,bytes=512,path=udp"), "");
        assert_eq!(
            refused("bytes=64,bytes=1024,bytes=65"),
            "none has bytes=1024 (bytes is one of 64, 512, 1400); \
             none has bytes=65 (bytes is one of 64, 512, 1400)"
        );
        assert_eq!(
            refused("test=tcp1,test=rtt,congestion=bbr"),
            "test=rtt selects no case: with congestion=bbr, test is tcp1"
        );
        assert_eq!(refused("bytes=65"), "", "`explain_empty` says so");
    }
}
