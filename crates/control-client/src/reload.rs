//! `uxfrm reload` and `uxfrm release`: what is asked and answered.

use serde::{Deserialize, Serialize};

/// What a client asks, as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReloadRequest {
    /// What would be done.
    Show,
    /// Do it.
    Apply,
    /// Let go of what is held from the last run, and read nothing.
    Release,
}

/// What it is answered, as JSON, one after the other up to [`ReloadAnswer::Done`] or
/// [`ReloadAnswer::Failed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReloadAnswer {
    /// What was done or would be: `+` came, `~` changed, `-` went, `!` waits for the next start.
    Lines(Vec<String>),
    /// That was all.
    Done,
    /// Why nothing was done, or what of it was not.
    Failed(String),
}
