//! The cases that a filter was asked about: from them it tells what would have been right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Wanted;
use crate::report::Case;

/// Cases, shared by all copies of a filter.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked(Arc<Mutex<BTreeSet<(Extent, Values)>>>);

/// A case's values by key.
type Values = BTreeMap<String, String>;

/// How much of a case was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extent {
    /// There may be more keys.
    Beginning,
    Whole,
}

impl Asked {
    pub(super) fn note(&self, case: &Case, extent: Extent) {
        let value = |key: &str| Some((key.to_owned(), case.value(key)?));
        self.cases().insert((extent, case.keys().filter_map(value).collect()));
    }

    /// What none of the cases has, and what they have in its stead. The cases of a wrong value may not have been thought of any further, so that
    /// values by themselves are looked at first.
    pub(super) fn refusal(&self, wanted: &Wanted) -> String {
        let cases = self.cases();
        let keys: BTreeSet<&str> = wanted.0.iter().map(|(key, _)| key.as_str()).collect();
        let unknown: Vec<String> =
            keys.iter().filter_map(|key| of_value(&cases, wanted, key)).collect();
        if !unknown.is_empty() {
            return unknown.join("; ");
        }
        let apart: Vec<String> =
            keys.iter().filter_map(|key| of_company(&cases, wanted, key)).collect();
        if apart.is_empty() {
            format!("none has all of {wanted}")
        } else {
            format!("none has all of {wanted} ({})", apart.join("; "))
        }
    }

    fn cases(&self) -> MutexGuard<'_, BTreeSet<(Extent, Values)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That a key has none of its wanted values in any case.
fn of_value(cases: &BTreeSet<(Extent, Values)>, wanted: &Wanted, key: &str) -> Option<String> {
    let known: BTreeSet<&String> = cases.iter().filter_map(|(_, case)| case.get(key)).collect();
    let wanted = wanted.only(|other| other == key);
    let is_there = wanted.0.iter().any(|(_, value)| known.contains(value));
    (!is_there && !known.is_empty())
        .then(|| format!("none has {wanted} ({key} is {})", listed(known)))
}

/// What a key is where all else is as wanted, if that is so anywhere.
fn of_company(cases: &BTreeSet<(Extent, Values)>, wanted: &Wanted, key: &str) -> Option<String> {
    let others = wanted.only(|other| other != key);
    let whole = cases.iter().filter(|(extent, _)| *extent == Extent::Whole).map(|(_, case)| case);
    let mut company = whole.filter(|case| others.admits(&|key| case.get(key).cloned())).peekable();
    company.peek()?;
    let known: BTreeSet<&String> = company.filter_map(|case| case.get(key)).collect();
    Some(if known.is_empty() {
        format!("with {others} there is no {key}")
    } else {
        format!("with {others}, {key} is {}", listed(known))
    })
}

/// Numbers in their order, and words.
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
    use crate::Filter;
    use crate::report::Case;

    /// What is said to a filter that was asked about some cases.
    fn refusal(only: &str) -> String {
        let filter: Filter = only.parse().unwrap();
        let way = Case::new().with("path", "udp");
        if filter.may_admit(&way) {
            let copy = filter.clone();
            for congestion in ["cubic", "bbr"] {
                let tcp = way.clone().with("congestion", congestion).with("test", "tcp1");
                assert!(!copy.admits(&tcp));
            }
            for bytes in [64, 1400, 512] {
                assert!(!copy.admits(&way.clone().with("test", "rtt").with("bytes", bytes)));
            }
        }
        filter.refusal()
    }

    #[test]
    fn a_value_that_no_case_has_is_told_with_those_that_there_are() {
        assert_eq!(
            refusal("bytes=65,bytes=66"),
            "none has bytes=65,bytes=66 (bytes is one of 64, 512, 1400)"
        );
        assert_eq!(
            refusal("congestion=vegas,test=tcp1"),
            "none has congestion=vegas (congestion is one of bbr, cubic)"
        );
        assert_eq!(refusal("path=tcp,test=tcp1"), "none has path=tcp (path is udp)");
    }

    #[test]
    fn values_that_do_not_meet_are_told_with_what_they_meet() {
        assert_eq!(
            refusal("congestion=cubic,test=rtt"),
            "none has all of congestion=cubic,test=rtt (with test=rtt there is no congestion; with congestion=cubic, test is tcp1)"
        );
        assert_eq!(
            refusal("congestion=cubic,test=tcp1,bytes=64"),
            "none has all of congestion=cubic,test=tcp1,bytes=64 (with congestion=cubic,test=tcp1 there is no bytes)"
        );
    }
}
