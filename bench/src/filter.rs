//! `--only key=value,…`.

use std::fmt;
use std::str::FromStr;

use anyhow::Context;

use crate::report::Case;

/// Keys and values a row's case must have; a key named twice may have either value.
#[derive(Debug, Clone, Default)]
pub struct Filter(Vec<(String, String)>);

impl Filter {
    /// Whether a row with this case is wanted.
    #[must_use]
    pub fn admits(&self, case: &Case) -> bool {
        self.0.iter().all(|(key, _)| {
            let mut same_key = self.0.iter().filter(|(other, _)| other == key);
            same_key.any(|(_, value)| case.value(key).is_some_and(|has| has == *value))
        })
    }

    /// Whether a row may be wanted whose case begins like this.
    #[must_use]
    pub fn may_admit(&self, case: &Case) -> bool {
        let known = |key: &str| case.value(key).is_some();
        let part = self.0.iter().filter(|(key, _)| known(key)).cloned().collect();
        Self(part).admits(case)
    }

    /// The keys that it has values of.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.as_str())
    }

    /// Whether it leaves every row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it asks for values of a key.
    #[must_use]
    pub fn names(&self, key: &str) -> bool {
        self.0.iter().any(|(other, _)| other == key)
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
        wanted.collect::<anyhow::Result<_>>().map(Self)
    }
}

impl fmt::Display for Filter {
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
