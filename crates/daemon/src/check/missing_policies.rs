//! Policies that need another one beside them, or a setting of the host.

use std::collections::HashSet;

use uxfrm_engine::{Action, Direction, Family, Mode, PolicyEntry, PortMask, Prefix, Selector};

use super::{Finding, Subject};
use crate::wording;

/// Policies `in` for networks without one `fwd`: what comes out of the tunnel for hosts behind the
/// gateway is dropped (`in_no_policy`).
pub(super) fn in_without_fwd(subject: &Subject<'_>) -> Vec<Finding> {
    let forwarded = selectors(subject, Direction::Forward);
    let blocked = blocking(subject, Direction::Forward);
    let inbound = protecting(subject, Direction::In).filter(|entry| {
        let selector = entry.selector();
        is_tunnel(entry) && is_network(selector.destination) && !forwarded.cover(&selector)
    });
    let finding = |entry: &PolicyEntry| {
        let selector = entry.selector();
        let text = format!(
            "`{}` has no `dir fwd` beside it: packets for hosts in {} are dropped, only those for \
             the gateway's own addresses pass",
            wording::policy(entry),
            selector.destination
        );
        let add = format!("add the same line with `dir fwd`: policy add {selector} dir fwd tmpl …");
        told(text, add, blocked.cover(&selector))
    };
    inbound.map(finding).collect()
}

/// Policies `out` without one `in` or `fwd` for the answers.
pub(super) fn out_without_way_back(subject: &Subject<'_>) -> Vec<Finding> {
    let ways = [Direction::In, Direction::Forward];
    let back = ways.map(|way| selectors(subject, way));
    let blocked = ways.map(|way| blocking(subject, way));
    let outbound = protecting(subject, Direction::Out).filter(|entry| {
        let answers = reversed(&entry.selector());
        is_tunnel(entry) && !back.iter().any(|way| way.cover(&answers))
    });
    let finding = |entry: &PolicyEntry| {
        let answers = reversed(&entry.selector());
        let text = format!(
            "`{}` has no policy for the way back: answers out of the tunnel are dropped \
             (in_no_policy)",
            wording::policy(entry)
        );
        let add = format!("add: policy add {answers} dir in tmpl …, and the same with `dir fwd`");
        told(text, add, blocked.iter().any(|way| way.cover(&answers)))
    };
    outbound.map(finding).collect()
}

/// A policy that blocks the packets says that they are meant to be dropped.
fn told(text: String, add: String, is_blocked: bool) -> Finding {
    match is_blocked {
        true => Finding::note(text + ", as a policy that blocks them says", add),
        false => Finding::warning(text, add),
    }
}

/// Policies `fwd` on a host that forwards nothing.
pub(super) fn forwarding_is_off(subject: &Subject<'_>) -> Vec<Finding> {
    let families = [
        (Family::V4, subject.host.forwards_v4, "net.ipv4.ip_forward"),
        (Family::V6, subject.host.forwards_v6, "net.ipv6.conf.all.forwarding"),
    ];
    let mut findings = Vec::new();
    for (family, forwards, setting) in families {
        // An IKE daemon makes one for the gateway's own address as well.
        let mut meant = protecting(subject, Direction::Forward)
            .filter(|entry| entry.family() == family && is_network(entry.selector().destination));
        if let (false, Some(first)) = (forwards, meant.next()) {
            findings.push(Finding::warning(
                format!(
                    "{setting} is 0: the kernel forwards nothing that comes out of tunnels for \
                     hosts behind this one, as `{}` means it to",
                    wording::policy(first)
                ),
                format!("sysctl -w {setting}=1, and in /etc/sysctl.d for the next boot"),
            ));
        }
    }
    findings
}

/// Policies of one direction that let protected packets pass.
fn protecting<'a>(
    subject: &'a Subject<'_>,
    direction: Direction,
) -> impl Iterator<Item = &'a PolicyEntry> {
    let all = subject.snapshot.spd.iter().map(|entry| &**entry);
    all.filter(move |entry| {
        entry.direction() == direction
            && entry.action() == Action::Allow
            && entry.templates().len() > 0
    })
}

fn is_tunnel(entry: &PolicyEntry) -> bool {
    entry.templates().any(|template| template.mode == Mode::Tunnel)
}

/// Whether more than one host is in it.
pub(super) fn is_network(prefix: Prefix) -> bool {
    prefix.prefix_len() < prefix.family().bits()
}

fn reversed(selector: &Selector) -> Selector {
    Selector {
        source: selector.destination,
        destination: selector.source,
        source_port: selector.destination_port,
        destination_port: selector.source_port,
        ..*selector
    }
}

/// Selectors of policies.
struct Selectors {
    exact: HashSet<Selector>,
    /// Those that are not for one pair of networks alone.
    wide: Vec<Selector>,
}

/// Those of a direction that let packets pass.
fn selectors(subject: &Subject<'_>, direction: Direction) -> Selectors {
    selectors_of(subject, direction, Action::Allow)
}

/// Those of a direction that drop packets.
fn blocking(subject: &Subject<'_>, direction: Direction) -> Selectors {
    selectors_of(subject, direction, Action::Block)
}

fn selectors_of(subject: &Subject<'_>, direction: Direction, action: Action) -> Selectors {
    let all = subject.snapshot.spd.iter();
    let all = all.filter(|entry| entry.direction() == direction && entry.action() == action);
    let exact: HashSet<_> = all.map(|entry| entry.selector()).collect();
    let mut by_width: Vec<_> = exact.iter().copied().collect();
    by_width.sort_by_key(|one| (one.source.prefix_len(), one.destination.prefix_len()));
    by_width.truncate(WIDE);
    Selectors { exact, wide: by_width }
}

/// Wide selectors that are compared one by one.
const WIDE: usize = 1024;

impl Selectors {
    /// Whether one of them is for some of the packets of `selector`.
    fn cover(&self, selector: &Selector) -> bool {
        self.exact.contains(selector) || self.wide.iter().any(|one| overlap(one, selector))
    }
}

fn overlap(one: &Selector, other: &Selector) -> bool {
    let shares =
        |one: PortMask, other: PortMask| (one.value ^ other.value) & one.mask & other.mask == 0;
    let is_same = |one: u32, other: u32| one == 0 || other == 0 || one == other;
    one.family() == other.family()
        && one.source.overlaps(other.source)
        && one.destination.overlaps(other.destination)
        && is_same(one.protocol.into(), other.protocol.into())
        && shares(one.source_port, other.source_port)
        && shares(one.destination_port, other.destination_port)
        && is_same(one.ifindex, other.ifindex)
}
