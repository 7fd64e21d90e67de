//! `uxfrm reload`, `uxfrm release` and `uxfrm xfrm sync`: what is asked and answered.

use serde::{Deserialize, Serialize};

/// What a client asks, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReloadRequest {
    /// What would be done.
    Show,
    /// Do it.
    Apply,
    /// Let go of what is held from the last run, and read nothing.
    Release,
    /// Do what a text says, which the client sends as it is, in datagrams, once it is told
    /// [`ReloadAnswer::Ready`].
    Sync(SyncRequest),
}

/// A text that is to come, and what is to be done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SyncRequest {
    /// Its name in errors.
    pub source: String,
    /// How long it is.
    pub bytes: u64,
    /// Whether it is carried out.
    pub course: SyncCourse,
    /// What becomes of what it does not say.
    pub others: SyncOthers,
}

/// Whether a text is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncCourse {
    /// What would be done is told.
    Show,
    /// It is done.
    Apply,
}

/// What becomes of states and policies that a text does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncOthers {
    /// They go.
    Remove,
    /// They stay.
    Keep,
}

/// What it is answered, as JSON, one after the other up to [`ReloadAnswer::Done`] or
/// [`ReloadAnswer::Failed`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReloadAnswer {
    /// The text of [`ReloadRequest::Sync`] may come.
    Ready,
    /// What was done or would be: `+` came, `~` changed, `-` went, `!` waits for the next start.
    Lines(Vec<String>),
    /// That was all.
    Done,
    /// Why nothing was done, or what of it was not.
    Failed(String),
}
