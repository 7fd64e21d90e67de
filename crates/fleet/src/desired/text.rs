//! Lines of `ip xfrm`, which may have keys.

use std::fmt;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Lines as of `ip -batch`: keys stand in them, so nothing shows them.
#[derive(Clone, Default)]
pub struct Lines(Zeroizing<String>);

impl Lines {
    /// Of a text.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, with its keys.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Lines {
    fn eq(&self, other: &Self) -> bool {
        self.as_str().as_bytes().ct_eq(other.as_str().as_bytes()).into()
    }
}

impl Eq for Lines {}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lines({} bytes)", self.0.len())
    }
}

impl Serialize for Lines {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Lines {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}
