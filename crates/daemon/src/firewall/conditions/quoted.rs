//! Policies as conditions that ICMP errors meet, by the packets that they quote.
//!
//! What came in plain and a policy protects was dropped before anybody could tell its sender of it.
//! So a quoted packet that a policy `in` or `fwd` protects came in ESP, and the first policy that
//! fits decides, as it did then. A quote tells less than the packet did, and where it does not tell
//! what a policy asks for, that fits if it protects, and does not if it lets pass:
//!
//! - ports, where IP options or extension headers stand before them, and in later fragments;
//! - IPv6's upper-layer protocol, where extension headers stand before it;
//! - the mark and the device of the packet. But policies for all addresses that ask for a mark are
//!   for errors that have it (`fwmark_reflect`), and those that ask for a device for none: else all
//!   errors of the host would be dropped.
//!
//! Policies that block say nothing: what they are for is dropped, however it came.

use uxfrm_engine::{Action, DropReason, Family, Mark, Policy, Prefix, Selector};
use uxfrm_io::nftables::Condition;
use uxfrm_packet::Version;

use crate::config::DIVERTED;

use super::super::{
    run::{Alternative, Outcome},
    upper_layer,
};
use super::{EXTENSIONS, prefix, refusal};

/// What becomes of errors about a policy's packets.
pub(super) fn outcome(policy: &Policy) -> Outcome {
    let was_protected =
        matches!(refusal(policy), Some(DropReason::InUnprotected | DropReason::InHeld));
    if was_protected { Outcome::Drop(DropReason::OutQuotesProtected) } else { Outcome::Pass }
}

/// What an error must meet to quote a packet that a policy is for: one of the lists.
pub(super) fn errors(policy: &Policy, outcome: Outcome) -> Vec<Alternative> {
    let Some(unquoted) = around(policy, outcome) else { return Vec::new() };
    let selector = &policy.selector;
    let version = version(selector);
    let addresses = [
        prefix(selector.source).map(Condition::source),
        prefix(selector.destination).map(Condition::destination),
    ];
    let addresses: Vec<_> = addresses.into_iter().flatten().collect();
    let of_upper = |upper: Vec<Condition>| {
        let of_packet = addresses.iter().copied().chain(upper);
        let quoted: Option<Vec<_>> = of_packet.map(|condition| condition.quoted(version)).collect();
        Some([unquoted.clone(), quoted?].concat())
    };
    upper(selector, version, outcome).into_iter().filter_map(of_upper).collect()
}

/// What an ICMPv6 redirect must meet to be about packets of a policy. It goes to their source.
pub(super) fn redirects(policy: &Policy, outcome: Outcome) -> Vec<Alternative> {
    let selector = &policy.selector;
    let Some(mut conditions) = around(policy, outcome) else { return Vec::new() };
    match (version(selector), outcome) {
        (Version::V4, _) => return Vec::new(),
        (Version::V6, Outcome::Pass) if asks_for_upper_layer(selector) => return Vec::new(),
        (Version::V6, Outcome::Pass | Outcome::Drop(_) | Outcome::Divert) => {}
    }
    conditions.extend(prefix(selector.source).map(Condition::destination));
    conditions.extend(prefix(selector.destination).map(Condition::redirects));
    vec![conditions]
}

/// The conditions on the error itself; `None` for a policy that no quote is known to fit.
fn around(policy: &Policy, outcome: Outcome) -> Option<Vec<Condition>> {
    let selector = &policy.selector;
    let mark = Mark { mask: policy.mark.mask & !DIVERTED, ..policy.mark };
    let is_for_all = [selector.source, selector.destination].into_iter().all(is_any);
    let asks_for_more = mark.mask != 0 || selector.ifindex != 0;
    let of_mark = (mark.mask != 0).then(|| Condition::mark(mark.value, mark.mask));
    let more = match outcome {
        Outcome::Pass if asks_for_more || policy.action == Action::Block => return None,
        Outcome::Drop(_) if is_for_all && selector.ifindex != 0 => return None,
        Outcome::Drop(_) if is_for_all => of_mark,
        Outcome::Pass | Outcome::Drop(_) | Outcome::Divert => None,
    };
    Some([Condition::version(version(selector))].into_iter().chain(more).collect())
}

/// What the quoted packet must meet besides addresses, as conditions on the packet itself: one of
/// the lists.
fn upper(selector: &Selector, version: Version, outcome: Outcome) -> Vec<Vec<Condition>> {
    let mut all = upper_layer::alternatives(selector);
    if all.is_empty() || !asks_for_upper_layer(selector) {
        return all;
    }
    let has_next = |next| Condition::network_byte(6, next);
    let protocol = (selector.protocol != 0).then(|| Condition::protocol(selector.protocol));
    match (outcome, version) {
        (Outcome::Pass, Version::V4) if asks_for_ports(selector) => {
            let tells = [Condition::without_options(), Condition::whole_ipv4()];
            all.iter_mut().for_each(|conditions| conditions.extend(tells));
        }
        (Outcome::Pass, Version::V6) if selector.protocol == 0 => {
            let tells = EXTENSIONS.map(Condition::other_protocol);
            all.iter_mut().for_each(|conditions| conditions.extend(tells));
        }
        (Outcome::Drop(_) | Outcome::Divert, Version::V4) if asks_for_ports(selector) => {
            let hides = [Condition::with_options(), Condition::later_of_ipv4()];
            all.extend(hides.map(|hides| protocol.into_iter().chain([hides]).collect()));
        }
        (Outcome::Drop(_) | Outcome::Divert, Version::V6) => {
            all.extend(EXTENSIONS.map(|next| vec![has_next(next)]));
        }
        (Outcome::Pass | Outcome::Drop(_) | Outcome::Divert, Version::V4 | Version::V6) => {}
    }
    all
}

const fn asks_for_ports(selector: &Selector) -> bool {
    selector.source_port.mask | selector.destination_port.mask != 0
}

const fn asks_for_upper_layer(selector: &Selector) -> bool {
    asks_for_ports(selector) || selector.protocol != 0
}

fn is_any(of: Prefix) -> bool {
    prefix(of).is_none()
}

fn version(selector: &Selector) -> Version {
    match selector.family() {
        Family::V4 => Version::V4,
        Family::V6 => Version::V6,
    }
}
