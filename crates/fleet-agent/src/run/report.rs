//! What the agent tells people: lines of the log, and a file for `uxfrm fleet status`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use uxfrm_fleet::agent::{AgentSummary, StoreContact};

use crate::whole_file;

/// The file, in the agent's state directory.
const FILE: &str = "status.json";

/// What the agent told last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct AgentStatus {
    /// The agent's process.
    pub(crate) process: u32,
    /// The endpoint of etcd that serves; none where none does.
    pub(crate) endpoint: Option<String>,
    /// Why none does.
    pub(crate) lost: Option<String>,
    /// What was refused last.
    pub(crate) refused: Option<String>,
    /// How the agent is.
    pub(crate) agent: AgentSummary,
}

/// Tells it.
#[derive(Debug)]
pub(super) struct Reporter {
    file: PathBuf,
    endpoint: Option<String>,
    lost: Option<String>,
    refused: Option<String>,
    told: Option<AgentStatus>,
}

impl AgentStatus {
    /// What an agent with this state directory told last, if there is one that runs.
    pub(crate) fn read(state: &Path) -> Option<Self> {
        let status: Self = serde_json::from_slice(&fs::read(state.join(FILE)).ok()?).ok()?;
        let is_running = Path::new("/proc").join(status.process.to_string()).exists();
        is_running.then_some(status)
    }
}

impl Reporter {
    pub(super) fn new(state: &Path) -> Self {
        let file = state.join(FILE);
        Self { file, endpoint: None, lost: None, refused: None, told: None }
    }

    pub(super) fn connected(&mut self, endpoint: &str) {
        tracing::info!("etcd at {endpoint} serves");
        (self.endpoint, self.lost) = (Some(endpoint.to_owned()), None);
    }

    pub(super) fn lost(&mut self, why: &str) {
        // One line, not one for each attempt.
        if self.endpoint.is_some() || self.lost.as_deref() != Some(why) {
            tracing::warn!("without etcd: {why}");
        }
        (self.endpoint, self.lost) = (None, Some(why.to_owned()));
    }

    pub(super) fn refused(&mut self, why: &str) {
        if self.refused.as_deref() != Some(why) {
            tracing::error!("{why}");
        }
        self.refused = Some(why.to_owned());
    }

    pub(super) fn tell(&mut self, agent: &AgentSummary) {
        let status = AgentStatus {
            process: std::process::id(),
            endpoint: self.endpoint.clone(),
            lost: self.lost.clone(),
            refused: self.refused.clone(),
            agent: agent.clone(),
        };
        if self.told.as_ref() == Some(&status) {
            return;
        }
        self.log_changes(agent);
        let sentence = format!("{} children; {}", agent.installed, sentence(agent.store));
        let _not_under_systemd = sd_notify::notify(&[NotifyState::Status(&sentence)]);
        if let Err(error) = self.write(&status) {
            tracing::warn!("{}: {error}", self.file.display());
        }
        self.told = Some(status);
    }

    fn log_changes(&self, agent: &AgentSummary) {
        let before = self.told.as_ref().map(|told| &told.agent);
        if before.map(|before| before.store) != Some(agent.store) {
            tracing::info!("{}", sentence(agent.store));
        }
        if before.map(|before| (before.epoch, before.duty)) != Some((agent.epoch, agent.duty)) {
            tracing::info!("epoch {}: {:?}", agent.epoch.0, agent.duty);
        }
        for (name, is_heard) in &agent.heard {
            let was_heard = before.and_then(|before| before.heard.get(name).copied());
            match (was_heard, is_heard) {
                (Some(false) | None, true) => tracing::info!("gateway {name} is heard"),
                (Some(true), false) => tracing::warn!("gateway {name} is not heard"),
                (Some(true), true) | (Some(false) | None, false) => {}
            }
        }
    }

    fn write(&self, status: &AgentStatus) -> std::io::Result<()> {
        // Names, numbers and texts: JSON has a form for them.
        whole_file::replace(&self.file, &serde_json::to_vec(status).unwrap_or_default())
    }
}

pub(crate) const fn sentence(store: StoreContact) -> &'static str {
    match store {
        StoreContact::Held => "etcd answers",
        StoreContact::Returning => "etcd answers again",
        StoreContact::Lost => "without etcd: the gateway ends at its deadline",
        StoreContact::GoesOn => "without etcd: the gateway goes on with what it has",
    }
}
