//! A gateway, as far as numbers go.

use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::{
    agent::{GatewayOrder, GatewayReport, StateDirection, StateInfo, StateUse},
    edges::StateDigest,
    names::ChildId,
    numbers::{KeyFingerprint, NumberLease},
};

/// What a gateway has.
#[derive(Debug, Default)]
pub(super) struct GatewayModel {
    children: BTreeMap<ChildId, bool>,
    inbound: BTreeMap<StateDigest, Inbound>,
    outbound: BTreeMap<StateDigest, Outbound>,
    deadline: Option<u64>,
    is_fenced: bool,
}

#[derive(Debug, Default)]
struct Inbound {
    above: u64,
    limit: u64,
    highest: u64,
    waiting: u64,
    /// All that it accepted: a window without an end.
    accepted: HashSet<u64>,
    is_open: bool,
}

#[derive(Debug, Default)]
struct Outbound {
    leases: VecDeque<NumberLease>,
    last: u64,
    packets: u64,
}

/// The state of a child that accepts packets.
pub(super) fn inbound(child: &ChildId) -> StateDigest {
    StateDigest(name(child) * 2)
}

fn outbound(child: &ChildId) -> StateDigest {
    StateDigest(name(child) * 2 + 1)
}

/// The key that a child sends with.
pub(super) fn outbound_key(child: &ChildId) -> KeyFingerprint {
    KeyFingerprint(outbound(child).0)
}

fn name(child: &ChildId) -> u128 {
    child.tunnel.as_str().bytes().fold(1, |name, byte| name * 256 + u128::from(byte))
}

impl GatewayModel {
    pub(super) fn order(&mut self, order: GatewayOrder) -> Option<GatewayReport> {
        match order {
            GatewayOrder::Base(_) => None,
            GatewayOrder::Install(child, _) => Some(self.install(child)),
            GatewayOrder::Open { state, above, limit } => {
                let open = self.inbound.get_mut(&state)?;
                *open =
                    Inbound { above, limit, highest: above, is_open: true, ..Inbound::default() };
                None
            }
            GatewayOrder::Limit(state, limit) => {
                let state = self.inbound.get_mut(&state)?;
                state.limit = limit.max(state.highest);
                None
            }
            GatewayOrder::Numbers(state, lease) => {
                self.outbound.get_mut(&state)?.leases.push_back(lease);
                None
            }
            GatewayOrder::Freeze(child) => {
                *self.children.get_mut(&child)? = true;
                let received = self.inbound.get(&inbound(&child))?;
                let limit = received.limit;
                let used = StateUse {
                    state: inbound(&child),
                    number: received.highest,
                    waiting: 0,
                    packets: 0,
                    limit,
                };
                Some(GatewayReport::Frozen(child, vec![used]))
            }
            GatewayOrder::Remove(child) => {
                self.children.remove(&child);
                self.inbound.remove(&inbound(&child));
                self.outbound.remove(&outbound(&child));
                None
            }
            GatewayOrder::Deadline(deadline) => {
                self.deadline = deadline;
                self.is_fenced = true;
                None
            }
        }
    }

    fn install(&mut self, child: ChildId) -> GatewayReport {
        let info = |state, direction| StateInfo {
            state,
            key: KeyFingerprint(state.0),
            direction,
            last_number: u64::from(u32::MAX),
        };
        self.inbound.entry(inbound(&child)).or_default();
        self.outbound.entry(outbound(&child)).or_default();
        self.children.insert(child.clone(), false);
        let states = vec![
            info(inbound(&child), StateDirection::In),
            info(outbound(&child), StateDirection::Out),
        ];
        GatewayReport::Installed(child, states)
    }

    fn is_over(&self, now: u64) -> bool {
        !self.is_fenced || self.deadline.is_some_and(|deadline| now >= deadline)
    }

    pub(super) fn accept(&mut self, state: StateDigest, number: u64, now: u64) -> bool {
        if self.is_over(now) {
            return false;
        }
        let frozen = self.children.iter().any(|(child, frozen)| *frozen && inbound(child) == state);
        let Some(open) = self.inbound.get_mut(&state).filter(|open| open.is_open && !frozen) else {
            return false;
        };
        if number > open.limit {
            open.waiting = open.waiting.max(number);
        }
        let fits = number > open.above && number <= open.limit;
        if !fits || !open.accepted.insert(number) {
            return false;
        }
        open.highest = open.highest.max(number);
        true
    }

    /// Whether it may accept a packet once its agent says so.
    pub(super) fn holds(&self, state: StateDigest, number: u64) -> bool {
        let frozen = self.children.iter().any(|(child, frozen)| *frozen && inbound(child) == state);
        let open = self.inbound.get(&state).filter(|_| !frozen);
        open.is_some_and(|open| !open.is_open || number > open.limit)
    }

    /// Sends a packet; its number and IV.
    pub(super) fn send(&mut self, child: &ChildId, now: u64) -> Option<(u64, u64)> {
        if self.is_over(now) || *self.children.get(child)? {
            return None;
        }
        let own = self.outbound.get_mut(&outbound(child))?;
        while own.leases.front().is_some_and(|lease| own.last >= lease.last) {
            own.leases.pop_front();
        }
        let lease = own.leases.front()?;
        own.last = (own.last + 1).max(lease.first);
        own.packets += 1;
        Some((own.last, lease.iv(own.last)))
    }

    pub(super) fn uses(&self) -> Vec<StateUse> {
        let inbound = self.inbound.iter().map(|(state, own)| StateUse {
            state: *state,
            number: own.highest,
            waiting: own.waiting,
            packets: own.accepted.len() as u64,
            limit: own.limit,
        });
        let outbound = self.outbound.iter().map(|(state, own)| StateUse {
            state: *state,
            number: own.last,
            waiting: 0,
            packets: own.packets,
            limit: 0,
        });
        inbound.chain(outbound).collect()
    }

    pub(super) fn children(&self) -> impl Iterator<Item = &ChildId> {
        self.children.keys()
    }
}
