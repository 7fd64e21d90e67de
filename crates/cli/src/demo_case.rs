//! The cases of the demo: how packets get from a to b.

use std::fmt;

use clap::ValueEnum;
use uxfrm_bench::pair::{EspEncapsulation, EspTransform, Protection};

/// A case, by the name that `--only` and the table use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CaseName {
    /// Plain routes, no gateway.
    Clear,
    /// AES-GCM-128 in ESP in UDP.
    Gcm128Udp,
    /// AES-GCM-128 in ESP straight on IP.
    Gcm128Esp,
    /// AES-CBC-128 with HMAC-SHA1-96 in ESP straight on IP.
    Cbc128Sha1Esp,
}

impl CaseName {
    /// All cases in the order in which they run.
    pub(crate) const ALL: [Self; 4] =
        [Self::Clear, Self::Gcm128Udp, Self::Gcm128Esp, Self::Cbc128Sha1Esp];

    /// The packets' protection; `None` in the clear.
    pub(crate) fn protection(self) -> Option<Protection> {
        let (transform, encapsulation) = match self {
            Self::Clear => return None,
            Self::Gcm128Udp => (EspTransform::Gcm128, EspEncapsulation::Udp),
            Self::Gcm128Esp => (EspTransform::Gcm128, EspEncapsulation::Ip),
            Self::Cbc128Sha1Esp => (EspTransform::Cbc128Sha1, EspEncapsulation::Ip),
        };
        Some(Protection { transform, encapsulation })
    }

    /// The title of the case.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Clear => "in the clear",
            Self::Gcm128Udp => "AES-GCM-128, ESP in UDP",
            Self::Gcm128Esp => "AES-GCM-128, ESP",
            Self::Cbc128Sha1Esp => "AES-CBC-128 + SHA1, ESP",
        }
    }

    /// The value of the key `path`, as in rows of `bench tunnel`.
    pub(crate) fn path(self) -> &'static str {
        self.protection().map_or("clear", Protection::path)
    }
}

impl fmt::Display for CaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clear => "clear",
            Self::Gcm128Udp => "gcm128-udp",
            Self::Gcm128Esp => "gcm128-esp",
            Self::Cbc128Sha1Esp => "cbc128-sha1-esp",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_name_is_the_command_line_name() {
        for case in CaseName::ALL {
            assert_eq!(CaseName::from_str(&case.to_string(), false), Ok(case));
        }
    }

    #[test]
    fn only_clear_case_is_unprotected() {
        for case in CaseName::ALL {
            assert_eq!(case.protection().is_none(), case == CaseName::Clear);
        }
    }
}
