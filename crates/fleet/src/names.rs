//! Names of fleets, pools, gateways and tunnels, as they stand in keys of etcd.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The longest name, in bytes.
pub const LONGEST: usize = 63;

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name: letters a to z, digits, `-`, `_` and `.`, at most {LONGEST}, and the first \
     a letter or a digit"
)]
pub struct NameError(String);

/// Whether a text is one part of a path in etcd, and reads as such in logs.
fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= LONGEST
        && bytes.first().is_some_and(|first| plain(*first))
        && bytes.iter().all(|byte| plain(*byte) || b"-_.".contains(byte))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// Its text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                if is_name(&text) { Ok(Self(text.into())) } else { Err(NameError(text)) }
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                text.to_owned().try_into()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// A fleet: all that share one desired state and one key.
    FleetName
}
name! {
    /// A pool: the gateways among which tunnels move. At most some sixty, as each hears the
    /// heartbeats of all others.
    PoolName
}
name! {
    /// A gateway of a fleet; no other ever has its name.
    GatewayName
}
name! {
    /// A tunnel: what one peer and the fleet protect between them.
    TunnelName
}

/// A child of a tunnel: states of its own, at one gateway at a time.
///
/// A sharded tunnel has one child, a spread one several.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChildId {
    /// Whose child it is.
    pub tunnel: TunnelName,
    /// Which of them, from 0.
    pub index: u16,
}

impl fmt::Display for ChildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tunnel, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_table() {
        for good in ["a", "7", "branch-1", "eu_west.2", &"x".repeat(LONGEST)] {
            assert_eq!(good.parse::<TunnelName>().unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".", "..", "A", "a/b", "a b", "ä", "a\n", &"x".repeat(LONGEST + 1)] {
            assert!(bad.parse::<TunnelName>().is_err(), "{bad:?}");
            let json = serde_json::to_string(bad).unwrap();
            assert!(serde_json::from_str::<PoolName>(&json).is_err(), "{bad:?}");
        }
    }
}
