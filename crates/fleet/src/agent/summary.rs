//! What the agent tells people about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Agent, session::Range, tenure::Phase};
use crate::{members::Duty, names::GatewayName, seal::Serial};

/// How one gateway of a fleet is, as its agent sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AgentSummary {
    /// The epoch that it knows; 0 before there is one.
    pub epoch: Serial,
    /// The own duty, as etcd said last; none before it joined.
    pub duty: Option<Duty>,
    /// How it is without etcd.
    pub store: StoreContact,
    /// Children that the gateway has.
    pub installed: usize,
    /// Children that it is to have.
    pub coming: usize,
    /// Children that it gives up.
    pub leaving: usize,
    /// Children that it can't have.
    pub refused: usize,
    /// Which of the others are heard.
    pub heard: BTreeMap<GatewayName, bool>,
}

/// Whether a gateway has etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreContact {
    /// It answers, and the lease lives.
    Held,
    /// It answers; the gateway comes back to its near edges.
    Returning,
    /// It does not answer, and the gateway accepts up to its near edges.
    Lost,
    /// It does not answer, the others know it, and the gateway goes on.
    GoesOn,
}

impl Agent {
    /// How it is.
    #[must_use]
    pub fn summary(&self) -> AgentSummary {
        let in_phase = |phases: &[Phase]| {
            let tenures = self.moves.tenures.values();
            tenures.filter(|tenure| phases.contains(&tenure.phase)).count()
        };
        AgentSummary {
            epoch: self.view.epoch(),
            duty: self.duty(),
            store: self.store_contact(),
            installed: in_phase(&[Phase::Installed]),
            coming: in_phase(&[Phase::Wanted, Phase::Reading, Phase::Installing]),
            leaving: self.moves.leaving(),
            refused: in_phase(&[Phase::Refused]),
            heard: self.heard_peers(),
        }
    }

    /// What was refused since this was asked last, in sentences.
    pub fn take_refused(&mut self) -> Vec<String> {
        std::mem::take(&mut self.view.refused)
    }

    fn store_contact(&self) -> StoreContact {
        match self.session.range() {
            Range::Far => StoreContact::GoesOn,
            Range::Returning => StoreContact::Returning,
            Range::Near | Range::Asking(_) if self.has_store() => StoreContact::Held,
            Range::Near | Range::Asking(_) => StoreContact::Lost,
        }
    }

    fn heard_peers(&self) -> BTreeMap<GatewayName, bool> {
        let members = self.view.members.iter().flat_map(|members| members.record.gateways.keys());
        let others = members.filter(|name| **name != self.config.name);
        let silence = self.config.timings.silence;
        let heard = |name: &GatewayName| self.peers.is_heard(name, silence, self.now);
        others.map(|name| (name.clone(), heard(name))).collect()
    }
}
