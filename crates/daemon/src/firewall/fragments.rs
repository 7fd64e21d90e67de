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

use uxfrm_engine::PolicyKind;
use uxfrm_io::nftables::{Chain, Condition, Destination, Hook, Rule, RuleVerdict};
use uxfrm_packet::Version;

use super::{
    chain_kind::ChainKind,
    exempt::{self, AH, ESP, RulesetContext, accept},
    ruleset_state::RulesetState,
};

/// What is for the host itself, and judged by the policies `in`.
const TO_HOST: [Destination; 4] =
    [Destination::Local, Destination::Broadcast, Destination::Anycast, Destination::Multicast];

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
    let exempt = exempt.into_iter().chain(exempt::ports(context)).map(accept);
    exempt.chain(judged(ChainKind::WholeIn, ChainKind::In))
}

fn judged(whole: ChainKind, policies: ChainKind) -> [Rule; 3] {
    let jump = |kind| Rule { verdict: RuleVerdict::Jump(whole.chain(kind)), ..accept(Vec::new()) };
    let [sub, main] = [PolicyKind::Sub, PolicyKind::Main].map(jump);
    [sub, main, goto(Vec::new(), policies.chain(PolicyKind::Sub))]
}

fn goto(conditions: Vec<Condition>, chain: &'static str) -> Rule {
    Rule { verdict: RuleVerdict::Goto(chain), ..accept(conditions) }
}
