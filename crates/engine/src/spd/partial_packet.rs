//! Policies and packets of which not all is told: fragments, and packets that ICMP errors quote.

use std::sync::Arc;

use crate::{Direction, FlowKey, PolicyEntry, PolicyKind, Spd};

/// Numbers that stand for what is not told: a policy that asks for it hardly matches them all.
const PROBES: [u16; 3] = [0, u16::MAX, 0x5a5a];
/// A protocol that no packet has (IANA: reserved).
pub(super) const NO_PROTOCOL: u8 = 255;

/// A packet of which not all is told.
pub(super) trait PartialPacket {
    /// Its flow, with a number in place of what is not told.
    fn probe(&self, number: u16) -> FlowKey;

    /// Whether a policy matches on something that is not told.
    fn is_undecided(&self, entry: &PolicyEntry) -> bool;

    /// Whether a policy matches, apart from what is not told.
    fn may_match(&self, entry: &PolicyEntry) -> bool;
}

impl Spd {
    /// The first policy of a kind that matches only on what is told.
    pub(super) fn first_by_told(
        &self,
        kind: PolicyKind,
        direction: Direction,
        packet: &impl PartialPacket,
    ) -> Option<&Arc<PolicyEntry>> {
        for number in PROBES {
            let found = self.lookup_kind(kind, direction, &packet.probe(number));
            // Undecided ones that precede it do not match: this is the first of the others.
            if found.is_none_or(|entry| !packet.is_undecided(entry)) {
                return found;
            }
        }
        let fits = |entry: &&Arc<PolicyEntry>| {
            (entry.kind(), entry.direction()) == (kind, direction)
                && !packet.is_undecided(entry)
                && packet.may_match(entry)
        };
        self.iter().filter(fits).min_by_key(|entry| entry.precedence())
    }
}
