//! What one check has found.

use std::fmt;

use serde::Serialize;

/// How bad it is, from good to bad.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Nothing to do.
    Ok,
    /// uxfrm works, and something does not that a user may want.
    Warn,
    /// uxfrm, or an IKE daemon on it, does not work.
    Fail,
}

impl Severity {
    pub(super) const fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warn => 1,
            Self::Fail => 2,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct Finding {
    /// The check's name.
    pub(super) check: String,
    pub(super) severity: Severity,
    /// What is so.
    pub(super) found: String,
    /// A command that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Self { check: check.into(), severity: Severity::Ok, found: found.into(), mend: None }
    }

    pub(super) fn warn(check: impl Into<String>, found: impl Into<String>, mend: &str) -> Self {
        let mend = Some(mend.to_owned());
        Self { check: check.into(), severity: Severity::Warn, found: found.into(), mend }
    }

    pub(super) fn fail(check: impl Into<String>, found: impl Into<String>, mend: &str) -> Self {
        let mend = Some(mend.to_owned());
        Self { check: check.into(), severity: Severity::Fail, found: found.into(), mend }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:<4}  {:<14}  {}", self.severity.word(), self.check, self.found)?;
        self.mend.iter().try_for_each(|mend| write!(out, "; mend: {mend}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_with_its_mend() {
        let found = Finding::fail("TUN", "no /dev/net/tun", "modprobe tun");
        assert_eq!(found.to_string(), "fail  TUN             no /dev/net/tun; mend: modprobe tun");
        assert!(Severity::Ok < Severity::Warn && Severity::Warn < Severity::Fail);
    }
}
