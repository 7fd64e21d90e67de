//! The `--only key=value,…` filter.

mod offered;

use std::fmt;
use std::str::FromStr;

use anyhow::Context;

use crate::report::Case;
use offered::{OfferedCases, OfferedExtent};

/// Keys and values that a row's case must have; a key named twice may have either value.
///
/// Clones share the record of the cases that were offered to them, from which errors name the
/// values there are.
#[derive(Debug, Clone, Default)]
pub struct CaseFilter {
    wanted: FilterPairs,
    offered: OfferedCases,
}

/// The key-value pairs of the command line.
#[derive(Debug, Clone, Default)]
struct FilterPairs(Vec<(String, String)>);

impl CaseFilter {
    /// Whether a row with this case is wanted.
    #[must_use]
    pub fn admits(&self, case: &Case) -> bool {
        self.record(case, OfferedExtent::Full);
        self.wanted.admits(&|key| case.value(key))
    }

    /// Whether a row may be wanted whose case begins with these keys.
    #[must_use]
    pub fn may_admit(&self, case: &Case) -> bool {
        self.record(case, OfferedExtent::Prefix);
        self.wanted.only(|key| case.value(key).is_some()).admits(&|key| case.value(key))
    }

    /// Whether to list a path that cannot be measured here: its case has no test's keys.
    pub(crate) fn lists_path(&self, case: &Case) -> bool {
        self.admits(case) || self.names("path") && self.may_admit(case)
    }

    fn record(&self, case: &Case, extent: OfferedExtent) {
        if !self.is_empty() {
            self.offered.record(case, extent);
        }
    }

    /// Why no offered case was admitted, and which values there are instead.
    pub(crate) fn explain_empty(&self) -> String {
        self.offered.explain_empty(&self.wanted)
    }

    /// One explanation for each wanted value that no admitted case has; none if no case was
    /// admitted at all, which [`explain_empty`](Self::explain_empty) explains.
    pub(crate) fn explain_unselected(&self) -> Vec<String> {
        self.offered.explain_unselected(&self.wanted)
    }

    /// The keys that have values in the filter.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.wanted.0.iter().map(|(key, _)| key.as_str())
    }

    /// Whether it admits every row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wanted.0.is_empty()
    }

    /// Whether it has values of this key.
    #[must_use]
    pub fn names(&self, key: &str) -> bool {
        self.keys().any(|other| other == key)
    }
}

impl FilterPairs {
    /// Whether a case admits all keys; `value` returns the case's value of a key.
    fn admits(&self, value: &impl Fn(&str) -> Option<String>) -> bool {
        self.0.iter().all(|(key, _)| {
            let mut same_key = self.0.iter().filter(|(other, _)| other == key);
            same_key.any(|(_, wanted)| value(key).is_some_and(|has| has == *wanted))
        })
    }

    /// The pairs of some keys.
    fn only(&self, admits: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(key, _)| admits(key)).cloned().collect())
    }
}

impl FromStr for CaseFilter {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wanted = text.split(',').filter(|part| !part.is_empty()).map(|part| {
            let (key, value) =
                part.split_once('=').with_context(|| format!("\"{part}\" is not key=value"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        });
        let wanted = wanted.collect::<anyhow::Result<_>>()?;
        Ok(Self { wanted: FilterPairs(wanted), offered: OfferedCases::default() })
    }
}

impl fmt::Display for CaseFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wanted.fmt(f)
    }
}

impl fmt::Display for FilterPairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> =
            self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_admits_case_with_any_value_of_each_key() {
        let case = Case::new().with("op", "seal").with("bytes", 64);
        let admits = |text: &str| text.parse::<CaseFilter>().unwrap().admits(&case);
        assert!(
            admits("")
                && admits("op=seal")
                && admits("op=seal,bytes=64")
                && admits("bytes=1400,bytes=64")
        );
        assert!(!admits("op=open") && !admits("op=seal,bytes=1400") && !admits("colour=red"));
        assert!("op".parse::<CaseFilter>().is_err());
    }
}
