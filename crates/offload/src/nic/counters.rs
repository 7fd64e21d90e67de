//! Counters of a device, for a successor in another process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use uxfrm_engine::TrafficCounters;

use super::ModelNic;

/// Counters of a device without packets in flight.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicCounters {
    sent: DirectionCounters,
    received: DirectionCounters,
    encrypted: u64,
    /// Packets per receive queue.
    queued: Vec<u64>,
    /// Drops by [`NicDrop::as_str`](super::NicDrop::as_str).
    drops: BTreeMap<String, u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DirectionCounters {
    received: u64,
    received_bytes: u64,
    sent: u64,
    sent_bytes: u64,
    dropped: u64,
}

impl ModelNic {
    /// The counters. Delayed packets count as received, and must be released first.
    #[must_use]
    pub fn tally(&self) -> NicCounters {
        NicCounters {
            sent: DirectionCounters::of(&self.sent),
            received: DirectionCounters::of(&self.received),
            encrypted: self.encrypted,
            queued: self.queued.clone(),
            drops: self.drops.iter().map(|(why, n)| (why.as_str().to_owned(), n)).collect(),
        }
    }

    /// Continues with another device's counters. Unknown drop reasons are ignored.
    pub fn resume_counters(&mut self, tally: &NicCounters) {
        tally.sent.add_to(&mut self.sent);
        tally.received.add_to(&mut self.received);
        self.encrypted += tally.encrypted;
        self.queued.iter_mut().zip(&tally.queued).for_each(|(count, before)| *count += before);
        self.drops.add_named(&tally.drops);
    }
}

impl DirectionCounters {
    const fn of(traffic: &TrafficCounters) -> Self {
        let &TrafficCounters { received, received_bytes, sent, sent_bytes, dropped, .. } = traffic;
        Self { received, received_bytes, sent, sent_bytes, dropped }
    }

    const fn add_to(self, traffic: &mut TrafficCounters) {
        traffic.received += self.received;
        traffic.received_bytes += self.received_bytes;
        traffic.sent += self.sent;
        traffic.sent_bytes += self.sent_bytes;
        traffic.dropped += self.dropped;
    }
}
