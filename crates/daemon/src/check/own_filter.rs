//! Packet filters of others on this host, which see packets beside the gateway.

use uxfrm_engine::{Action, Direction, Family};
use uxfrm_host_facts::packet_filter::{DroppingChain, FilterHook};

use super::{Finding, Subject, missing_policies::is_network};

/// Chains with policy drop that see what is forwarded, where policies are for hosts behind this
/// one.
pub(super) fn drops_forwarded(subject: &Subject<'_>) -> Vec<Finding> {
    let (tun, filter) = (&subject.host.tun, &subject.host.filter);
    let mut chains: Vec<&DroppingChain> = Vec::new();
    for (family, is_ipv4) in [(Family::V4, true), (Family::V6, false)] {
        let mut forwarded = subject.snapshot.spd.iter().filter(|entry| {
            entry.direction() == Direction::Forward
                && entry.action() == Action::Allow
                && entry.family() == family
                && entry.templates().len() > 0
                && is_network(entry.selector().destination)
        });
        if forwarded.next().is_some() {
            for chain in filter.at(FilterHook::Forward, is_ipv4) {
                if !chains.contains(&chain) {
                    chains.push(chain);
                }
            }
        }
    }
    let finding = |chain: &DroppingChain| {
        let rules = chain.missing_rules(tun);
        let mend = rules.join("; ");
        if rules.is_empty() {
            return None;
        }
        Some(match chain.is_closed() {
            true => Finding::warning(
                format!(
                    "{chain}, has no rules: nothing passes between tunnels and hosts behind this one"
                ),
                mend,
            ),
            false => Finding::note(
                format!(
                    "{chain}: what passes between tunnels and hosts behind this one may be \
                     dropped, unless its rules accept it"
                ),
                mend,
            ),
        })
    };
    chains.into_iter().filter_map(finding).collect()
}
