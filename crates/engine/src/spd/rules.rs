//! Packet classification: finds the policy that decides over a packet without comparing it with
//! all.
//!
//! Policies are kept in bins by direction, kind, family and interface id, as in
//! `net/xfrm/xfrm_policy.c`. Each bin is an [`Index`]: readers see an immutable one, snapshots
//! share its nodes, and a change copies one path per publication, whatever the number of policies.
//!
//! Guarantees: the same result as a scan in order of [`PolicyPrecedence`](crate::PolicyPrecedence);
//! no cost grows with the number of removed policies.

mod policy_rule;
mod rebuild;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use uxfrm_classify::{Index, LOOKUP_BATCH, PlanScope, ReplanTiming, V4, V6};

use crate::{Direction, Family, FlowKey, PolicyEntry, PolicyKind, VerdictId};
pub(crate) use policy_rule::{PolicyRule, far_end, ternary};
use policy_rule::{v4_key, v6_key};
pub(crate) use rebuild::PendingDelta;
pub use rebuild::{Rebuild, RebuiltIndex};

/// The best match so far.
pub(crate) type Best<'a> = uxfrm_classify::Best<'a, PolicyRule>;

/// All policies, by bin.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classifier {
    /// Policies without interface id, by direction and kind.
    plain: [[Bins; 2]; 3],
    by_interface: [[BinsByIfId; 2]; 3],
    /// Number of policies by direction and kind.
    counts: [[usize; 2]; 3],
    /// Number of policies, by direction, that cannot be matched against fragments.
    whole_datagram_rules: [usize; 3],
}

/// Memory and depth of a classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Policies.
    pub policies: usize,
    /// Bytes of the look-up structures, without the policies.
    pub bytes: usize,
    /// Longest path to a policy, in cuts.
    pub depth: u32,
}

#[derive(Clone, Debug, Default)]
struct Bins {
    v4: Index<V4, PolicyRule>,
    v6: Index<V6, PolicyRule>,
    /// Insertions and removals, by family, since the last full plan.
    changed: [usize; 2],
}

/// Bins by interface id, in shards so that a change copies little.
#[derive(Clone, Debug, Default)]
struct BinsByIfId(Option<Arc<[Shard; SHARDS]>>);

type Shard = Arc<HashMap<u32, Bins, foldhash::fast::RandomState>>;

const SHARDS: usize = 64;

impl Classifier {
    /// The first matching policy, if any.
    #[inline]
    pub(crate) fn first(&self, kind: PolicyKind, direction: Direction, flow: &FlowKey) -> Best<'_> {
        let bins = self.bins(kind, direction, flow.if_id);
        bins.map_or(Best::NONE, |bins| bins.first(flow))
    }

    /// Offers the first matching policy of each flow to its `best`; at most [`LOOKUP_BATCH`] flows.
    #[inline]
    pub(crate) fn find_each<'a>(
        &'a self,
        kind: PolicyKind,
        direction: Direction,
        flows: &[FlowKey],
        bests: &mut [Best<'a>; LOOKUP_BATCH],
    ) {
        let Some(first) = flows.first() else { return };
        let is_found = match self.bins(kind, direction, first.if_id) {
            Some(bins) => bins.find_each(flows, bests),
            None => flows.iter().all(|flow| flow.if_id == first.if_id),
        };
        if !is_found {
            self.find_mixed(kind, direction, flows, bests);
        }
    }

    /// [`Classifier::find_each`] for flows of several families or interfaces.
    #[cold]
    fn find_mixed<'a>(
        &'a self,
        kind: PolicyKind,
        direction: Direction,
        flows: &[FlowKey],
        bests: &mut [Best<'a>; LOOKUP_BATCH],
    ) {
        let (mut rest, mut bests) = (flows, &mut bests[..]);
        while let Some(first) = rest.first() {
            let flows;
            (flows, rest) = rest.split_at(same_bin_prefix(first, rest));
            let Some((these, others)) = bests.split_at_mut_checked(flows.len()) else { return };
            bests = others;
            if let Some(bins) = self.bins(kind, direction, first.if_id) {
                let mut found = [Best::NONE; LOOKUP_BATCH];
                if !bins.find_each(flows, &mut found) {
                    let each = flows.iter().zip(&mut found);
                    each.for_each(|(flow, found)| *found = bins.first(flow));
                }
                these.iter_mut().zip(found).for_each(|(best, found)| *best = found);
            }
        }
    }

    /// Inserts many policies at once.
    pub(crate) fn insert_all(&mut self, entries: &[Arc<PolicyEntry>]) {
        if entries.len() < self.len() {
            return entries.iter().for_each(|entry| self.insert(entry, ReplanTiming::Now));
        }
        let mut coming = <[[[Vec<PolicyRule>; 2]; 2]; 3]>::default();
        for entry in entries {
            if entry.if_id().0 != 0 {
                self.insert(entry, ReplanTiming::Now);
                continue;
            }
            let (direction, kind) = (entry.direction() as usize, entry.kind() as usize);
            self.counts[direction][kind] += 1;
            self.whole_datagram_rules[direction] += usize::from(entry.needs_whole_datagram());
            coming[direction][kind][entry.family() as usize].push(PolicyRule::of(entry));
        }
        let bins = self.plain.iter_mut().flatten();
        bins.zip(coming.iter().flatten()).for_each(|(bins, coming)| bins.insert_all(coming));
    }

    /// Inserts one policy; [`Classifier::prepare`] must be called before the next change.
    pub(crate) fn insert_one(&mut self, entry: &Arc<PolicyEntry>) {
        let is_plain = entry.if_id().0 == 0;
        self.insert(entry, if is_plain { ReplanTiming::Later } else { ReplanTiming::Now });
    }

    /// Prepares for another policy at the same place.
    pub(crate) fn prepare(&mut self, entry: &Arc<PolicyEntry>) {
        if entry.if_id().0 != 0 {
            return;
        }
        let bins = self.bins_mut(entry);
        match entry.family() {
            Family::V4 => bins.v4.prepare(&PolicyRule::of(entry)),
            Family::V6 => bins.v6.prepare(&PolicyRule::of(entry)),
        }
    }

    fn insert(&mut self, entry: &Arc<PolicyEntry>, timing: ReplanTiming) {
        self.counts[entry.direction() as usize][entry.kind() as usize] += 1;
        self.whole_datagram_rules[entry.direction() as usize] +=
            usize::from(entry.needs_whole_datagram());
        self.bins_mut(entry).insert(entry, timing);
    }

    /// Removes a policy that is present.
    pub(crate) fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        self.counts[entry.direction() as usize][entry.kind() as usize] -= 1;
        self.whole_datagram_rules[entry.direction() as usize] -=
            usize::from(entry.needs_whole_datagram());
        let bins = self.bins_mut(entry);
        bins.remove(entry);
        let if_id = entry.if_id().0;
        if if_id != 0 && bins.is_empty() {
            self.by_interface[entry.direction() as usize][entry.kind() as usize].forget(if_id);
        }
    }

    /// Brings this older copy of `newer` up to it, given the policies that changed.
    pub(crate) fn follow(&mut self, newer: &Self, changed: &[Arc<PolicyEntry>]) {
        for entry in changed.iter().filter(|entry| entry.if_id().0 == 0) {
            let (direction, kind) = (entry.direction() as usize, entry.kind() as usize);
            let (own, newer) = (&mut self.plain[direction][kind], &newer.plain[direction][kind]);
            match entry.family() {
                Family::V4 => own.v4.follow(&newer.v4, &PolicyRule::of(entry)),
                Family::V6 => own.v6.follow(&newer.v6, &PolicyRule::of(entry)),
            }
            own.changed = newer.changed;
        }
        self.by_interface.clone_from(&newer.by_interface);
        (self.counts, self.whole_datagram_rules) = (newer.counts, newer.whole_datagram_rules);
    }

    /// Whether some policy of a direction cannot be matched against fragments.
    #[inline]
    pub(crate) const fn asks_for_whole(&self, direction: Direction) -> bool {
        self.whole_datagram_rules[direction as usize] != 0
    }

    /// Whether there is any policy of a kind and direction.
    #[inline]
    pub(crate) const fn has(&self, kind: PolicyKind, direction: Direction) -> bool {
        self.counts[direction as usize][kind as usize] != 0
    }

    /// Number of policies of a direction and family, without interface id, if they are few enough
    /// for a linear comparison.
    pub(crate) fn linear_len(&self, direction: Direction, family: Family) -> Option<usize> {
        let linear_len = |bins: &Bins| match family {
            Family::V4 => bins.v4.linear_len(),
            Family::V6 => bins.v6.linear_len(),
        };
        self.plain[direction as usize].iter().map(linear_len).sum()
    }

    /// Estimated cost of a look-up within a batch, in tenths of a cycle, without cache misses.
    pub(crate) fn estimate_cost(&self, direction: Direction, flow: &FlowKey) -> usize {
        let kinds = [PolicyKind::Main, PolicyKind::Sub].into_iter();
        let asked = kinds.filter(|kind| self.has(*kind, direction));
        let bins = asked.filter_map(|kind| self.bins(kind, direction, flow.if_id));
        bins.map(|bins| bins.estimate_cost(flow)).sum()
    }

    pub(crate) const fn len(&self) -> usize {
        let [[a, b], [c, d], [e, f]] = self.counts;
        a + b + c + d + e + f
    }

    /// Visits all policies in no order.
    pub(crate) fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        self.all_bins().for_each(|bins| bins.each(visit));
    }

    pub(crate) fn footprint(&self) -> Footprint {
        let mut footprint = Footprint { policies: self.len(), bytes: size_of::<Self>(), depth: 0 };
        for bins in self.all_bins() {
            footprint.bytes += bins.v4.memory() + bins.v6.memory();
            footprint.depth = footprint.depth.max(bins.v4.depth()).max(bins.v6.depth());
        }
        footprint
    }

    fn all_bins(&self) -> impl Iterator<Item = &Bins> {
        let by_interface = self.by_interface.iter().flatten().filter_map(|all| all.0.as_ref());
        let by_interface =
            by_interface.flat_map(|shards| shards.iter()).flat_map(|one| one.values());
        self.plain.iter().flatten().chain(by_interface)
    }

    #[inline]
    fn bins(&self, kind: PolicyKind, direction: Direction, if_id: u32) -> Option<&Bins> {
        if if_id == 0 {
            return Some(&self.plain[direction as usize][kind as usize]);
        }
        self.by_interface[direction as usize][kind as usize].bins(if_id)
    }

    fn bins_mut(&mut self, entry: &PolicyEntry) -> &mut Bins {
        let (direction, kind) = (entry.direction() as usize, entry.kind() as usize);
        match entry.if_id().0 {
            0 => &mut self.plain[direction][kind],
            if_id => self.by_interface[direction][kind].bins_mut(if_id),
        }
    }
}

impl Bins {
    #[inline]
    fn first(&self, flow: &FlowKey) -> Best<'_> {
        match (flow.destination, flow.source) {
            (IpAddr::V4(destination), IpAddr::V4(source)) => {
                self.v4.lookup(&v4_key(destination, source, flow))
            }
            (IpAddr::V6(destination), IpAddr::V6(source)) => {
                self.v6.lookup(&v6_key(destination, source, flow))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => Best::NONE,
        }
    }

    fn estimate_cost(&self, flow: &FlowKey) -> usize {
        match (flow.destination, flow.source) {
            (IpAddr::V4(destination), IpAddr::V4(source)) => {
                self.v4.estimate_cost(&v4_key(destination, source, flow))
            }
            (IpAddr::V6(destination), IpAddr::V6(source)) => {
                self.v6.estimate_cost(&v6_key(destination, source, flow))
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => 0,
        }
    }

    /// Offers the first matching policy of each flow; returns false, and does nothing, unless all
    /// flows have one family and interface.
    #[inline]
    fn find_each<'a>(&'a self, flows: &[FlowKey], bests: &mut [Best<'a>; LOOKUP_BATCH]) -> bool {
        let Some(first) = flows.first() else { return true };
        let v4 = |flow: &FlowKey| match (flow.destination, flow.source) {
            (IpAddr::V4(destination), IpAddr::V4(source)) if flow.if_id == first.if_id => {
                Some(v4_key(destination, source, flow))
            }
            (IpAddr::V4(_) | IpAddr::V6(_), _) => None,
        };
        let v6 = |flow: &FlowKey| match (flow.destination, flow.source) {
            (IpAddr::V6(destination), IpAddr::V6(source)) if flow.if_id == first.if_id => {
                Some(v6_key(destination, source, flow))
            }
            (IpAddr::V4(_) | IpAddr::V6(_), _) => None,
        };
        if first.destination.is_ipv4() {
            let mut keys = ArrayVec::<_, LOOKUP_BATCH>::new();
            keys.extend(flows.iter().map_while(v4));
            if keys.len() == flows.len() {
                self.v4.lookup_batch(&keys, bests);
                return true;
            }
        } else {
            let mut keys = ArrayVec::<_, LOOKUP_BATCH>::new();
            keys.extend(flows.iter().map_while(v6));
            if keys.len() == flows.len() {
                self.v6.lookup_batch(&keys, bests);
                return true;
            }
        }
        false
    }

    fn insert(&mut self, entry: &Arc<PolicyEntry>, timing: ReplanTiming) {
        self.changed[entry.family() as usize] += 1;
        match entry.family() {
            Family::V4 => self.v4.insert(&PolicyRule::of(entry), timing),
            Family::V6 => self.v6.insert(&PolicyRule::of(entry), timing),
        }
    }

    fn insert_all(&mut self, [v4, v6]: &[Vec<PolicyRule>; 2]) {
        let planned = [self.v4.insert_all(v4), self.v6.insert_all(v6)];
        for ((changed, coming), planned) in self.changed.iter_mut().zip([v4, v6]).zip(planned) {
            *changed = match planned {
                PlanScope::Whole => 0,
                PlanScope::Incremental => *changed + coming.len(),
            };
        }
    }

    /// Removes a policy that is present.
    fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        self.changed[entry.family() as usize] += 1;
        match entry.family() {
            Family::V4 => self.v4.remove(&PolicyRule::of(entry)),
            Family::V6 => self.v6.remove(&PolicyRule::of(entry)),
        }
    }

    fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    fn each<'a>(&'a self, visit: &mut impl FnMut(&'a Arc<PolicyEntry>)) {
        let mut visit = |rule: &'a PolicyRule| visit(&rule.0);
        self.v4.each(&mut visit);
        self.v6.each(&mut visit);
    }
}

impl BinsByIfId {
    fn bins(&self, if_id: u32) -> Option<&Bins> {
        self.0.as_ref()?[shard(if_id)].get(&if_id)
    }

    fn bins_mut(&mut self, if_id: u32) -> &mut Bins {
        let shards =
            self.0.get_or_insert_with(|| Arc::new(std::array::from_fn(|_| Shard::default())));
        Arc::make_mut(&mut Arc::make_mut(shards)[shard(if_id)]).entry(if_id).or_default()
    }

    fn forget(&mut self, if_id: u32) {
        let Some(shards) = &mut self.0 else { return };
        let shards = Arc::make_mut(shards);
        Arc::make_mut(&mut shards[shard(if_id)]).remove(&if_id);
        if shards.iter().all(|shard| shard.is_empty()) {
            self.0 = None;
        }
    }
}

/// The policy of a match, if any.
#[inline]
pub(crate) fn policy_of<'a>(best: &Best<'a>) -> Option<&'a Arc<PolicyEntry>> {
    best.entry().map(|rule| &rule.0)
}

/// The verdict where the policy of a match decides alone; rarely read from the policy itself, which
/// is not cached.
#[inline]
pub(crate) fn verdict_of(best: &Best<'_>) -> VerdictId {
    let verdict = VerdictId::from_compact(best.tag());
    verdict.unwrap_or_else(|| policy_of(best).map_or(VerdictId::NONE, |entry| entry.verdict()))
}

/// Length of the run of flows with one family and interface id. Branch-free in the common case that
/// all have.
fn same_bin_prefix(one: &FlowKey, flows: &[FlowKey]) -> usize {
    let differs = |other: &FlowKey| {
        let family = one.destination.is_ipv4() ^ other.destination.is_ipv4();
        one.if_id ^ other.if_id | u32::from(family)
    };
    if flows.iter().fold(0, |any, other| any | differs(other)) == 0 {
        return flows.len();
    }
    flows.iter().position(|other| differs(other) != 0).unwrap_or(flows.len())
}

fn shard(if_id: u32) -> usize {
    if_id as usize % SHARDS
}
