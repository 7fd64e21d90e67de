//! `fwd` policies and plain fragments.
//!
//! Only the first fragment has ports, and the next header of a later IPv6 fragment is whatever its
//! sender wrote: receivers reassemble by addresses and identification alone. So a policy that
//! refuses plain packets applies to a fragment whatever its unknown ports and protocol, and one
//! that allows them does not apply because of these.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use uxfrm_packet::{Fragment, IpPacket, Version};

use crate::{
    Action, Direction, Family, FlowKey, PolicyEntry, PolicyKind, PortMask, Prefix, Spd,
    TemplateLevel,
};

/// A plain fragment that is to be forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainFragment<'a> {
    pub(crate) flow: &'a FlowKey,
    /// Whether the flow's protocol is the datagram's.
    pub(crate) tells_protocol: bool,
}

/// `fwd` policies that refuse plain packets by ports, or in IPv6 by protocol, indexed by their
/// networks.
#[derive(Clone, Debug, Default)]
pub(crate) struct FragmentRules {
    shards: Option<Arc<[Shard; SHARDS]>>,
    /// Number of policies for each pair of prefix lengths.
    lengths: Arc<BTreeMap<Lengths, usize>>,
}

/// In shards, so that a change copies little.
type Shard = Arc<HashMap<Networks, Vec<Arc<PolicyEntry>>, foldhash::fast::RandomState>>;
type Lengths = (Family, u8, u8);
/// Networks of source and destination.
type Networks = (Prefix, Prefix);

const SHARDS: usize = 64;

/// Ports that stand for "no port" in look-ups: a policy with ports hardly matches them all.
const PROBES: [u16; 3] = [0, u16::MAX, 0x5a5a];
/// A protocol that no packet has (IANA: reserved).
const NO_PROTOCOL: u8 = 255;

impl<'a> PlainFragment<'a> {
    pub(crate) fn of(flow: &'a FlowKey, ip: &IpPacket) -> Self {
        let is_later = matches!(ip.fragment, Fragment::Later { .. });
        Self { flow, tells_protocol: ip.version == Version::V4 || !is_later }
    }

    /// Whether a policy matches on something that the fragment does not have.
    fn is_undecided(&self, entry: &PolicyEntry) -> bool {
        asks_for_ports(entry) || (!self.tells_protocol && entry.selector().protocol != 0)
    }

    /// Whether a policy matches, apart from what the fragment does not have.
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
            let deciding = [self.certain(kind, piece), self.fragment_rules().first(kind, piece)];
            let first = deciding.into_iter().flatten().min_by_key(|entry| entry.precedence())?;
            blocks_plaintext(first).then_some(first)
        })
    }

    /// The first policy that matches only on what the fragment has.
    fn certain(&self, kind: PolicyKind, piece: &PlainFragment<'_>) -> Option<&Arc<PolicyEntry>> {
        let mut flow = *piece.flow;
        if !piece.tells_protocol {
            flow.protocol = NO_PROTOCOL;
        }
        for port in PROBES {
            (flow.source_port, flow.destination_port) = (port, port);
            let found = self.lookup_kind(kind, Direction::Forward, &flow);
            // Policies with ports that precede it do not match: this is the first of the others.
            if found.is_none_or(|entry| !piece.is_undecided(entry)) {
                return found;
            }
        }
        let fits = |entry: &&Arc<PolicyEntry>| {
            (entry.kind(), entry.direction()) == (kind, Direction::Forward)
                && !piece.is_undecided(entry)
                && piece.may_match(entry)
        };
        self.iter().filter(fits).min_by_key(|entry| entry.precedence())
    }
}

impl FragmentRules {
    pub(crate) fn insert(&mut self, entry: &Arc<PolicyEntry>) {
        if !is_relevant(entry) {
            return;
        }
        let networks = networks_of(entry);
        *Arc::make_mut(&mut self.lengths).entry(lengths(networks)).or_default() += 1;
        let all = self.shard_mut(networks).entry(networks).or_default();
        all.insert(
            all.partition_point(|other| other.precedence() < entry.precedence()),
            Arc::clone(entry),
        );
    }

    /// Removes a policy that is present.
    pub(crate) fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        if !is_relevant(entry) {
            return;
        }
        let networks = networks_of(entry);
        let shard = self.shard_mut(networks);
        let Some(all) = shard.get_mut(&networks) else { return };
        all.retain(|other| !Arc::ptr_eq(other, entry));
        if all.is_empty() {
            shard.remove(&networks);
        }
        let counts = Arc::make_mut(&mut self.lengths);
        if let Some(count) = counts.get_mut(&lengths(networks)) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&lengths(networks));
            }
        }
    }

    /// The first policy of a kind that may match a fragment.
    fn first(&self, kind: PolicyKind, piece: &PlainFragment<'_>) -> Option<&Arc<PolicyEntry>> {
        let shards = self.shards.as_ref()?;
        let FlowKey { source, destination, .. } = *piece.flow;
        let family = Family::of(destination);
        let lengths = self.lengths.keys().filter(|(of, ..)| *of == family);
        let found = lengths.filter_map(|(_, source_len, destination_len)| {
            let networks = (network(source, *source_len), network(destination, *destination_len));
            let mut all = shards[shard_of(networks)].get(&networks)?.iter();
            all.find(|entry| entry.kind() == kind && piece.may_match(entry))
        });
        found.min_by_key(|entry| entry.precedence())
    }

    fn shard_mut(
        &mut self,
        networks: Networks,
    ) -> &mut HashMap<Networks, Vec<Arc<PolicyEntry>>, foldhash::fast::RandomState> {
        let shards =
            self.shards.get_or_insert_with(|| Arc::new(std::array::from_fn(|_| Shard::default())));
        Arc::make_mut(&mut Arc::make_mut(shards)[shard_of(networks)])
    }
}

/// Whether a policy refuses plain packets.
fn blocks_plaintext(entry: &PolicyEntry) -> bool {
    entry.action() == Action::Block
        || entry.templates().any(|template| template.level == TemplateLevel::Required)
}

fn asks_for_ports(entry: &PolicyEntry) -> bool {
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

fn networks_of(entry: &PolicyEntry) -> Networks {
    let selector = entry.selector();
    (selector.source.network(), selector.destination.network())
}

fn lengths((source, destination): Networks) -> Lengths {
    (destination.family(), source.prefix_len(), destination.prefix_len())
}

/// Network of an address; the address itself if the prefix length exceeds its family.
fn network(address: IpAddr, len: u8) -> Prefix {
    Prefix::new(address, len).unwrap_or_else(|_| Prefix::host(address)).network()
}

fn shard_of((source, destination): Networks) -> usize {
    let bits = |prefix: Prefix| match prefix.address() {
        IpAddr::V4(v4) => v4.to_bits(),
        #[expect(clippy::cast_possible_truncation, reason = "folded")]
        IpAddr::V6(v6) => (v6.to_bits() ^ v6.to_bits() >> 64 ^ v6.to_bits() >> 96) as u32,
    };
    let spread = (bits(source) ^ bits(destination).rotate_left(9)).wrapping_mul(0x9e37_79b1);
    (spread >> 26) as usize % SHARDS
}

#[cfg(test)]
mod tests;
