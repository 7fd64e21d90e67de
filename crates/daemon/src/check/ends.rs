//! Ends of states that the host does not have, or can't reach.

use std::{collections::HashSet, net::IpAddr};

use uxfrm_engine::Sa;

use super::{Finding, Subject};
use crate::wording;

/// States neither end of which is an address of this host.
pub(super) fn of_other_hosts(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(own) = &subject.host.addresses else { return Vec::new() };
    let is_here = |sa: &&Sa| ends(sa).iter().any(|end| own.contains(end) || end.is_unspecified());
    let (here, elsewhere): (Vec<_>, Vec<_>) = subject.states().partition(is_here);
    let mut told = HashSet::new();
    let firsts = elsewhere.into_iter().filter(|sa| told.insert(between(sa)));
    let finding = |sa: &Sa| {
        let [one, other] = between(sa);
        let text = format!(
            "neither {one} nor {other} is an address of this host, but they are the ends of \
             `{}`: no packet leaves or comes in by it",
            wording::state(sa)
        );
        let mend = "`ip address` shows this host's addresses".to_owned();
        match here.is_empty() {
            false => Finding::warning(text, mend),
            // It may be another host's configuration, or this host's before it has its addresses.
            true => Finding::note(text, mend + "; right if it gets one of them later"),
        }
    };
    firsts.map(finding).collect()
}

/// States both ends of which are addresses of this host.
pub(super) fn to_oneself(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(own) = &subject.host.addresses else { return Vec::new() };
    let mut told = HashSet::new();
    let both = subject.states().filter(|sa| ends(sa).iter().all(|end| own.contains(end)));
    let firsts = both.filter(|sa| told.insert(between(sa)));
    let finding = |sa: &Sa| {
        Finding::warning(
            format!(
                "both ends of `{}` are addresses of this host: its packets go to no other gateway",
                wording::state(sa)
            ),
            "give the other gateway's address for one of them".to_owned(),
        )
    };
    firsts.map(finding).collect()
}

/// States of this host to peers that the kernel has no route to.
pub(super) fn to_nowhere(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(own) = &subject.host.addresses else { return Vec::new() };
    let mut told = HashSet::new();
    let peer = |sa: &Sa| {
        let [source, destination] = ends(sa);
        let is_to = own.contains(&source) && subject.host.unreachable.contains(&destination);
        is_to.then_some(destination)
    };
    let all = subject.states().filter_map(|sa| Some((sa, peer(sa)?)));
    let firsts = all.filter(|(_, peer)| told.insert(*peer));
    let finding = |(sa, peer): (&Sa, IpAddr)| {
        Finding::warning(
            format!(
                "the kernel has no route to {peer}, the peer of `{}`: nothing is sent",
                wording::state(sa)
            ),
            format!("another `dst`, or: ip route add {peer} via GATEWAY"),
        )
    };
    firsts.map(finding).collect()
}

fn ends(sa: &Sa) -> [IpAddr; 2] {
    [sa.source(), sa.id().destination]
}

/// Both ends, whichever way.
fn between(sa: &Sa) -> [IpAddr; 2] {
    let mut ends = ends(sa);
    ends.sort_unstable();
    ends
}
