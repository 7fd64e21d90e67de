//! A device's refusal: an errno, and the driver's text.

use serde::Deserialize;

/// errnos of drivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Errno {
    /// The request is invalid.
    #[default]
    #[serde(rename = "EINVAL")]
    Invalid,
    /// Not supported; an SA of kind *crypto* then falls back to software.
    #[serde(rename = "EOPNOTSUPP")]
    NotSupported,
    /// A table is full.
    #[serde(rename = "ENOSPC")]
    NoSpace,
    /// The requester is an untrusted virtual function.
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
    /// The text.
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
    /// A refusal without text.
    pub(crate) const fn new(errno: Errno) -> Self {
        Self { errno, text: String::new() }
    }

    pub(crate) fn invalid(text: &str) -> Self {
        Self { errno: Errno::Invalid, text: text.to_owned() }
    }
}
