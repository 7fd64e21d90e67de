//! `in` and `fwd` policies and packets that ICMP errors quote.
//!
//! A quote never has its packet's mark and device, and may lack ports and protocol. A policy that
//! protects applies whatever of these it asks for, as the packet may have had it, and one that lets
//! pass does not apply because of these. Policies for all addresses are an exception: else one that
//! only a mark tells from plain traffic took all errors. Of these the mark of the error counts
//! (`sysctl net.ipv4.fwmark_reflect=1`), and those with a device do not.
//!
//! Policies of an XFRM interface are for no plain packet.

use std::sync::Arc;

use super::fragment_rules::asks_for_ports;
use super::network_index::NetworkIndex;
use super::partial_packet::{NO_PROTOCOL, PartialPacket};
use crate::{
    Action, Direction, Family, FlowKey, IfId, PolicyEntry, PolicyKind, PortMask, Spd, TemplateLevel,
};

/// A packet that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotedFlow {
    /// What it tells; the mark is the error's.
    pub(crate) flow: FlowKey,
    pub(crate) tells_protocol: bool,
    /// Whether the ports are those of the packet; never if the protocol is not.
    pub(crate) tells_ports: bool,
}

/// Policies that protect and ask for what a quote may not tell.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuoteRules {
    index: NetworkIndex,
}

impl PartialPacket for QuotedFlow {
    fn probe(&self, number: u16) -> FlowKey {
        let mark = u32::from(number) << 16 | u32::from(number);
        let mut flow = FlowKey { mark, if_id: 0, ifindex: 0, ..self.flow };
        if !self.tells_protocol {
            flow.protocol = NO_PROTOCOL;
        }
        if !self.tells_ports {
            (flow.source_port, flow.destination_port) = (number, number);
        }
        flow
    }

    fn is_undecided(&self, entry: &PolicyEntry) -> bool {
        entry.mark().mask != 0
            || entry.selector().ifindex != 0
            || (!self.tells_ports && asks_for_ports(entry))
            || (!self.tells_protocol && entry.selector().protocol != 0)
    }

    fn may_match(&self, entry: &PolicyEntry) -> bool {
        let mut selector = entry.selector();
        if is_for_all(entry) && !entry.mark().fits(self.flow.mark) {
            return false;
        }
        if !self.tells_ports {
            (selector.source_port, selector.destination_port) =
                (PortMask::default(), PortMask::default());
        }
        if !self.tells_protocol {
            selector.protocol = 0;
        }
        selector.ifindex = 0;
        entry.if_id() == IfId(0) && selector.matches(&self.flow)
    }
}

impl Spd {
    /// Whether a policy of a direction protected the packet that an ICMP error quotes, as far as it
    /// tells. Policies that block say nothing: what they are for is dropped, however it came.
    pub(crate) fn protects_quoted(&self, direction: Direction, quoted: &QuotedFlow) -> bool {
        // A sub policy that allows leaves the decision to the main ones.
        [PolicyKind::Sub, PolicyKind::Main].into_iter().any(|kind| {
            let certain = self.first_by_told(kind, direction, quoted);
            let deciding = [certain, self.quote_rules().first(kind, direction, quoted)];
            let first = deciding.into_iter().flatten().min_by_key(|entry| entry.precedence());
            first.is_some_and(|entry| protects(entry))
        })
    }
}

impl QuoteRules {
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

    fn first(
        &self,
        kind: PolicyKind,
        direction: Direction,
        quoted: &QuotedFlow,
    ) -> Option<&Arc<PolicyEntry>> {
        let FlowKey { source, destination, .. } = quoted.flow;
        let of_part = |entry: &PolicyEntry| (entry.kind(), entry.direction()) == (kind, direction);
        self.index.first(source, destination, |entry| of_part(entry) && quoted.may_match(entry))
    }
}

/// Whether a policy drops plain packets that would have passed out of ESP. One that is held from
/// the last run may have protected.
fn protects(entry: &PolicyEntry) -> bool {
    entry.is_held()
        || (entry.action() == Action::Allow
            && entry.templates().any(|template| template.level == TemplateLevel::Required))
}

fn is_for_all(entry: &PolicyEntry) -> bool {
    let selector = entry.selector();
    selector.source.is_any() && selector.destination.is_any()
}

/// Whether a policy may have protected a packet by fields that its quote does not tell.
fn is_relevant(entry: &PolicyEntry) -> bool {
    let selector = entry.selector();
    let asks_for_protocol = entry.family() == Family::V6 && selector.protocol != 0;
    let asks_for_mark = entry.mark().mask != 0;
    let asks_for_device = selector.ifindex != 0;
    entry.direction() != Direction::Out
        && entry.if_id() == IfId(0)
        && (asks_for_device || asks_for_mark || asks_for_protocol || asks_for_ports(entry))
        && !(asks_for_device && is_for_all(entry))
        && protects(entry)
}
