//! ICMP errors that would disclose what came in ESP.
//!
//! The host's kernel tells senders what has become of their packets (hop limit, no route, closed
//! port, too big), and quotes these: of IPv4 up to 548 bytes, of IPv6 up to 1232. Of a packet that
//! came out of a tunnel the error mostly comes from an address that no policy names, and would
//! leave plain; so would what routers behind this host tell. In Linux it does. A redirect is sent
//! where a packet comes out of one tunnel and goes into another, as that looks like a detour.
//!
//! So errors that leave by another device than the TUN are judged by the packet that they quote:
//! what came in by a policy `in` or `fwd` with templates does not leave in them. Others pass, as
//! what senders on this side need to hear.
//!
//! ```text
//! out:         … · ICMP: jump errors · …
//! errors:      ICMP errors, redirects of IPv4: goto quoted · redirects of IPv6: goto redirected
//! quoted:      jump in-quoted-sub · jump fwd-quoted-sub
//! redirected:  jump fwd-redirected-sub
//! *-sub:       sub policies: drop, or goto the main ones · jump to them
//! the others:  main policies: drop, or return
//! ```
//!
//! Both directions are asked, as a quote does not tell whether its packet was for this host.

use uxfrm_engine::{DropReason, PolicyKind};
use uxfrm_io::nftables::{Chain, Condition, Rule, RuleVerdict};
use uxfrm_packet::Version;

use super::{
    chain_kind::ChainKind,
    default_rules::drop,
    exempt::{ICMP, ICMPV6, RulesetContext, accept},
    ruleset_state::RulesetState,
};

/// ICMP's types that quote a packet: destination unreachable, source quench, redirect, time
/// exceeded, parameter problem (RFC 792).
const QUOTING: [u8; 5] = [3, 11, 5, 12, 4];

/// ICMPv6's types from here on are no errors (RFC 4443 §2.1).
const INFORMATIONAL: u8 = 128;

/// ICMPv6's type of redirects (RFC 4861 §4.5).
const REDIRECT_V6: u8 = 137;

/// The chains that judge by quotes.
const PARTS: [ChainKind; 3] =
    [ChainKind::QuotedIn, ChainKind::QuotedForward, ChainKind::RedirectedForward];

/// What leads ICMP to these chains, and comes back with what may leave.
pub(super) fn entry() -> impl Iterator<Item = Rule> {
    [(Version::V4, ICMP), (Version::V6, ICMPV6)].into_iter().map(|(version, protocol)| {
        jump(vec![Condition::version(version), Condition::protocol(protocol)], "errors")
    })
}

/// The chains, with the policies as they are laid out.
pub(super) fn chains(context: &RulesetContext, layout: &RulesetState) -> Vec<Chain> {
    let of_part = |part: ChainKind| {
        let mut sub = layout.rules(part, PolicyKind::Sub);
        sub.push(jump(Vec::new(), part.chain(PolicyKind::Main)));
        [(PolicyKind::Main, layout.rules(part, PolicyKind::Main)), (PolicyKind::Sub, sub)]
    };
    around(context, of_part)
}

/// The chains, of which nothing comes back.
pub(super) fn closed(context: &RulesetContext) -> Vec<Chain> {
    let all = || vec![drop(Vec::new(), DropReason::OutQuotesProtected)];
    around(context, |_part| [(PolicyKind::Main, Vec::new()), (PolicyKind::Sub, all())])
}

fn around(
    context: &RulesetContext,
    of_part: impl Fn(ChainKind) -> [(PolicyKind, Vec<Rule>); 2],
) -> Vec<Chain> {
    if !context.parts.contains(&ChainKind::QuotedIn) {
        return Vec::new();
    }
    let inner = |name, rules| Chain { name, hook: None, rules };
    let [to_host, forwarded, redirected] =
        PARTS.map(|part| jump(Vec::new(), part.chain(PolicyKind::Sub)));
    let of_policies = PARTS
        .into_iter()
        .flat_map(|part| of_part(part).map(|(kind, rules)| inner(part.chain(kind), rules)));
    let ways = [
        inner("quoted", vec![to_host, forwarded]),
        inner("redirected", vec![redirected]),
        inner("errors", errors().collect()),
    ];
    of_policies.chain(ways).collect()
}

fn errors() -> impl Iterator<Item = Rule> {
    let kind = |version, kind, mask| {
        vec![Condition::version(version), Condition::upper_byte(0, kind, mask)]
    };
    let of_v4 = QUOTING.map(|quoting| goto(kind(Version::V4, quoting, u8::MAX), "quoted"));
    let of_v6 = [
        goto(kind(Version::V6, 0, INFORMATIONAL), "quoted"),
        goto(kind(Version::V6, REDIRECT_V6, u8::MAX), "redirected"),
    ];
    of_v4.into_iter().chain(of_v6)
}

fn goto(conditions: Vec<Condition>, chain: &'static str) -> Rule {
    Rule { verdict: RuleVerdict::Goto(chain), ..accept(conditions) }
}

fn jump(conditions: Vec<Condition>, chain: &'static str) -> Rule {
    Rule { verdict: RuleVerdict::Jump(chain), ..accept(conditions) }
}
