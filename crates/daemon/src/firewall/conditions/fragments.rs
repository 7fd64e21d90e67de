//! Policies as conditions that plain fragments meet: what only a whole datagram can be judged by
//! passes.

use uxfrm_engine::{Action, Direction, Mark, Mode, Policy, PortMask, Prefix, Selector, Template};

use super::super::{
    chain_kind::ChainKind,
    exempt::UDP,
    run::{Alternative, Outcome},
};
use super::{conditions, refusal};

const ANY: PortMask = PortMask { value: 0, mask: 0 };

const UNMARKED: Mark = Mark { value: 0, mask: 0 };

/// The fragments that a policy has pass until they are a datagram.
pub(super) fn of_policy(part: ChainKind, policy: &Policy) -> Vec<Alternative> {
    let of = |selector: Selector| {
        let (mark, templates) = (UNMARKED, Vec::new());
        let bare = Policy { selector, mark, templates, ..policy.clone() };
        conditions(part, &bare, Outcome::Pass)
    };
    let portless = Selector { source_port: ANY, destination_port: ANY, ..policy.selector };
    if refusal(policy).is_none() {
        return if asks_for_more(policy) { of(portless) } else { Vec::new() };
    }
    // Packets without a mark meet it here, and may have one when their datagram is judged.
    if policy.mark.mask != 0 && policy.mark.value & policy.mark.mask == 0 {
        return of(portless);
    }
    match policy.direction {
        Direction::In => carrier(policy).map(of).unwrap_or_default(),
        Direction::Forward | Direction::Out => Vec::new(),
    }
}

/// Whether a policy asks for what no fragment tells.
fn asks_for_more(policy: &Policy) -> bool {
    let selector = &policy.selector;
    [selector.source_port.mask, selector.destination_port.mask].iter().any(|mask| *mask != 0)
        || policy.mark.mask != 0
}

/// What may be IKE or ESP in UDP, which as whole datagrams are exempt: under a policy that
/// protects, what goes to the end that its last template names, if the policy is for that end too.
fn carrier(policy: &Policy) -> Option<Selector> {
    let selector = &policy.selector;
    let destination = match policy.action {
        Action::Block => selector.destination,
        Action::Allow => end(selector, policy.templates.last()?)?,
    };
    [0, UDP].contains(&selector.protocol).then_some(Selector {
        destination,
        protocol: UDP,
        source_port: ANY,
        destination_port: ANY,
        ..*selector
    })
}

/// Where a template's packets come to, if the selector holds it.
fn end(selector: &Selector, template: &Template) -> Option<Prefix> {
    let end = template.destination;
    match template.mode {
        Mode::Tunnel | Mode::Beet | Mode::Iptfs if !end.is_unspecified() => {
            selector.destination.contains(end).then(|| Prefix::host(end))
        }
        Mode::Tunnel
        | Mode::Beet
        | Mode::Iptfs
        | Mode::Transport
        | Mode::RouteOptimization
        | Mode::InTrigger => Some(selector.destination),
    }
}
