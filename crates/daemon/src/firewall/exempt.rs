//! What passes whatever the policies say: our own packets, what brings protected ones here, and
//! what finds the way to the neighbour.

use std::collections::BTreeSet;

use uxfrm_io::nftables::{Condition, Rule, RuleVerdict};
use uxfrm_packet::Version;

use super::chain_kind::ChainKind;

/// What the ruleset depends on beside policies: the TUN, the mark and the ports.
#[derive(Debug)]
pub(super) struct RulesetContext {
    /// The TUN: what comes in by it was checked by the engine, and what leaves by it will be.
    pub(super) tun: String,
    /// What our own sockets' packets have: they are protected, or nobody's to protect.
    pub(super) mark: u32,
    /// UDP ports of IKE and of ESP in UDP.
    pub(super) ports: BTreeSet<u16>,
    /// The devices of inline mode.
    pub(super) inline: Vec<String>,
    /// What of the policies the table says.
    pub(super) parts: &'static [ChainKind],
}

pub(super) const ESP: u8 = 50;
pub(super) const AH: u8 = 51;
pub(super) const UDP: u8 = 17;
pub(super) const ICMP: u8 = 1;
pub(super) const ICMPV6: u8 = 58;

/// Router and neighbour solicitation and advertisement, redirect (RFC 4861 §4).
const NEIGHBOUR_DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;

/// What reaches the host whatever the policies say.
pub(super) fn arriving(context: &RulesetContext) -> impl Iterator<Item = Rule> {
    let ah_in_v6 = [Condition::version(Version::V6), Condition::network_byte(6, AH)];
    let once = [
        vec![Condition::came_by("lo")],
        vec![Condition::protocol(ESP)],
        vec![Condition::version(Version::V4), Condition::protocol(AH)],
        ah_in_v6.into(),
        // The first fragment has all headers and is judged; without it the others are nothing.
        vec![Condition::version(Version::V6), Condition::later_fragment()],
    ];
    once.into_iter().chain(ports(context)).map(accept).chain(discovery())
}

/// UDP to IKE's ports and to those of ESP in UDP.
pub(super) fn ports(context: &RulesetContext) -> impl Iterator<Item = Vec<Condition>> {
    let port = |port: &u16| Condition::upper_pair(2, *port, u16::MAX);
    context.ports.iter().map(move |to| vec![Condition::protocol(UDP), port(to)])
}

/// What leaves whatever the policies say, what there is most of first. What is forwarded is judged
/// as well: rules that stand before ours may lead it past the TUN.
pub(super) fn leaving(context: &RulesetContext) -> impl Iterator<Item = Rule> {
    unjudged(context).chain(discovery())
}

/// Packets of ours and of the TUN, and those that do not leave.
pub(super) fn unjudged(context: &RulesetContext) -> impl Iterator<Item = Rule> {
    let ours = Condition::mark(context.mark, u32::MAX);
    let once = [ours, Condition::leaves_by(&context.tun), Condition::leaves_by("lo")];
    once.into_iter().map(|condition| accept(vec![condition]))
}

pub(super) fn discovery() -> impl Iterator<Item = Rule> {
    NEIGHBOUR_DISCOVERY.map(|kind| {
        // Hop limit 255: from a neighbour (RFC 4861 §3.1).
        accept(vec![
            Condition::version(Version::V6),
            Condition::protocol(ICMPV6),
            Condition::network_byte(7, 255),
            Condition::upper_byte(0, kind, u8::MAX),
        ])
    })
}

pub(super) fn accept(conditions: Vec<Condition>) -> Rule {
    Rule { conditions, set_lookup: None, counter: None, verdict: RuleVerdict::Accept }
}
