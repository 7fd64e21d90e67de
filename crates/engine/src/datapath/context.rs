//! What a batch's stages share: settings, snapshot, counters and output.

use uxfrm_crypto::Crypter;
use uxfrm_packet::{Batch, Pool};

use crate::settings::Settings;
use crate::{DropReason, Drops, Event, Handed, Moment, Snapshot};

/// What a call of [`Worker::outbound`] or [`Worker::inbound`] yields. Reused from batch to batch: the caller drains it.
#[derive(Debug, Default)]
pub struct Output {
    /// For the network: single packets and trains, checksums complete. Whole IP packets, or UDP payloads where
    /// [`Label::udp`](uxfrm_packet::Label::udp) is set.
    pub wire: Batch,
    /// For devices, in order.
    pub handed: Vec<Handed>,
    /// For the host, or to be forwarded: plain packets, super-packets if the host's port takes them.
    pub host: Batch,
    /// What key managers are to hear.
    pub events: Vec<Event>,
}

/// Packets and bytes of one direction. A train or super-packet counts as the packets it holds.
///
/// `received == sent + dropped + absorbed + held`, after every batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets given to the worker.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Packets that came out; before outer fragmentation and coalescing.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets dropped, each under one reason.
    pub dropped: u64,
    /// Fragments that went into a reassembled packet, which counts in their place as one.
    pub absorbed: u64,
    /// Packets that wait now: outbound for a state, inbound fragments for others.
    pub held: u64,
    /// Packets that the engine itself made (ICMP errors); not in `sent`.
    pub originated: u64,
}

/// What both directions work with for one batch.
pub(crate) struct Bench<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) crypter: &'a mut Crypter,
    pub(crate) drops: &'a Drops,
    pub(crate) now: Moment,
    pub(crate) pool: &'a mut Pool,
    pub(crate) out: &'a mut Output,
}

impl Bench<'_> {
    /// Counts `packets` packets as dropped.
    pub(crate) fn refuse(&self, traffic: &mut Traffic, packets: u64, reason: DropReason) {
        self.drops.add(reason, packets);
        traffic.dropped += packets;
    }

    /// Says something to key managers, once per batch.
    pub(crate) fn tell(&mut self, event: Event) {
        if !self.out.events.contains(&event) {
            self.out.events.push(event);
        }
    }
}
