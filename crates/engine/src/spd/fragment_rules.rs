//! `fwd` policies and plain fragments.
//!
//! Only the first fragment has ports, and the next header of a later IPv6 fragment is whatever its
//! sender wrote: receivers reassemble by addresses and identification alone. So a policy that
//! refuses plain packets applies to a fragment whatever its unknown ports and protocol, and one
//! that allows them does not apply because of these.

use std::sync::Arc;

use uxfrm_packet::{Fragment, IpPacket, Version};

use super::network_index::NetworkIndex;
use super::partial_packet::{NO_PROTOCOL, PartialPacket};
use crate::{
    Action, Direction, Family, FlowKey, PolicyEntry, PolicyKind, PortMask, Spd, TemplateLevel,
};

/// A plain fragment that is to be forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainFragment<'a> {
    pub(crate) flow: &'a FlowKey,
    /// Whether the flow's protocol is the datagram's.
    pub(crate) tells_protocol: bool,
}

/// `fwd` policies that refuse plain packets by ports, or in IPv6 by protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct FragmentRules {
    index: NetworkIndex,
}

impl<'a> PlainFragment<'a> {
    pub(crate) fn of(flow: &'a FlowKey, ip: &IpPacket) -> Self {
        let is_later = matches!(ip.fragment, Fragment::Later { .. });
        Self { flow, tells_protocol: ip.version == Version::V4 || !is_later }
    }
}

impl PartialPacket for PlainFragment<'_> {
    fn probe(&self, number: u16) -> FlowKey {
        let protocol = if self.tells_protocol { self.flow.protocol } else { NO_PROTOCOL };
        FlowKey { protocol, source_port: number, destination_port: number, ..*self.flow }
    }

    fn is_undecided(&self, entry: &PolicyEntry) -> bool {
        asks_for_ports(entry) || (!self.tells_protocol && entry.selector().protocol != 0)
    }

    fn may_match(&self, entry: &PolicyEntry) -> bool {
        let mut selector = entry.selector();
        (selector.source_port, selector.destination_port) =
            (PortMask::default(), PortMask::default());
        if !self.tells_protocol {
            selector.protocol = 0;
        }
        entry.mark().fits(self.flow.mark)
            && entry.if_id().0 == self.flow.if_id
            && selector.matches(self.flow)
    }
}

impl Spd {
    /// The policy that refuses a plain fragment, if any. Fragments that pass are judged as packets
    /// without ports.
    pub(crate) fn refuses_fragment(&self, piece: &PlainFragment<'_>) -> Option<&Arc<PolicyEntry>> {
        if !self.needs_whole_datagrams(Direction::Forward) {
            return None;
        }
        // A sub policy that allows leaves the decision to the main ones.
        [PolicyKind::Sub, PolicyKind::Main].into_iter().find_map(|kind| {
            let deciding = [
                self.first_by_told(kind, Direction::Forward, piece),
                self.fragment_rules().first(kind, piece),
            ];
            let first = deciding.into_iter().flatten().min_by_key(|entry| entry.precedence())?;
            blocks_plaintext(first).then_some(first)
        })
    }
}

impl FragmentRules {
    pub(crate) fn insert(&mut self, entry: &Arc<PolicyEntry>) {
        if is_relevant(entry) {
            self.index.insert(entry);
        }
    }

    /// Removes a policy that is present.
    pub(crate) fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        if is_relevant(entry) {
            self.index.remove(entry);
        }
    }

    /// The first policy of a kind that may match a fragment.
    fn first(&self, kind: PolicyKind, piece: &PlainFragment<'_>) -> Option<&Arc<PolicyEntry>> {
        let FlowKey { source, destination, .. } = *piece.flow;
        let fits = |entry: &PolicyEntry| entry.kind() == kind && piece.may_match(entry);
        self.index.first(source, destination, fits)
    }
}

/// Whether a policy refuses plain packets.
fn blocks_plaintext(entry: &PolicyEntry) -> bool {
    entry.action() == Action::Block
        || entry.templates().any(|template| template.level == TemplateLevel::Required)
}

pub(super) fn asks_for_ports(entry: &PolicyEntry) -> bool {
    let selector = entry.selector();
    selector.source_port.mask | selector.destination_port.mask != 0
}

/// Whether a policy may refuse fragments on fields that they do not have.
fn is_relevant(entry: &PolicyEntry) -> bool {
    entry.direction() == Direction::Forward
        && (asks_for_ports(entry)
            || (entry.family() == Family::V6 && entry.selector().protocol != 0))
        && blocks_plaintext(entry)
}

#[cfg(test)]
mod tests;
