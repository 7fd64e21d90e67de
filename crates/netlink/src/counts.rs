//! Named counters: uxfrm's own attribute, for protocols without counters or without names for them.
//!
//! A nest of attributes of type 1; each is a `u64` and the name behind it.

use uxfrm_netlink_wire::{AttributeWriter, RawAttributes};

/// The type of each counter's attribute.
const COUNT: u16 = 1;

/// What was counted under which name, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedCounters(pub Vec<(String, u64)>);

impl NamedCounters {
    /// Decodes a nest; other attributes are skipped.
    #[must_use]
    pub fn decode(value: &[u8]) -> Self {
        let counters = RawAttributes::of(value).filter(|attribute| attribute.kind == COUNT);
        Self(
            counters
                .filter_map(|attribute| {
                    let (count, name) = attribute.value.split_first_chunk()?;
                    let name = String::from_utf8_lossy(name).into_owned();
                    Some((name, u64::from_ne_bytes(*count)))
                })
                .collect(),
        )
    }

    /// The nest's value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut counters = AttributeWriter::new(&mut out);
        for (name, count) in &self.0 {
            counters.parts(COUNT, &[&count.to_ne_bytes(), name.as_bytes()]);
        }
        out
    }

    /// What was counted under a name.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_value_is_read_back() {
        let counts = NamedCounters(vec![
            ("packets".to_owned(), u64::MAX),
            ("a".to_owned(), 0),
            (String::new(), 3),
        ]);
        assert_eq!(NamedCounters::decode(&counts.encode()), counts);
        assert_eq!((counts.of("a"), counts.of("b")), (Some(0), None));
        let cut = counts.encode();
        (0..cut.len()).for_each(|len| assert!(NamedCounters::decode(&cut[..len]).0.len() <= 3));
    }
}
