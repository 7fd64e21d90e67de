//! Why a plain packet leaves as it does.

use std::net::IpAddr;
use std::sync::Arc;

use super::policies::PolicyExplanation;
use super::states::{TemplateExplanation, near_outbound};
use crate::bundle::{self, Bundle, Deciding};
use crate::events::acquire::MissingSa;
use crate::spd::policy::MAX_TEMPLATES;
use crate::{
    Action, Attachment, Direction, DropReason, FlowKey, KeyManagers, Moment, PolicyIndex, Sa,
    Settings, Snapshot, TemplateLevel, UdpEncap,
};

/// A plain packet on its way out.
#[derive(Clone, Debug)]
pub struct OutboundExplanation {
    /// Which policies decide.
    pub policies: PolicyExplanation,
    /// The templates of those policies, innermost first, up to the first one without a state.
    pub templates: Vec<TemplateExplanation>,
    /// What becomes of the packet.
    pub outcome: OutboundOutcome,
}

/// What becomes of a plain packet.
#[derive(Clone, Debug)]
pub enum OutboundOutcome {
    /// It leaves in plaintext: no policy protects it.
    Plain,
    /// It leaves in ESP.
    Protected(ProtectedPath),
    /// It waits for a state that key managers make.
    Waits(AcquireStage),
    /// It is dropped.
    Dropped(DropReason),
}

/// Whether key managers know which state is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireStage {
    /// The packet has them asked.
    Due,
    /// They have been asked, and have not answered.
    Pending,
}

/// How a packet is encapsulated.
#[derive(Clone, Debug)]
pub struct ProtectedPath {
    /// The states, innermost first.
    pub states: Vec<Arc<Sa>>,
    /// Source and destination of the outermost header.
    pub ends: (IpAddr, IpAddr),
    /// UDP ports outside ESP, if there are any.
    pub encap: Option<UdpEncap>,
    /// The largest packet towards the destination, in bytes.
    pub path_mtu: u16,
    /// The largest plain packet that fits, in bytes.
    pub inner_mtu: usize,
    /// The largest that passes: of IPv6 at least 1280 bytes, in fragments where less fits.
    pub limit: usize,
    /// Bytes that a plain packet of `inner_mtu` bytes gains, headers, padding and ICV.
    pub overhead: usize,
    /// The device that encrypts, if one does.
    pub device: Option<Attachment>,
}

impl OutboundExplanation {
    /// Explains a packet of this flow; `settings` are a worker's, with the host of the snapshot.
    #[must_use]
    pub fn of(snapshot: &Snapshot, settings: &Settings, flow: &FlowKey, now: Moment) -> Self {
        let policies = PolicyExplanation::of(&snapshot.spd, Direction::Out, flow);
        let deciding: Deciding<'_> = policies.deciding.iter().collect();
        let is_protected = deciding.iter().all(|entry| entry.action() == Action::Allow);
        let templates = match is_protected {
            true => templates(snapshot, settings, &deciding, flow),
            false => Vec::new(),
        };
        let outcome = outcome(snapshot, settings, &deciding, flow, now);
        drop(deciding);
        Self { policies, templates, outcome }
    }
}

impl OutboundOutcome {
    /// What becomes of a packet of this flow, and by which policies: for who asks about many flows.
    #[must_use]
    pub fn of(
        snapshot: &Snapshot,
        settings: &Settings,
        flow: &FlowKey,
        now: Moment,
    ) -> (Vec<PolicyIndex>, Self) {
        let deciding: Deciding<'_> = snapshot.spd.deciding(Direction::Out, flow).collect();
        let indexes = deciding.iter().map(|entry| entry.index()).collect();
        (indexes, outcome(snapshot, settings, &deciding, flow, now))
    }
}

fn outcome(
    snapshot: &Snapshot,
    settings: &Settings,
    deciding: &Deciding<'_>,
    flow: &FlowKey,
    now: Moment,
) -> OutboundOutcome {
    let blocks = || deciding.iter().filter(|entry| entry.action() == Action::Block);
    if blocks().next().is_some() {
        let is_held = blocks().all(|entry| entry.is_held());
        return OutboundOutcome::Dropped(match is_held {
            true => DropReason::OutHeld,
            false => DropReason::OutPolicyBlock,
        });
    }
    if deciding.is_empty() && snapshot.spd.defaults().outbound == Action::Block {
        return OutboundOutcome::Dropped(DropReason::OutDefaultBlock);
    }
    let mut missing = Vec::new();
    match bundle::build(snapshot, deciding, flow, settings, &mut missing) {
        Ok(bundle) if bundle.layers.is_empty() => OutboundOutcome::Plain,
        Ok(bundle) => OutboundOutcome::Protected(ProtectedPath::of(&bundle, flow)),
        Err(DropReason::OutNoState) => no_state(snapshot, missing.last(), now),
        Err(reason) => OutboundOutcome::Dropped(reason),
    }
}

/// What becomes of a packet whose required state is missing.
fn no_state(snapshot: &Snapshot, required: Option<&MissingSa>, now: Moment) -> OutboundOutcome {
    let acquires = &snapshot.acquires;
    match required {
        Some(required) if acquires.is_refused(&required.wanted, now) => {
            OutboundOutcome::Dropped(DropReason::OutDeviceRefused)
        }
        Some(required) if acquires.key_managers == KeyManagers::Listening => {
            OutboundOutcome::Waits(match acquires.pending.contains_key(&required.wanted) {
                true => AcquireStage::Pending,
                false => AcquireStage::Due,
            })
        }
        Some(_) | None => OutboundOutcome::Dropped(DropReason::OutNoState),
    }
}

fn templates(
    snapshot: &Snapshot,
    settings: &Settings,
    deciding: &Deciding<'_>,
    flow: &FlowKey,
) -> Vec<TemplateExplanation> {
    let mut explained = Vec::new();
    let mut inner = (flow.source, flow.destination);
    for entry in deciding {
        for template in entry.templates().take(MAX_TEMPLATES) {
            let ends = bundle::ends(&template, inner);
            let query = bundle::query(entry, &template, ends, flow, settings);
            let state = snapshot.sad.lookup_outbound_on(entry.device(), &query).ok().cloned();
            let near = match state {
                Some(_) => Vec::new(),
                None => near_outbound(&snapshot.sad, &query, entry.device()),
            };
            let is_missing = state.is_none();
            explained.push(TemplateExplanation { template, ends, state, near });
            if !is_missing {
                inner = ends;
            } else if template.level == TemplateLevel::Required {
                return explained;
            }
        }
    }
    explained
}

impl ProtectedPath {
    fn of(bundle: &Bundle, flow: &FlowKey) -> Self {
        let states: Vec<_> = bundle.layers.iter().map(|layer| Arc::clone(&layer.sa)).collect();
        let ends = bundle
            .layers
            .iter()
            .fold((flow.source, flow.destination), |inner, layer| layer.ends().unwrap_or(inner));
        let inner_mtu = bundle.inner_mtu;
        Self {
            encap: states.last().and_then(|sa| sa.config().encap),
            states,
            ends,
            path_mtu: bundle.mtu,
            inner_mtu,
            limit: bundle.limit(flow.version()),
            overhead: usize::from(bundle.mtu).saturating_sub(inner_mtu),
            device: bundle.device,
        }
    }
}
