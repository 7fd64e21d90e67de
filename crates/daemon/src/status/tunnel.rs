//! One tunnel as it is told: its health, and what its states carried.

use std::time::Duration;

use uxfrm_engine::{Direction, Lifecycle, Sa};
use uxfrm_status::{
    counters::CounterList,
    health::{Health, HealthFacts, HealthReason, SideFacts, SideFault, judge},
    limit::LimitStatus,
    tunnel::{FailureStatus, TrafficStatus, TunnelStatus},
};

use super::{
    state::{self, LimitSide, StateCounts, mode_word, protocol_word},
    survey::{Group, ReadAt},
};

/// States that a tunnel tells of.
const STATES: usize = 8;
/// How long an expired state explains that there is none.
const MEMORY: Duration = Duration::from_secs(3600);

/// What is known of a tunnel before it is told in full.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    pub(super) health: Health,
    reason: Option<HealthReason>,
    pub(super) sent: TrafficStatus,
    pub(super) received: TrafficStatus,
    failures: FailureStatus,
}

impl Summary {
    /// What the policies and states of a tunnel come to.
    pub(super) fn of(group: &Group<'_>, read: &ReadAt<'_>) -> Self {
        let (outbound, sent, sent_failures) = side(&group.outbound, Direction::Out, read);
        let (inbound, received, failures) = side(&group.inbound, Direction::In, read);
        let policies = group.policies;
        let is_stuck = policies.outbound > 0 && outbound.usable == 0;
        let facts = HealthFacts {
            outbound: (policies.outbound > 0).then_some(outbound),
            inbound: (policies.inbound + policies.forward > 0).then_some(inbound),
            requirement: group.requirement,
            key_management: group.key_management,
            expired: if is_stuck { expired(group, read) } else { None },
        };
        let (health, reason) = judge(&facts);
        Self { health, reason, sent, received, failures: failures.plus(sent_failures) }
    }

    /// The tunnel in full.
    pub(super) fn status(&self, group: &Group<'_>, read: &ReadAt<'_>) -> TunnelStatus {
        let newest_out = newest(&group.outbound);
        let newest_in = newest(&group.inbound);
        let newest = newest_out.or(newest_in);
        let limit = |side| {
            let of = |sa: &Sa| StateCounts::of(sa, read).limit(sa, side, read.now);
            let limits = [newest_out, newest_in].into_iter().flatten().filter_map(of);
            limits.reduce(
                |one: LimitStatus, other| {
                    if other.used_ratio > one.used_ratio { other } else { one }
                },
            )
        };
        TunnelStatus {
            local: group.key.local,
            remote: group.key.remote,
            mode: mode_word(group.key.mode).to_owned(),
            protocol: protocol_word(group.key.protocol).to_owned(),
            reqid: group.key.reqid.0,
            if_id: group.key.if_id.0,
            health: self.health,
            explanation: self.reason.as_ref().map(ToString::to_string),
            reason: self.reason.clone(),
            nets: group.nets.clone(),
            nets_total: group.nets_total,
            policies: group.policies,
            cipher: newest.map(state::cipher),
            encapsulation: newest.and_then(|sa| sa.config().encap).map(state::encapsulation),
            device: newest.and_then(|sa| state::device(sa, read)),
            sent: self.sent,
            received: self.received,
            failures: self.failures,
            drops: drops(group),
            rekey: limit(LimitSide::Soft),
            expiry: limit(LimitSide::Hard),
            sequence_ratio: newest_out.map(|sa| StateCounts::of(sa, read).sequence_ratio(sa)),
            states: states(group, read),
            states_total: (group.outbound.len() + group.inbound.len()) as u64,
        }
    }
}

/// The newest states, of both directions.
fn states(group: &Group<'_>, read: &ReadAt<'_>) -> Vec<uxfrm_status::tunnel::StateStatus> {
    let with = |direction| move |sa: &&Sa| (direction, sa.insertion_seq());
    let outbound = group.outbound.iter().map(|sa| (with(Direction::Out)(sa), *sa));
    let inbound = group.inbound.iter().map(|sa| (with(Direction::In)(sa), *sa));
    let mut all: Vec<_> = outbound.chain(inbound).collect();
    all.sort_unstable_by_key(|((_, seq), _)| std::cmp::Reverse(*seq));
    let some = all.into_iter().take(STATES);
    some.map(|((direction, _), sa)| state::status(sa, Some(direction), read)).collect()
}

/// What was dropped, the most frequent reason first.
fn drops(group: &Group<'_>) -> CounterList {
    let all = group.drops.iter();
    let mut all: Vec<_> =
        all.map(|(reason, packets)| (reason.as_str().to_owned(), *packets)).collect();
    all.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
    CounterList(all)
}

fn newest<'a>(states: &[&'a Sa]) -> Option<&'a Sa> {
    states.iter().copied().max_by_key(|sa| sa.insertion_seq())
}

/// What the states of one direction come to together.
fn side(
    states: &[&Sa],
    direction: Direction,
    read: &ReadAt<'_>,
) -> (SideFacts, TrafficStatus, FailureStatus) {
    let (mut facts, mut traffic) = (SideFacts::default(), TrafficStatus::default());
    let mut failures = FailureStatus::default();
    for sa in states {
        let carried = StateCounts::of(sa, read);
        match fault(sa, direction, &carried) {
            Some(fault) => facts.fault = Some(fault),
            None => facts.usable += 1,
        }
        traffic = traffic.plus(carried.traffic(read.now));
        failures = failures.plus(carried.failures());
        let first = carried.first_used.map(|first| read.now.since(first).as_secs());
        facts.first_seconds_ago = facts.first_seconds_ago.max(first);
    }
    facts.packets = traffic.packets;
    facts.last_seconds_ago = traffic.last_seconds_ago;
    (facts, traffic, failures)
}

/// Why a state may not carry packets this way.
fn fault(sa: &Sa, direction: Direction, carried: &StateCounts) -> Option<SideFault> {
    let config = sa.config();
    match sa.lifecycle() {
        Lifecycle::Acquire | Lifecycle::Error | Lifecycle::Expired => {
            return Some(SideFault::Expired);
        }
        Lifecycle::Valid | Lifecycle::Dying => {}
    }
    if config.direction.is_some_and(|own| own != direction) {
        return Some(SideFault::WrongDirection);
    }
    let is_used_up = direction == Direction::Out && carried.sent >= config.last_number();
    is_used_up.then_some(SideFault::NumbersUsedUp)
}

/// The latest state towards the peer that passed its hard limit.
fn expired(group: &Group<'_>, read: &ReadAt<'_>) -> Option<(String, u64)> {
    let all = read.posted.post.expired.iter().rev();
    let mut of_peer = all.filter(|expired| {
        let is_theirs = expired.id.destination == group.key.remote;
        is_theirs && read.now.since(expired.at) < MEMORY
    });
    let expired = of_peer.next()?;
    Some((expired.id.spi.to_string(), read.now.since(expired.at).as_secs()))
}
