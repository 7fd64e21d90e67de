//! A child at this gateway.

use std::collections::BTreeMap;

use super::{Millis, StateInfo, StateUse};
use crate::{
    edges::{Edge, StateDigest},
    names::GatewayName,
    numbers::NumberLease,
    seal::Serial,
};

/// Names a tenure of this agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TenureId(pub(super) u64);

/// A child that this gateway is to have.
#[derive(Debug)]
pub(super) struct Tenure {
    /// No other ever has it: what was begun for an earlier one is not for this one.
    pub(super) id: TenureId,
    /// Which record of its tunnel.
    pub(super) serial: Serial,
    pub(super) phase: Phase,
    pub(super) states: BTreeMap<StateDigest, StateTenure>,
    /// What who had it before said that it accepted, by gateway and state.
    pub(super) released: BTreeMap<(GatewayName, StateDigest), u64>,
    /// Since when this gateway is to have it.
    pub(super) since: Millis,
}

/// How far a child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its tunnel is to be read.
    Wanted,
    /// It is being read.
    Reading,
    /// The gateway was told.
    Installing,
    /// The gateway has it.
    Installed,
    /// The gateway can't have it.
    Refused,
}

/// A state of such a child.
#[derive(Debug)]
pub(super) struct StateTenure {
    pub(super) info: StateInfo,
    /// Above which number it begins, once that is known.
    pub(super) start: Option<u64>,
    /// What etcd has, once the gateway may accept up to there.
    pub(super) edge: Option<Edge>,
    /// What the gateway may send with.
    pub(super) lease: Option<NumberLease>,
    pub(super) rate: StateRate,
}

/// How far a state is, and how fast.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateRate {
    /// The highest number.
    pub(super) number: u64,
    /// The highest that waits.
    pub(super) waiting: u64,
    /// Up to where the gateway accepts, as it said last.
    pub(super) limit: u64,
    /// In packets a second.
    pub(super) per_second: u64,
    measured_at: Millis,
    measured: u64,
}

/// Between two measurements of a rate.
const MEASURED_EVERY: Millis = 100;

impl StateRate {
    /// It is so far at a time.
    pub(super) fn at(&mut self, used: &StateUse, now: Millis) {
        self.number = self.number.max(used.number);
        (self.waiting, self.limit) = (used.waiting, used.limit);
        let passed = now.saturating_sub(self.measured_at);
        if passed >= MEASURED_EVERY {
            let rate = used.packets.saturating_sub(self.measured).saturating_mul(1_000) / passed;
            // It rises at once and falls by halves.
            self.per_second = rate.max(self.per_second / 2);
            (self.measured_at, self.measured) = (now, used.packets);
        }
    }

    /// The highest that it accepted, or would.
    pub(super) fn reached(&self) -> u64 {
        self.number.max(self.waiting)
    }

    /// It begins there.
    pub(super) fn begins(&mut self, number: u64, now: Millis) {
        (self.number, self.measured_at) = (number, now);
    }
}

/// A child that this gateway had, and accepts packets for until it is asked for it.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) states: BTreeMap<StateDigest, StateTenure>,
    pub(super) since: Millis,
    /// Who asked for it: the gateway was told to freeze it.
    pub(super) asker: Option<GatewayName>,
    pub(super) is_freezing: bool,
}
