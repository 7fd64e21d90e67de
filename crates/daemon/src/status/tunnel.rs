//! One tunnel as it is told: its health, and what its states carried.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use uxfrm_engine::{Direction, DropReason, DropRecord, Lifecycle, Moment, Sa};
use uxfrm_status::{
    counters::CounterList,
    health::{
        Health, HealthFacts, HealthReason, KeyManagement, SideDrops, SideFacts, SideFault,
        UNANSWERED_SECONDS, judge,
    },
    limit::{LimitKind, LimitStatus},
    quantity::span,
    tunnel::{FailureStatus, PolicyTally, StateStatus, TrafficStatus, TunnelStatus},
};

use super::{
    grouping::Group,
    refusals::{Refusals, RefusedPackets},
    state::{self, LimitSide, StateCounts, mode_word, protocol_word},
    survey::ReadAt,
};

/// States that a tunnel tells of.
const STATES: usize = 8;
/// How long an expired state explains that there is none.
const MEMORY: Duration = Duration::from_secs(3600);

/// What the states of a tunnel carried.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TunnelTotals<'a> {
    /// Those by which packets leave.
    pub(super) outbound: SideTotals<'a>,
    /// Those by which packets come in.
    pub(super) inbound: SideTotals<'a>,
}

/// What the states of one direction come to together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SideTotals<'a> {
    usable: u64,
    fault: Option<SideFault>,
    packets: u64,
    bytes: u64,
    first_used: Option<Moment>,
    last_used: Option<Moment>,
    failures: FailureStatus,
    /// What its states opened and was dropped.
    refused: Option<RefusedPackets>,
    /// The latest packet of states that let packets through.
    passed_at: Option<Moment>,
    pub(super) newest: Option<Newest<'a>>,
}

/// The newest state of a direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest<'a> {
    sa: &'a Sa,
    /// How much of its sequence numbers it has used, from 0 to 1.
    pub(super) sequence_ratio: f64,
    /// Seconds until it reaches its hard limit of time.
    pub(super) seconds_left: Option<u64>,
}

/// All that is known of a tunnel.
#[derive(Clone, Copy, Debug)]
pub(super) struct TunnelFacts<'a> {
    pub(super) group: &'a Group,
    pub(super) carried: &'a TunnelTotals<'a>,
    pub(super) drops: Option<&'a BTreeMap<DropReason, u64>>,
    pub(super) key_management: KeyManagement,
    /// Packets that were to leave by it, and that no state took.
    pub(super) unsent: &'a [&'a DropRecord],
    /// The newest state to the peer that fits no policy.
    pub(super) stray: Option<&'a Sa>,
}

impl<'a> TunnelTotals<'a> {
    /// Adds a state.
    pub(super) fn take(&mut self, sa: &'a Sa, direction: Direction, read: &ReadAt<'_>) {
        match direction {
            Direction::Out => self.outbound.take(sa, Direction::Out, read),
            Direction::In | Direction::Forward => self.inbound.take(sa, Direction::In, read),
        }
    }

    /// Adds what of a state's packets was dropped behind it.
    pub(super) fn take_refused(&mut self, sa: &Sa, refusals: &Refusals, read: &ReadAt<'_>) {
        let side = &mut self.inbound;
        match refusals.of(sa.id(), read.now) {
            Some(refused) => {
                side.refused = Some(side.refused.map_or(refused, |sum| sum.plus(refused)));
            }
            None => side.passed_at = side.passed_at.max(StateCounts::of(sa, read).last_used),
        }
    }

    /// Bytes of both directions.
    pub(super) const fn bytes(&self) -> u64 {
        self.outbound.bytes.saturating_add(self.inbound.bytes)
    }
}

impl<'a> SideTotals<'a> {
    fn take(&mut self, sa: &'a Sa, direction: Direction, read: &ReadAt<'_>) {
        let carried = StateCounts::of(sa, read);
        match fault(sa, direction, &carried) {
            Some(fault) => self.fault = Some(fault),
            None => self.usable += 1,
        }
        self.packets += carried.packets;
        self.bytes += carried.bytes;
        let first = [self.first_used, carried.first_used];
        self.first_used = first.into_iter().flatten().min();
        self.last_used = self.last_used.max(carried.last_used);
        self.failures = self.failures.plus(carried.failures());
        let seq = |newest: &Newest<'_>| newest.sa.insertion_seq();
        if self.newest.as_ref().is_none_or(|newest| seq(newest) < sa.insertion_seq()) {
            self.newest = Some(Newest::of(sa, &carried, read));
        }
    }

    pub(super) fn traffic(&self, now: Moment) -> TrafficStatus {
        TrafficStatus {
            packets: self.packets,
            bytes: self.bytes,
            last_seconds_ago: self.last_used.map(|last| now.since(last).as_secs()),
        }
    }

    fn facts(&self, now: Moment) -> SideFacts {
        let ago = |moment: Moment| now.since(moment).as_secs();
        SideFacts {
            usable: self.usable,
            fault: self.fault,
            packets: self.packets,
            first_seconds_ago: self.first_used.map(ago),
            last_seconds_ago: self.last_used.map(ago),
            dropped: self.refused.filter(|refused| self.passed_at <= Some(refused.at)).map(
                |RefusedPackets { reason, received, dropped, at }| SideDrops {
                    reason: reason.as_str().to_owned(),
                    dropped,
                    of: received,
                    seconds_ago: ago(at),
                },
            ),
        }
    }

    /// What of these records came after the newest state did, where that has sent nothing since.
    fn unsent(&self, records: &[&DropRecord], now: Moment) -> Option<SideDrops> {
        let added = self.newest.map(|newest| newest.sa.added())?;
        let unanswered = Duration::from_secs(UNANSWERED_SECONDS);
        let last = records.iter().max_by_key(|record| record.at)?;
        let is_last = self.last_used.is_none_or(|used| last.at.since(used) >= unanswered);
        if last.at <= added || !is_last {
            return None;
        }
        let since = records.iter().filter(|record| record.at > added);
        let dropped = since.map(|record| record.packets).sum();
        let seconds_ago = now.since(last.at).as_secs();
        let reason = last.reason.as_str().to_owned();
        Some(SideDrops { reason, dropped, of: dropped, seconds_ago })
    }
}

impl<'a> Newest<'a> {
    fn of(sa: &'a Sa, carried: &StateCounts, read: &ReadAt<'_>) -> Self {
        let hard = carried.limit(sa, LimitSide::Hard, read.now);
        let seconds_left = hard.and_then(|limit| match limit.of {
            LimitKind::Added | LimitKind::Used => Some(limit.left),
            LimitKind::Bytes | LimitKind::Packets => None,
        });
        Self { sa, sequence_ratio: carried.sequence_ratio(sa), seconds_left }
    }
}

impl TunnelFacts<'_> {
    /// Whether it carries what it is to carry, and why not.
    pub(super) fn judge(&self, read: &ReadAt<'_>) -> (Health, Option<HealthReason>) {
        let policies = self.group.policies;
        let (outbound, inbound) = (&self.carried.outbound, &self.carried.inbound);
        let is_stuck = policies.outbound > 0 && outbound.usable == 0;
        let unsent = outbound.unsent(self.unsent, read.now);
        let sends = SideFacts { dropped: unsent, ..outbound.facts(read.now) };
        judge(&HealthFacts {
            outbound: (policies.outbound > 0).then_some(sends),
            inbound: (policies.inbound + policies.forward > 0).then(|| inbound.facts(read.now)),
            requirement: self.group.requirement,
            key_management: self.key_management,
            expired: if is_stuck { expired(self.group, self.stray, read) } else { None },
        })
    }

    /// In what a state to the peer that fits no policy differs from the tunnel's templates.
    fn near_miss(&self) -> Option<String> {
        let (sa, key) = (self.stray?, &self.group.key);
        let config = sa.config();
        let mut differences = Vec::new();
        if sa.reqid() != key.reqid {
            differences.push(format!("reqid {}, not {}", sa.reqid().0, key.reqid.0));
        }
        if config.mode != key.mode {
            let (own, asked) = (mode_word(config.mode), mode_word(key.mode));
            differences.push(format!("mode {own}, not {asked}"));
        }
        if sa.source() != key.local && !key.local.is_unspecified() {
            differences.push(format!("src {}, not {}", sa.source(), key.local));
        }
        if config.if_id != key.if_id {
            differences.push(format!("if_id {:#x}, not {:#x}", config.if_id.0, key.if_id.0));
        }
        let is_near = !differences.is_empty();
        is_near.then(|| format!("nearest: {} has {}", sa.id().spi, differences.join(", and ")))
    }

    /// What a tunnel that is up lacks, whose peer has been silent for less than it takes to say so.
    fn unheard(&self, health: Health) -> Option<String> {
        let (sent, received) = (self.carried.outbound.packets, self.carried.inbound.packets);
        let policies = self.group.policies;
        let is_awaited = policies.inbound + policies.forward > 0 && sent > 0 && received == 0;
        (health == Health::Up && is_awaited).then(|| "nothing has come back yet".to_owned())
    }

    /// Which state it lacks to receive by passed its hard limit lately.
    fn expired_inbound(&self, reason: Option<&HealthReason>, read: &ReadAt<'_>) -> Option<String> {
        if !matches!(reason, Some(HealthReason::NoInboundState)) {
            return None;
        }
        let own = self.group.key.local;
        let mut of_own = read.posted.post.expired.iter().rev();
        let gone = of_own.find(|gone| gone.id.destination == own)?;
        let ago = read.now.since(gone.at);
        let words = || format!("state {} expired {} ago", gone.id.spi, span(ago.as_secs()));
        (ago < MEMORY).then(words)
    }

    /// The tunnel in full, with these states.
    pub(super) fn status(&self, states: Vec<(Direction, &Sa)>, read: &ReadAt<'_>) -> TunnelStatus {
        let (group, carried) = (self.group, self.carried);
        let (health, reason) = self.judge(read);
        let newest_out = carried.outbound.newest.map(|newest| newest.sa);
        let newest_in = carried.inbound.newest.map(|newest| newest.sa);
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
            health,
            explanation: explanation(
                [
                    reason.as_ref().map(ToString::to_string),
                    self.unheard(health),
                    self.expired_inbound(reason.as_ref(), read),
                ],
                self.near_miss().filter(|_| lacks_state(reason.as_ref())),
                group.policies,
            ),
            reason,
            nets: group.nets.clone(),
            nets_total: group.nets_total,
            policies: group.policies,
            cipher: newest.map(state::cipher),
            encapsulation: newest.and_then(|sa| sa.config().encap).map(state::encapsulation),
            device: newest.and_then(|sa| state::device(sa, read)),
            sent: carried.outbound.traffic(read.now),
            received: carried.inbound.traffic(read.now),
            failures: carried.outbound.failures.plus(carried.inbound.failures),
            drops: self.drops.map(listed).unwrap_or_default(),
            icmp_errors: Vec::new(),
            rekey: limit(LimitSide::Soft),
            expiry: limit(LimitSide::Hard),
            sequence_ratio: carried.outbound.newest.map(|newest| newest.sequence_ratio),
            states_total: states.len() as u64,
            states: newest_states(states, read),
        }
    }
}

/// Whether a state that nearly fits explains it.
const fn lacks_state(reason: Option<&HealthReason>) -> bool {
    match reason {
        Some(HealthReason::NoState | HealthReason::Expired { .. }) => true,
        Some(
            HealthReason::AcquirePending
            | HealthReason::WaitsForPacket
            | HealthReason::NumbersUsedUp
            | HealthReason::WrongDirection
            | HealthReason::NoInboundState
            | HealthReason::NothingReceived { .. }
            | HealthReason::ReceivedDropped { .. }
            | HealthReason::SentDropped { .. }
            | HealthReason::OptionalWithoutState
            | HealthReason::Quiet { .. },
        )
        | None => false,
    }
}

/// Why a tunnel is as it is, and what it lacks where its policies are for one way alone.
fn explanation(
    [reason, unheard, expired]: [Option<String>; 3],
    near_miss: Option<String>,
    policies: PolicyTally,
) -> Option<String> {
    let half = match policies {
        PolicyTally { outbound: 0, .. } => Some("only in: no policy dir out sends by it"),
        PolicyTally { inbound: 0, forward: 0, .. } => {
            Some("only out: no policy dir in or fwd takes what comes back")
        }
        PolicyTally { .. } => None,
    };
    let parts = [reason, unheard, expired, near_miss, half.map(str::to_owned)];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// The newest states, of both directions.
fn newest_states(mut states: Vec<(Direction, &Sa)>, read: &ReadAt<'_>) -> Vec<StateStatus> {
    states.sort_unstable_by_key(|(_, sa)| Reverse(sa.insertion_seq()));
    let some = states.into_iter().take(STATES);
    some.map(|(direction, sa)| state::status(sa, Some(direction), read)).collect()
}

/// What was dropped, the most frequent reason first.
fn listed(drops: &BTreeMap<DropReason, u64>) -> CounterList {
    let mut all: Vec<_> =
        drops.iter().map(|(reason, packets)| (reason.as_str().to_owned(), *packets)).collect();
    all.sort_by_key(|(_, packets)| Reverse(*packets));
    CounterList(all)
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

/// The latest state towards the peer that passed its hard limit. One that came to the peer since
/// explains better why there is none.
fn expired(group: &Group, stray: Option<&Sa>, read: &ReadAt<'_>) -> Option<(String, u64)> {
    let all = read.posted.post.expired.iter().rev();
    let mut of_peer = all.filter(|expired| {
        let is_theirs = expired.id.destination == group.key.remote;
        let is_latest = stray.is_none_or(|sa| sa.added() <= expired.at);
        is_theirs && is_latest && read.now.since(expired.at) < MEMORY
    });
    let expired = of_peer.next()?;
    Some((expired.id.spi.to_string(), read.now.since(expired.at).as_secs()))
}
