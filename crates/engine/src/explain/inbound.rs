//! Why a packet that came in passes or is dropped.

use std::net::IpAddr;
use std::sync::Arc;

use super::policies::PolicyExplanation;
use super::states::{NearState, StateMisfit, near_inbound, template_misfits};
use crate::datapath::inbound::slow::policy_check::{self, SecPath};
use crate::{
    Action, Direction, DropReason, FlowKey, PolicyEntry, Sa, SaId, SaProtocol, Settings, Snapshot,
    Spi, Template,
};

/// The outer header of a packet that came in ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedEsp {
    /// Source; unspecified if it is not known.
    pub source: IpAddr,
    /// Destination.
    pub destination: IpAddr,
    /// SPI.
    pub spi: Spi,
    /// The packet's mark.
    pub mark: u32,
}

/// A packet that came in, plain or in one layer of ESP.
#[derive(Clone, Debug)]
pub struct InboundExplanation {
    /// The state that it came by; `None` for a plain packet.
    pub state: Option<StateExplanation>,
    /// Which policies decide about the plain packet, as `in` or `fwd`.
    pub policies: PolicyExplanation,
    /// The templates of those policies, outermost first.
    pub templates: Vec<TemplateCheck>,
    /// What becomes of the packet.
    pub outcome: InboundOutcome,
}

/// The state of an SPI.
#[derive(Clone, Debug)]
pub struct StateExplanation {
    /// What was looked up.
    pub id: SaId,
    /// The state, if there is one.
    pub state: Option<Arc<Sa>>,
    /// States that nearly fit, nearest first. Empty where there is one.
    pub near: Vec<NearState>,
}

/// A template and the state that the packet came by.
#[derive(Clone, Debug)]
pub struct TemplateCheck {
    /// The template.
    pub template: Template,
    /// In what the state differs from it; `None` if the packet came by no state.
    pub misfits: Option<Vec<StateMisfit>>,
}

/// What becomes of a packet that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboundOutcome {
    /// It passes, if its number, ICV and padding are right.
    Passes,
    /// It is dropped.
    Dropped(DropReason),
}

impl InboundExplanation {
    /// Explains a packet of this flow that came plain, or in this ESP packet.
    #[must_use]
    pub fn of(
        snapshot: &Snapshot,
        settings: &Settings,
        esp: Option<ReceivedEsp>,
        flow: &FlowKey,
    ) -> Self {
        let direction = match settings.addresses.holds(flow.destination) {
            true => Direction::In,
            false => Direction::Forward,
        };
        let state = esp.map(|esp| StateExplanation::of(snapshot, esp));
        let policies = PolicyExplanation::of(&snapshot.spd, direction, flow);
        let sa = state.as_ref().and_then(|state| state.state.as_ref());
        let templates = policies.deciding.iter().rev().flat_map(|entry| checks(entry, sa));
        let templates = templates.collect();
        let outcome = outcome(state.as_ref(), &policies, flow);
        Self { state, policies, templates, outcome }
    }
}

impl StateExplanation {
    fn of(snapshot: &Snapshot, esp: ReceivedEsp) -> Self {
        let ReceivedEsp { source, destination, spi, mark } = esp;
        let id = SaId { destination, spi, protocol: SaProtocol::Esp };
        let state = snapshot.sad.inbound(destination, spi, id.protocol, mark).cloned();
        let near = match state {
            Some(_) => Vec::new(),
            None => near_inbound(&snapshot.sad, id, source, mark),
        };
        Self { id, state, near }
    }
}

/// The templates of a policy, outermost first.
fn checks<'a>(
    entry: &'a PolicyEntry,
    sa: Option<&'a Arc<Sa>>,
) -> impl Iterator<Item = TemplateCheck> + 'a {
    entry.templates().rev().map(move |template| TemplateCheck {
        template,
        misfits: sa.map(|sa| template_misfits(sa, &template, entry.if_id(), entry.device())),
    })
}

fn outcome(
    state: Option<&StateExplanation>,
    policies: &PolicyExplanation,
    flow: &FlowKey,
) -> InboundOutcome {
    let path = match state.map(|state| state.state.as_ref()) {
        None => Ok(SecPath::new()),
        Some(None) => Err(DropReason::InNoState),
        Some(Some(sa)) => sa.receives().map(|()| SecPath::from_iter([sa.as_ref()])),
    };
    let judged = path.and_then(|path| {
        let selects =
            |sa: &&Sa| sa.config().selector.as_ref().is_none_or(|selector| selector.matches(flow));
        if !path.iter().all(selects) {
            return Err(DropReason::InSelectorMismatch);
        }
        check_policies(policies, &path)
    });
    judged.map_or_else(InboundOutcome::Dropped, |()| InboundOutcome::Passes)
}

/// The verdict of the policies on a packet that came by these states.
fn check_policies(policies: &PolicyExplanation, path: &SecPath<'_>) -> Result<(), DropReason> {
    let deciding = &policies.deciding;
    if deciding.is_empty() {
        let must_match = policies.default == Action::Block || policy_check::has_tunnel(path);
        return if must_match { Err(policy_check::no_policy_reason(path)) } else { Ok(()) };
    }
    let mut blocks = deciding.iter().filter(|entry| entry.action() == Action::Block).peekable();
    if blocks.peek().is_some() {
        let is_held = blocks.all(|entry| entry.is_held());
        return Err(if is_held { DropReason::InHeld } else { DropReason::InPolicyBlock });
    }
    policy_check::check_templates(deciding.iter(), path)
}
