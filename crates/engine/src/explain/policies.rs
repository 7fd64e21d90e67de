//! Which policies decide about a flow, and which near ones do not.

use std::sync::Arc;

use super::nearest::Nearest;
use crate::{Action, Direction, FlowKey, PolicyEntry, Prefix, Spd};

/// Policies that do not decide and are still told.
pub const MAX_NEAR_POLICIES: usize = 5;

/// The look-up of a flow's policies.
#[derive(Clone, Debug)]
pub struct PolicyExplanation {
    /// The direction that was looked up.
    pub direction: Direction,
    /// The policies that decide: the first match, and the main policy behind a sub policy that
    /// allows. Empty if none matches.
    pub deciding: Vec<Arc<PolicyEntry>>,
    /// The action for flows that no policy matches.
    pub default: Action,
    /// Policies that nearly decide, nearest first, at most [`MAX_NEAR_POLICIES`].
    pub near: Vec<NearPolicy>,
}

/// A policy that does not decide.
#[derive(Clone, Debug)]
pub struct NearPolicy {
    /// The policy.
    pub entry: Arc<PolicyEntry>,
    /// Why it does not.
    pub misfit: PolicyMisfit,
}

/// Why a policy does not decide about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyMisfit {
    /// It matches, but a sub policy goes before main ones.
    BehindSubPolicy,
    /// It matches, but a policy that a device has goes first.
    BehindDevice,
    /// It matches, but another has a lower priority value, which goes first.
    BehindPriority,
    /// It matches with the same priority, but another is older.
    BehindOlder,
    /// It is for another direction and would match there.
    Direction,
    /// It would match packets the other way: source and destination are swapped.
    WayBack,
    /// Its selector has another source.
    Source,
    /// Its selector has another destination.
    Destination,
    /// Its selector has another protocol.
    Protocol,
    /// Its selector has another source port, ICMP type or GRE key.
    SourcePort,
    /// Its selector has another destination port, ICMP code or GRE key.
    DestinationPort,
    /// Its selector has another interface.
    Interface,
    /// It is for packets with another mark.
    Mark,
    /// It is for another XFRM interface.
    IfId,
}

impl PolicyExplanation {
    /// Looks a flow up as the data path does.
    #[must_use]
    pub fn of(spd: &Spd, direction: Direction, flow: &FlowKey) -> Self {
        let deciding: Vec<_> = spd.deciding(direction, flow).cloned().collect();
        let near = near(spd, direction, flow, &deciding);
        Self { direction, deciding, default: spd.defaults().of(direction), near }
    }
}

fn near(
    spd: &Spd,
    direction: Direction,
    flow: &FlowKey,
    deciding: &[Arc<PolicyEntry>],
) -> Vec<NearPolicy> {
    let mut nearest = Nearest::new(MAX_NEAR_POLICIES);
    for entry in spd.iter().filter(|entry| !deciding.contains(entry)) {
        let Some(misfit) = misfit(entry, direction, flow, deciding.first()) else { continue };
        nearest.offer(misfit.distance() << 8 | width(entry), || NearPolicy {
            entry: Arc::clone(entry),
            misfit,
        });
    }
    nearest.into_vec()
}

/// In what one respect a policy fails to decide; `None` if it differs in more than one.
fn misfit(
    entry: &PolicyEntry,
    direction: Direction,
    flow: &FlowKey,
    first: Option<&Arc<PolicyEntry>>,
) -> Option<PolicyMisfit> {
    if entry.direction() != direction {
        // Only the packet's destination tells `in` from `fwd`: they are easily mixed up.
        let are_inbound = [entry.direction(), direction].iter().all(|one| *one != Direction::Out);
        return (are_inbound && entry.matches(flow)).then_some(PolicyMisfit::Direction);
    }
    let selector = entry.selector();
    let misfits = [
        (!selector.source.contains(flow.source), PolicyMisfit::Source),
        (!selector.destination.contains(flow.destination), PolicyMisfit::Destination),
        (selector.protocol != 0 && selector.protocol != flow.protocol, PolicyMisfit::Protocol),
        (!selector.source_port.fits(flow.source_port), PolicyMisfit::SourcePort),
        (!selector.destination_port.fits(flow.destination_port), PolicyMisfit::DestinationPort),
        (selector.ifindex != 0 && selector.ifindex != flow.ifindex, PolicyMisfit::Interface),
        (!entry.mark().fits(flow.mark), PolicyMisfit::Mark),
        (entry.if_id().0 != flow.if_id, PolicyMisfit::IfId),
    ];
    let mut found = misfits.into_iter().filter_map(|(differs, misfit)| differs.then_some(misfit));
    match (found.next(), found.next()) {
        (None, _) => first.map(|first| outranked(entry, first)),
        (Some(only), None) => Some(only),
        (Some(_), Some(_)) => entry.matches(&flow.reversed()).then_some(PolicyMisfit::WayBack),
    }
}

/// By what the policy found goes before another one that matches.
fn outranked(entry: &PolicyEntry, first: &PolicyEntry) -> PolicyMisfit {
    let (own, other) = (entry.precedence(), first.precedence());
    if entry.kind() != first.kind() {
        PolicyMisfit::BehindSubPolicy
    } else if own.is_software() != other.is_software() {
        PolicyMisfit::BehindDevice
    } else if own.priority() != other.priority() {
        PolicyMisfit::BehindPriority
    } else {
        PolicyMisfit::BehindOlder
    }
}

impl PolicyMisfit {
    /// How far from deciding, as a user sees it: policies that match come first.
    const fn distance(self) -> u32 {
        match self {
            Self::BehindSubPolicy
            | Self::BehindDevice
            | Self::BehindPriority
            | Self::BehindOlder => 0,
            Self::Direction => 1,
            Self::Mark | Self::IfId | Self::Interface => 2,
            Self::SourcePort | Self::DestinationPort => 3,
            Self::Protocol => 4,
            Self::Source | Self::Destination => 5,
            Self::WayBack => 6,
        }
    }
}

/// Address bits that the selector leaves open: the narrower policy is the likelier one.
fn width(entry: &PolicyEntry) -> u32 {
    let selector = entry.selector();
    let open = |prefix: Prefix| u32::from(prefix.family().bits() - prefix.prefix_len());
    (open(selector.source) + open(selector.destination)).min(255)
}
