//! `uxfrm upgrade`: what is asked and answered.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a client asks, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UpgradeRequest {
    /// The program that is to take over; `None` for the file that the running one was started from.
    pub binary: Option<PathBuf>,
}

/// What it is answered, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpgradeAnswer {
    /// Another process has taken over: its release and number, and for how many microseconds nobody
    /// carried packets.
    Done {
        /// The release.
        release: String,
        /// The process.
        process: u32,
        /// Packets waited in the kernel's queues for so long.
        gap_microseconds: u64,
    },
    /// The gateway runs on as it was, and why.
    Failed(String),
}
