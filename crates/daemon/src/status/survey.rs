//! What the tunnels of a snapshot have carried, and how well they are.
//!
//! One walk over all states sums up what they carried; only tunnels that are told are looked at in
//! detail. So 100,000 states take a moment and no more.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use foldhash::fast::RandomState;
use uxfrm_engine::{
    Direction, DropReason, DropRecord, DropTallies, DropTally, IfId, KeyManagers, Moment, Reqid,
    Sa, SaId, Snapshot,
};
use uxfrm_status::{
    gateway::{PeerFilter, StatusTotals, TunnelOrder},
    health::{Health, KeyManagement},
    protocol::RequestRefusal,
    tunnel::{StateStatus, TunnelStatus},
};

use super::{
    board::Posted,
    grouping::{Grouping, TunnelKey},
    refusals::Refusals,
    state::{self, MODES, PROTOCOLS, mode_word, protocol_word},
    tunnel::{TunnelFacts, TunnelTotals},
};

/// States without a policy that are told.
const UNMATCHED: usize = 50;

/// When it is, and what the control thread has posted by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadAt<'a> {
    pub(super) now: Moment,
    pub(super) posted: &'a Posted,
}

/// What was dropped by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct DropFacts<'a> {
    /// By whose the packets were.
    pub(super) tallies: &'a DropTallies,
    /// What states opened, and was dropped.
    pub(super) refusals: &'a Refusals,
    /// Recent records of packets that no state took.
    pub(super) unsent: &'a [&'a DropRecord],
}

/// All tunnels at an instant.
#[derive(Debug)]
pub(super) struct Survey<'a> {
    read: ReadAt<'a>,
    snapshot: &'a Snapshot,
    grouping: &'a Grouping,
    /// What the states of each group carried.
    carried: Vec<TunnelTotals<'a>>,
    /// What was dropped for groups, of those that have any.
    drops: HashMap<usize, BTreeMap<DropReason, u64>, RandomState>,
    /// Records of packets that no state took, of groups that have any.
    unsent: HashMap<usize, Vec<&'a DropRecord>, RandomState>,
    /// Who makes the states of each group.
    key_management: Vec<KeyManagement>,
    /// States that fit no policy.
    unmatched: Vec<&'a Sa>,
    /// The wanted groups, and how well they are.
    healths: Vec<(Health, usize)>,
    acquires_pending: u64,
}

/// Tunnels of one answer.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) tunnels: Vec<TunnelStatus>,
    pub(super) next: Option<String>,
}

/// Where a listing goes on, or which tunnels come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cursor {
    /// The worst first, those of equal health in an order.
    Worst(TunnelOrder),
    /// By name, from the first.
    Begin,
    /// By name, behind this one.
    Behind(TunnelKey),
}

impl<'a> Survey<'a> {
    /// The tunnels of a snapshot, as grouped for a filter.
    pub(super) fn of(
        snapshot: &'a Snapshot,
        grouping: &'a Grouping,
        filter: Option<&PeerFilter>,
        drops: DropFacts<'a>,
        read: ReadAt<'a>,
    ) -> Self {
        let groups = grouping.groups.len();
        let mut survey = Self {
            read,
            snapshot,
            grouping,
            carried: vec![TunnelTotals::default(); groups],
            drops: HashMap::default(),
            unsent: HashMap::default(),
            key_management: vec![KeyManagement::Absent; groups],
            unmatched: Vec::new(),
            healths: Vec::new(),
            acquires_pending: 0,
        };
        survey.take_states(filter, drops);
        survey.take_unsent(drops.unsent);
        survey.take_acquires();
        survey.judge();
        survey
    }

    /// Counts of the tunnels that are asked for, and what they carried.
    pub(super) fn totals(&self) -> StatusTotals {
        let acquires_pending = self.acquires_pending;
        let mut totals = StatusTotals { acquires_pending, ..StatusTotals::default() };
        for (health, at) in &self.healths {
            let carried = &self.carried[*at];
            totals.count(*health);
            totals.sent = totals.sent.plus(carried.outbound.traffic(self.read.now));
            totals.received = totals.received.plus(carried.inbound.traffic(self.read.now));
            let newest = [carried.outbound.newest, carried.inbound.newest];
            if let Some(newest) = &newest[0] {
                let highest = totals.highest_sequence_ratio.unwrap_or_default();
                totals.highest_sequence_ratio = Some(highest.max(newest.sequence_ratio));
            }
            let left = newest.into_iter().flatten().filter_map(|newest| newest.seconds_left);
            let soonest = left.chain(totals.soonest_expiry_seconds).min();
            totals.soonest_expiry_seconds = soonest;
        }
        totals
    }

    /// States that fit no policy.
    pub(super) fn unmatched_states(&self) -> Vec<StateStatus> {
        let some = self.unmatched.iter().take(UNMATCHED);
        some.map(|sa| state::status(sa, sa.config().direction, &self.read)).collect()
    }

    /// How many states fit no policy.
    pub(super) fn unmatched_states_total(&self) -> u64 {
        self.unmatched.len() as u64
    }

    /// Up to `limit` tunnels: the worst, or by name behind a cursor.
    pub(super) fn page(&self, from: Cursor, limit: usize) -> Page {
        let mut order: Vec<_> = self.healths.clone();
        let key = |at: usize| self.grouping.groups[at].key;
        if let Cursor::Behind(last) = from {
            order.retain(|(_, at)| key(*at) > last);
        }
        let is_all = order.len() <= limit;
        match from {
            Cursor::Worst(TunnelOrder::Name) => {
                first(&mut order, limit, |(health, at)| (*health, key(*at)));
            }
            Cursor::Worst(TunnelOrder::Traffic) => first(&mut order, limit, |(health, at)| {
                (*health, Reverse(self.carried[*at].bytes()), key(*at))
            }),
            Cursor::Begin | Cursor::Behind(_) => first(&mut order, limit, |(_, at)| key(*at)),
        }
        let last = order.last().filter(|_| !is_all && !matches!(from, Cursor::Worst(_)));
        let next = last.map(|(_, at)| cursor(&key(*at)));
        let mut states = self.states_of(&order);
        let tell = |(_, at): &(Health, usize)| {
            self.told(*at).status(states.remove(at).unwrap_or_default(), &self.read)
        };
        Page { tunnels: order.iter().map(tell).collect(), next }
    }

    /// All states of these groups.
    fn states_of(&self, groups: &[(Health, usize)]) -> HashMap<usize, Vec<(Direction, &'a Sa)>> {
        let mut wanted: HashMap<_, Vec<_>> =
            groups.iter().map(|(_, at)| (*at, Vec::new())).collect();
        if wanted.is_empty() {
            return wanted;
        }
        for (sa, place) in self.snapshot.sad.iter().zip(&self.grouping.places) {
            if let Some(place) = place
                && let Some(states) = wanted.get_mut(&place.group())
            {
                states.push((place.direction(sa), &**sa));
            }
        }
        wanted
    }

    fn told(&self, at: usize) -> TunnelFacts<'_> {
        TunnelFacts {
            group: &self.grouping.groups[at],
            carried: &self.carried[at],
            drops: self.drops.get(&at),
            key_management: self.key_management[at],
            unsent: self.unsent.get(&at).map_or(&[][..], Vec::as_slice),
            stray: self.stray(at),
        }
    }

    /// The newest state to the peer of a group that fits no policy, where the group has none to
    /// send by.
    fn stray(&self, at: usize) -> Option<&'a Sa> {
        if self.carried[at].outbound.newest.is_some() {
            return None;
        }
        let remote = self.grouping.groups[at].key.remote;
        let to_peer = self.unmatched.iter().filter(|sa| sa.id().destination == remote);
        to_peer.max_by_key(|sa| sa.insertion_seq()).copied()
    }

    /// Sums up what states have carried, and gives drop counts to the tunnel of their state, or
    /// else of their policy.
    fn take_states(&mut self, filter: Option<&PeerFilter>, drops: DropFacts<'_>) {
        let DropFacts { tallies, refusals, .. } = drops;
        let subjects = tallies.tallies().iter().map(|tally| tally.subject);
        let mut dropped: HashMap<SaId, Option<usize>, RandomState> =
            subjects.filter_map(|subject| Some((subject.sa?.id, None))).collect();
        for (sa, place) in self.snapshot.sad.iter().zip(&self.grouping.places) {
            let Some(place) = place else {
                self.take_unmatched(sa, filter);
                continue;
            };
            let direction = place.direction(sa);
            self.carried[place.group()].take(sa, direction, &self.read);
            if direction != Direction::Out && !refusals.are_none() {
                self.carried[place.group()].take_refused(sa, refusals, &self.read);
            }
            if !dropped.is_empty()
                && let Some(group) = dropped.get_mut(&sa.id())
            {
                *group = Some(place.group());
            }
        }
        for DropTally { reason, subject, packets } in tallies.tallies() {
            let by_state = subject.sa.and_then(|sa| dropped.get(&sa.id).copied().flatten());
            if let Some(at) = by_state.or_else(|| self.grouping.of_policy(subject)) {
                *self.drops.entry(at).or_default().entry(*reason).or_default() += packets;
            }
        }
    }

    /// Gives records of packets that no state took to the tunnel of their policy.
    fn take_unsent(&mut self, records: &[&'a DropRecord]) {
        for record in records {
            if let Some(at) = self.grouping.of_policy(&record.subject) {
                self.unsent.entry(at).or_default().push(record);
            }
        }
    }

    fn take_unmatched(&mut self, sa: &'a Sa, filter: Option<&PeerFilter>) {
        let ends = [sa.source(), sa.id().destination];
        let is_wanted = |filter: &PeerFilter| ends.into_iter().any(|end| filter.contains(end));
        if filter.is_none_or(is_wanted) {
            self.unmatched.push(sa);
        }
    }

    /// Whose states key managers are asked for.
    fn take_acquires(&mut self) {
        let acquires = &self.snapshot.acquires;
        self.acquires_pending = acquires.pending.len() as u64;
        if acquires.key_managers == KeyManagers::Absent {
            return;
        }
        self.key_management.fill(KeyManagement::Listening);
        for wanted in acquires.pending.keys() {
            if let Some(at) = self.grouping.of_request(wanted) {
                self.key_management[at] = KeyManagement::Asked;
            }
        }
    }

    fn judge(&mut self) {
        let wanted = self.grouping.groups.iter().enumerate().filter(|(_, group)| group.is_wanted);
        let wanted: Vec<_> = wanted.map(|(at, _)| at).collect();
        let judged = wanted.into_iter().map(|at| (self.told(at).judge(&self.read).0, at));
        self.healths = judged.collect();
    }
}

/// Leaves the first `limit` of a list, in order.
fn first<T, K: Ord>(list: &mut Vec<T>, limit: usize, key: impl Fn(&T) -> K) {
    if limit < list.len() {
        list.select_nth_unstable_by_key(limit, &key);
        list.truncate(limit);
    }
    list.sort_unstable_by_key(key);
}

/// A tunnel's name, for the next request.
fn cursor(key: &TunnelKey) -> String {
    let TunnelKey { remote, local, reqid, mode, protocol, if_id } = key;
    let (mode, protocol) = (mode_word(*mode), protocol_word(*protocol));
    format!("{remote} {local} {} {mode} {protocol} {}", reqid.0, if_id.0)
}

/// What [`cursor`] has written; an empty one begins.
pub(super) fn parse_cursor(text: &str) -> Result<Cursor, RequestRefusal> {
    if text.is_empty() {
        return Ok(Cursor::Begin);
    }
    let words: Vec<_> = text.split(' ').collect();
    let parsed = || -> Option<TunnelKey> {
        let [remote, local, reqid, mode, protocol, if_id] = words[..] else { return None };
        Some(TunnelKey {
            remote: remote.parse().ok()?,
            local: local.parse().ok()?,
            reqid: Reqid(reqid.parse().ok()?),
            mode: MODES.iter().find(|(_, word)| *word == mode)?.0,
            protocol: PROTOCOLS.iter().find(|(_, word)| *word == protocol)?.0,
            if_id: IfId(if_id.parse().ok()?),
        })
    };
    let wrong = || RequestRefusal::new(format!("after {text:?} is no `next` of an answer"));
    parsed().map(Cursor::Behind).ok_or_else(wrong)
}

#[cfg(test)]
mod tests;
