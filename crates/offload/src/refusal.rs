//! Why a device does not take something: an errno, and the driver's words.

use serde::Deserialize;

/// The errnos that drivers answer with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Errno {
    /// What is asked for can't be.
    #[default]
    #[serde(rename = "EINVAL")]
    Invalid,
    /// The device does not do that; a state of kind *crypto* is then done in software.
    #[serde(rename = "EOPNOTSUPP")]
    NotSupported,
    /// A table is full.
    #[serde(rename = "ENOSPC")]
    NoSpace,
    /// Not for whoever asks: an untrusted virtual function.
    #[serde(rename = "EACCES")]
    Denied,
    /// Something else holds the device.
    #[serde(rename = "EBUSY")]
    Busy,
}

/// A refusal; `Display` is its text for the extended ACK, empty where the kernel sends none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// The errno.
    pub errno: Errno,
    /// The words.
    pub text: String,
}

impl Errno {
    /// Linux's number, positive.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::Denied => 13,
            Self::Busy => 16,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::NotSupported => 95,
        }
    }
}

impl Refusal {
    /// Without words.
    pub(crate) const fn new(errno: Errno) -> Self {
        Self { errno, text: String::new() }
    }

    pub(crate) fn invalid(text: &str) -> Self {
        Self { errno: Errno::Invalid, text: text.to_owned() }
    }
}
