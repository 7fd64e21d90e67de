//! Numbers and edges: taken by transactions that hold only under the epoch that is known.

use std::collections::BTreeMap;

use super::{
    Agent, GatewayOrder, Purpose, StateDirection, StoreAnswer, StoreRequest,
    session::Range,
    tenure::{StateTenure, TenureId},
    view::Versioned,
};
use crate::{
    edges::{Edge, EdgeRecord, Reach, StateDigest, last_holder},
    members::Duty,
    names::{ChildId, GatewayName},
    numbers::{KeyFingerprint, NumberLease, NumberRecord},
    seal::Serial,
    store::{Stay, StoreCondition, StoreOperation, StoreRevision, StoreTransaction},
};

/// How far near edges are ahead: as many numbers as come in this time, in milliseconds.
const NEAR_TIME: u64 = 300;
/// And at least so many; what comes above waits at the gateway for the edge.
const NEAR_LEAST: u64 = 4;
/// How far far edges are ahead of near ones, in milliseconds of the rate, and at least.
const FAR_TIME: u64 = 600_000;
const FAR_LEAST: u64 = 1 << 16;
/// How many numbers are leased: as many as are sent in this time, in milliseconds, and at least.
const LEASE_TIME: u64 = 600_000;
const LEASE_LEAST: u64 = 1 << 16;
/// And at most: a peer without ESN's upper half must be able to follow.
const LEASE_MOST: u64 = 1 << 28;
/// Most keys in one transaction; etcd takes 128 operations.
const MOST_KEYS: usize = 100;

/// What this gateway wrote, and what is under way.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// All gateways' edges, as they were read at a revision; the own ones as they were written.
    others: BTreeMap<GatewayName, EdgeRecord>,
    read_at: Option<StoreRevision>,
    own: Option<Versioned<EdgeRecord>>,
    is_stale: bool,
    under_way: Option<Claim>,
}

/// A state of a tenure.
#[derive(Clone, Debug)]
pub(super) struct StatePlace {
    pub(super) child: ChildId,
    pub(super) tenure: TenureId,
    pub(super) state: StateDigest,
}

/// A transaction, and what follows when it is done.
#[derive(Debug, Default)]
struct Claim {
    edges: Option<(Serial, EdgeRecord)>,
    opened: Vec<(StatePlace, u64, Edge)>,
    moved: Vec<(StatePlace, Edge)>,
    leased: Vec<(StatePlace, KeyFingerprint, NumberRecord, NumberLease)>,
    returns: bool,
}

impl Claim {
    fn is_empty(&self) -> bool {
        self.opened.is_empty() && self.moved.is_empty() && self.leased.is_empty() && !self.returns
    }
}

impl Agent {
    /// Takes what children of this gateway need, if something can be taken.
    pub(super) fn claim(&mut self, random: &mut dyn FnMut() -> u64) {
        let is_owner = self.duty() == Some(Duty::Active);
        let is_busy = self.claims.under_way.is_some();
        if !is_owner || is_busy || !self.has_store() || !self.know_edges() {
            return;
        }
        match self.session.range() {
            Range::Near | Range::Returning => {}
            Range::Asking(_) | Range::Far => return,
        }
        let mut claim = Claim::default();
        self.claim_edges(&mut claim);
        self.claim_numbers(&mut claim, random);
        if self.session.range() == Range::Returning {
            if !self.all_limited() {
                return;
            }
            claim.returns = true;
        }
        if !claim.is_empty() {
            self.commit(claim, random);
        }
    }

    /// Whether edges were read after the epoch began; if not, they are.
    fn know_edges(&mut self) -> bool {
        let Some(members) = &self.view.members else { return false };
        let is_new = self.claims.read_at.is_some_and(|at| at >= members.revision);
        if is_new && !self.claims.is_stale {
            return true;
        }
        if !self.is_asked(|purpose| matches!(purpose, Purpose::Edges)) {
            self.ask(StoreRequest::ReadAll(self.keys.all_edges()), Purpose::Edges);
        }
        false
    }

    pub(super) fn edges_came(&mut self, answer: StoreAnswer) {
        let StoreAnswer::Records(revision, records) = answer else { return };
        self.claims.others.clear();
        let prefix = self.keys.all_edges();
        for (key, stored) in records {
            let Some(Ok(name)) = key.strip_prefix(&prefix).map(str::parse::<GatewayName>) else {
                continue;
            };
            let opened = self.keyring.open(&key, &stored.value);
            let read = opened.ok().and_then(|opened| {
                let record: EdgeRecord = serde_json::from_slice(&opened.text).ok()?;
                Some((opened.serial, record))
            });
            let Some((serial, record)) = read else {
                // Nobody knows what that gateway accepted: nothing begins before it is mended.
                self.view.refused.push(format!("{key}: it does not open"));
                return;
            };
            if name == self.config.name {
                let revision = stored.revision;
                self.claims.own = Some(Versioned { serial, revision, record: record.clone() });
            }
            self.claims.others.insert(name, record);
        }
        self.claims.read_at = Some(revision);
        self.claims.is_stale = false;
    }

    fn claim_edges(&mut self, claim: &mut Claim) {
        let mut asks = Vec::new();
        let mut starts = Vec::new();
        let (epoch, returns) = (self.view.epoch(), self.session.range() == Range::Returning);
        for (place, state) in self.moves.installed_states(StateDirection::In) {
            let Some(edge) = state.edge else {
                match self.start_of(&place, state) {
                    Start::At(above) => {
                        let edge = edge_at(above + ahead(0), 0, epoch);
                        starts.push((place.clone(), above));
                        claim.opened.push((place, above, edge));
                    }
                    Start::Ask(holder) => asks.push((place.child, holder)),
                }
                continue;
            };
            let (rate, ahead) = (&state.rate, ahead(state.rate.per_second));
            let is_short = rate.reached() + ahead / 2 >= edge.near;
            if is_short || returns || edge.epoch != epoch {
                let least = if returns { rate.limit } else { 0 };
                let near = edge.near.max(rate.reached() + ahead).max(least);
                claim.moved.push((place, edge_at(near, rate.per_second, epoch)));
            }
        }
        asks.iter().for_each(|(child, holder)| self.moves.ask_for(child, holder));
        for (place, start) in starts {
            if let Some(state) = self.moves.state(&place) {
                state.start = Some(start);
            }
        }
    }

    /// Above which number a state begins here.
    fn start_of(&self, place: &StatePlace, state: &StateTenure) -> Start {
        let Some((holder, edge)) = last_holder(place.state, &self.claims.others) else {
            return Start::At(0);
        };
        if *holder == self.config.name {
            // It was written, and nobody heard; or this gateway had it before, and knows; or it was
            // started anew since then.
            let known = state.start.or_else(|| self.moves.received(place.state));
            return Start::At(known.unwrap_or(edge.far));
        }
        if let Some(received) = self.moves.released_by(holder, place) {
            return Start::At(received);
        }
        let members = self.view.members.as_ref();
        let member = members.and_then(|members| members.record.gateways.get(holder));
        match member.map(|member| member.duty) {
            Some(Duty::Down(reach)) => Start::At(edge.at(reach)),
            Some(Duty::Active | Duty::Draining) if !self.patience_ended(place) => {
                Start::Ask(holder.clone())
            }
            Some(Duty::Active | Duty::Draining) | None => Start::At(edge.at(Reach::Far)),
        }
    }

    fn claim_numbers(&self, claim: &mut Claim, random: &mut dyn FnMut() -> u64) {
        for (place, state) in self.moves.installed_states(StateDirection::Out) {
            let key = state.info.key;
            let is_taken = claim.leased.iter().any(|(_, taken, ..)| *taken == key);
            let wanted = (state.rate.per_second.saturating_mul(LEASE_TIME) / 1_000)
                .clamp(LEASE_LEAST, LEASE_MOST);
            let last = state.lease.as_ref().map_or(0, |lease| lease.last);
            let has_enough = last.saturating_sub(state.rate.number) > wanted / 2;
            if is_taken || has_enough || claim.leased.len() >= MOST_KEYS {
                continue;
            }
            let unused = NumberRecord::unused(self.config.name.clone());
            let known = self.view.numbers(key).map_or(&unused, |known| &known.record);
            let draw = || prefix_bits(random());
            // A key that is used up sends what it has left.
            let taken = known.lease(&self.config.name, wanted, state.info.last_number, draw);
            if let Ok((record, lease)) = taken {
                claim.leased.push((place, key, record, lease));
            }
        }
    }
}

/// The transaction of a claim, and what follows from its end.
impl Agent {
    fn commit(&mut self, mut claim: Claim, random: &mut dyn FnMut() -> u64) {
        let Some(members) = &self.view.members else { return };
        let condition = |key: String, written| StoreCondition { key, written };
        let mut conditions = vec![condition(self.keys.members(), Some(members.revision))];
        let mut operations = Vec::new();
        if !claim.opened.is_empty() || !claim.moved.is_empty() {
            let key = self.keys.edges(&self.config.name);
            let own = self.claims.own.as_ref();
            conditions.push(condition(key.clone(), own.map(|own| own.revision)));
            let mut record = own.map(|own| own.record.clone()).unwrap_or_default();
            let opened = claim.opened.iter().map(|(place, _, edge)| (place.state, *edge));
            let moved = claim.moved.iter().map(|(place, edge)| (place.state, *edge));
            opened.chain(moved).for_each(|(state, edge)| record.raise(state, edge));
            let serial = Serial(own.map_or(0, |own| own.serial.0) + 1);
            let value = self.seal(&key, serial, &record, random);
            operations.push(StoreOperation::Put { key, value, stay: Stay::Forever });
            claim.edges = Some((serial, record));
        }
        for (_, fingerprint, record, _) in &claim.leased {
            let key = self.keys.numbers(*fingerprint);
            let known = self.view.numbers(*fingerprint).map(|known| known.revision);
            conditions.push(condition(key.clone(), known));
            let value = self.seal(&key, Serial(record.next), record, random);
            operations.push(StoreOperation::Put { key, value, stay: Stay::Forever });
        }
        self.claims.under_way = Some(claim);
        let transaction = StoreTransaction { conditions, operations };
        self.ask(StoreRequest::Commit(transaction), Purpose::Claim);
    }

    pub(super) fn claim_ended(&mut self, answer: &StoreAnswer) {
        let Some(claim) = self.claims.under_way.take() else { return };
        let StoreAnswer::Committed(revision) = answer else {
            // The epoch changed, or nobody knows: what stands there is read again.
            self.claims.is_stale = true;
            return;
        };
        if let Some((serial, record)) = claim.edges {
            self.claims.others.insert(self.config.name.clone(), record.clone());
            self.claims.own = Some(Versioned { serial, revision: *revision, record });
        }
        let mut orders = Vec::new();
        for (place, above, edge) in claim.opened {
            if let Some(state) = self.moves.state(&place) {
                state.edge = Some(edge);
                state.rate.begins(above, self.now);
                let state = place.state;
                orders.push(GatewayOrder::Open { state, above, limit: edge.near });
            }
            self.moves.ask_no_more(&place.child);
        }
        for (place, edge) in claim.moved {
            if let Some(state) = self.moves.state(&place) {
                state.edge = Some(edge);
                orders.push(GatewayOrder::Limit(place.state, edge.near));
            }
        }
        for (place, key, record, lease) in claim.leased {
            let serial = Serial(record.next);
            self.view.wrote_numbers(key, Versioned { serial, revision: *revision, record });
            if let Some(state) = self.moves.state(&place) {
                state.lease = Some(lease.clone());
                orders.push(GatewayOrder::Numbers(place.state, lease));
            }
        }
        if claim.returns {
            self.session.returned();
        }
        orders.into_iter().for_each(|order| self.order(order));
    }

    /// The gateway goes on without etcd, and all know it.
    pub(super) fn limit_far(&mut self) {
        let limits = self.moves.edges().map(|(state, edge, _)| (state, edge.far));
        self.limit(limits.collect());
    }

    /// The gateway has etcd again.
    pub(super) fn limit_near(&mut self) {
        let limits = self.moves.edges();
        let limits = limits.map(|(state, _, rate)| (state, rate.number + ahead(rate.per_second)));
        self.limit(limits.collect());
    }

    fn limit(&mut self, limits: Vec<(StateDigest, u64)>) {
        for (state, limit) in limits {
            self.order(GatewayOrder::Limit(state, limit));
        }
    }

    /// Whether the gateway said of all states that they no longer accept up to their far edges.
    fn all_limited(&self) -> bool {
        self.moves.edges().all(|(_, edge, rate)| rate.limit < edge.far)
    }
}

/// Where a state begins.
enum Start {
    At(u64),
    /// Where this gateway says that it ended.
    Ask(GatewayName),
}

#[expect(clippy::cast_possible_truncation, reason = "any 32 of the random bits")]
const fn prefix_bits(random: u64) -> u32 {
    random as u32
}

fn ahead(rate: u64) -> u64 {
    (rate.saturating_mul(NEAR_TIME) / 1_000).max(NEAR_LEAST)
}

fn edge_at(near: u64, rate: u64, epoch: Serial) -> Edge {
    let beyond = (rate.saturating_mul(FAR_TIME) / 1_000).max(FAR_LEAST);
    Edge { near, far: near.saturating_add(beyond), epoch }
}
