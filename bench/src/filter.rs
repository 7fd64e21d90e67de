//! `--only key=value,…`.

mod offered;

use std::fmt;
use std::str::FromStr;

use anyhow::Context;

use crate::report::Case;
use offered::{Asked, Extent};

/// Keys and values a row's case must have; a key named twice may have either value. Copies share a memory of the cases that they were asked about.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    wanted: Wanted,
    asked: Asked,
}

/// Keys with their values, as they were said.
#[derive(Debug, Clone, Default)]
struct Wanted(Vec<(String, String)>);

impl Filter {
    /// Whether a row with this case is wanted.
    #[must_use]
    pub fn admits(&self, case: &Case) -> bool {
        self.note(case, Extent::Whole);
        self.wanted.admits(&|key| case.value(key))
    }

    /// Whether a row may be wanted whose case begins like this.
    #[must_use]
    pub fn may_admit(&self, case: &Case) -> bool {
        self.note(case, Extent::Beginning);
        self.wanted.only(|key| case.value(key).is_some()).admits(&|key| case.value(key))
    }

    fn note(&self, case: &Case, extent: Extent) {
        if !self.is_empty() {
            self.asked.note(case, extent);
        }
    }

    /// Why nothing was admitted of the cases that it was asked about: what of it none of them has, and what they have in its stead.
    pub(crate) fn refusal(&self) -> String {
        self.asked.refusal(&self.wanted)
    }

    /// The keys that it has values of.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.wanted.0.iter().map(|(key, _)| key.as_str())
    }

    /// Whether it leaves every row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wanted.0.is_empty()
    }

    /// Whether it asks for values of a key.
    #[must_use]
    pub fn names(&self, key: &str) -> bool {
        self.keys().any(|other| other == key)
    }
}

impl Wanted {
    /// Whether a case that has these values by key has what is wanted.
    fn admits(&self, value: &impl Fn(&str) -> Option<String>) -> bool {
        self.0.iter().all(|(key, _)| {
            let mut same_key = self.0.iter().filter(|(other, _)| other == key);
            same_key.any(|(_, wanted)| value(key).is_some_and(|has| has == *wanted))
        })
    }

    /// What is wanted of some keys.
    fn only(&self, admits: impl Fn(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(key, _)| admits(key)).cloned().collect())
    }
}

impl FromStr for Filter {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wanted = text.split(',').filter(|part| !part.is_empty()).map(|part| {
            let (key, value) =
                part.split_once('=').with_context(|| format!("\"{part}\" is not key=value"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        });
        let wanted = wanted.collect::<anyhow::Result<_>>()?;
        Ok(Self { wanted: Wanted(wanted), asked: Asked::default() })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.wanted.fmt(f)
    }
}

impl fmt::Display for Wanted {
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
    fn all_keys_and_any_of_their_values() {
        let case = Case::new().with("op", "seal").with("bytes", 64);
        let admits = |text: &str| text.parse::<Filter>().unwrap().admits(&case);
        assert!(
            admits("")
                && admits("op=seal")
                && admits("op=seal,bytes=64")
                && admits("bytes=1400,bytes=64")
        );
        assert!(!admits("op=open") && !admits("op=seal,bytes=1400") && !admits("colour=red"));
        assert!("op".parse::<Filter>().is_err());
    }
}
