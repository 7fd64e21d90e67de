//! Plain fragments, before connection tracking puts them together.
//!
//! Decrypted fragments that are to be forwarded pass the host's stack one by one. Connection
//! tracking puts them together, and plain ones from the wire among them: whoever sends such
//! replaces parts of a protected datagram, or has its fragments go. So plain fragments are judged
//! before (`NF_IP_PRI_RAW_BEFORE_DEFRAG`), by the same chains of policies as packets at *input*
//! and *forward*; which of them, the host's routes say.
//!
//! ```text
//! fragments:     no fragment, by the TUN, lo → accept · to the host: goto in-fragments
//!                · by inline mode's devices → accept · goto fwd-fragments
//! in-fragments:  ESP, AH, IKE → accept · jump in-whole · goto in-sub
//! fwd-fragments: jump fwd-whole · goto fwd-sub
//! *-whole:       what may be of a datagram that passes → accept
//! ```
//!
//! A fragment tells no ports and, so early, not the mark that rules will give it. What only its
//! whole datagram can be judged by passes here: policies that let pass and ask for ports or a mark
//! stand in `*-whole` without these. Policies that drop need not: a fragment meets no rule that
//! asks for ports, and if one behind drops all, the datagram is lost either way.

use uxfrm_engine::{
    Action, Direction, Mark, Mode, Policy, PolicyKind, PortMask, Prefix, Selector, Template,
};
use uxfrm_io::nftables::{Chain, Condition, Destination, Hook, Rule, RuleVerdict};
use uxfrm_packet::Version;

use super::{
    chain_kind::ChainKind,
    rules::{self, AH, ESP, RulesetContext, UDP, accept},
    ruleset_state::RulesetState,
    run::{Alternative, Outcome},
    upper_layer,
};

const ANY: PortMask = PortMask { value: 0, mask: 0 };

/// What may stand between a fragment header and the upper layer: hop-by-hop options, routing,
/// fragment and authentication headers, destination options.
const EXTENSIONS: [u8; 5] = [0, 43, 44, AH, 60];

const UNMARKED: Mark = Mark { value: 0, mask: 0 };

/// What is for the host itself, and judged by the policies `in`.
const TO_HOST: [Destination; 4] =
    [Destination::Local, Destination::Broadcast, Destination::Anycast, Destination::Multicast];

/// The fragments that a policy has pass until they are a datagram.
pub(super) fn of_policy(part: ChainKind, policy: &Policy) -> Vec<Alternative> {
    let of = |selector: Selector| {
        let (mark, templates) = (UNMARKED, Vec::new());
        let bare = Policy { selector, mark, templates, ..policy.clone() };
        rules::conditions(part, &bare, Outcome::Pass)
    };
    let portless = Selector { source_port: ANY, destination_port: ANY, ..policy.selector };
    if rules::refusal(policy).is_none() {
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

/// What a packet must meet besides addresses: one of the lists. In IPv6 a fragment tells its
/// datagram's protocol only if its sender is honest: the next header of a later one is never looked
/// at, and a first one may end before the upper layer. So a policy that refuses a protocol to
/// forwarded packets takes all fragments; one that asks for ports, and one for the host, which
/// joins plain fragments to plain ones alone, those that hide their upper layer.
pub(super) fn upper(
    part: ChainKind,
    selector: &Selector,
    version: Version,
    outcome: Outcome,
) -> Vec<Alternative> {
    let mut all = upper_layer::alternatives(selector);
    let asks_for_ports = selector.source_port.mask | selector.destination_port.mask != 0;
    match (outcome, version) {
        (Outcome::Drop(_), Version::V6) if !asks_for_ports && selector.protocol == 0 => {}
        (Outcome::Drop(_), Version::V6) if !asks_for_ports && part == ChainKind::Forward => {
            all.push(vec![Condition::fragment(Version::V6)]);
        }
        (Outcome::Drop(_), Version::V6) => {
            all.extend(EXTENSIONS.map(|next| vec![Condition::fragment_of(next)]));
        }
        (Outcome::Pass | Outcome::Drop(_) | Outcome::Divert, Version::V4 | Version::V6) => {}
    }
    all
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

/// The chains around those of the policies.
pub(super) fn chains(context: &RulesetContext, layout: &RulesetState) -> Vec<Chain> {
    if !context.parts.contains(&ChainKind::WholeIn) {
        return Vec::new();
    }
    let inner = |name, rules| Chain { name, hook: None, rules };
    let of_part = |part: ChainKind| {
        [PolicyKind::Sub, PolicyKind::Main]
            .map(|kind| inner(part.chain(kind), layout.rules(part, kind)))
    };
    let mut chains: Vec<_> =
        [ChainKind::WholeIn, ChainKind::WholeForward].into_iter().flat_map(of_part).collect();
    chains.extend([
        inner("in-fragments", to_host(context).collect()),
        inner("fwd-fragments", judged(ChainKind::WholeForward, ChainKind::Forward).into()),
        Chain { name: "fragments", hook: Some(Hook::Fragments), rules: first(context).collect() },
    ]);
    chains
}

/// What no fragment is ends first.
fn first(context: &RulesetContext) -> impl Iterator<Item = Rule> {
    let passes = [
        vec![Condition::version(Version::V4), Condition::whole(Version::V4)],
        vec![Condition::version(Version::V6), Condition::whole(Version::V6)],
        vec![Condition::came_by(&context.tun)],
        vec![Condition::came_by("lo")],
    ];
    let to_host = TO_HOST.map(|kind| goto(vec![Condition::goes_to(kind)], "in-fragments"));
    // What the host's stack is kept out of is judged by their router.
    let inline = context.inline.iter().map(|device| accept(vec![Condition::came_by(device)]));
    let forwarded = goto(Vec::new(), "fwd-fragments");
    passes.map(accept).into_iter().chain(to_host).chain(inline).chain([forwarded])
}

fn to_host(context: &RulesetContext) -> impl Iterator<Item = Rule> {
    let exempt = [
        vec![Condition::protocol(ESP)],
        vec![Condition::version(Version::V4), Condition::protocol(AH)],
        vec![Condition::version(Version::V6), Condition::fragment_of(AH)],
    ];
    let exempt = exempt.into_iter().chain(rules::ports(context)).map(accept);
    exempt.chain(judged(ChainKind::WholeIn, ChainKind::In))
}

/// PoliciesBefore the default to block what comes to the host: of UDP it may be IKE, and it is
/// judged whole.
pub(super) fn undecided() -> [Rule; 2] {
    [(Version::V4, Condition::later_of_ipv4()), (Version::V6, Condition::later_fragment())].map(
        |(version, later)| {
            accept(vec![Condition::version(version), Condition::protocol(UDP), later])
        },
    )
}

fn judged(whole: ChainKind, policies: ChainKind) -> [Rule; 3] {
    let jump = |kind| Rule { verdict: RuleVerdict::Jump(whole.chain(kind)), ..accept(Vec::new()) };
    let [sub, main] = [PolicyKind::Sub, PolicyKind::Main].map(jump);
    [sub, main, goto(Vec::new(), policies.chain(PolicyKind::Sub))]
}

fn goto(conditions: Vec<Condition>, chain: &'static str) -> Rule {
    Rule { verdict: RuleVerdict::Goto(chain), ..accept(conditions) }
}
