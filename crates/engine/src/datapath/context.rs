//! What all stages of a batch share: settings, snapshot, drop counters, buffer pool and output.

use uxfrm_crypto::Crypter;
use uxfrm_packet::{Batch, PacketBuf, Pool};

use crate::drop_log::{DropLog, DropSite, DropView, EspAround, SeenPacket};
use crate::settings::Settings;
use crate::{DropReason, DropSubject, Event, Moment, OffloadedPacket, Sa, Snapshot};

/// Output of [`Worker::outbound`](crate::Worker::outbound) or
/// [`Worker::inbound`](crate::Worker::inbound). Reused from batch to batch: the caller drains it.
#[derive(Debug, Default)]
pub struct Output {
    /// For the network: single packets and segment bursts with complete checksums. Whole IP
    /// packets, or UDP payloads where [`PacketMeta::udp`](uxfrm_packet::PacketMeta::udp) is set.
    pub wire: Batch,
    /// For offload devices, in order.
    pub offloaded: Vec<OffloadedPacket>,
    /// For the host or to be forwarded: plain packets, super-packets if the host's port takes them.
    pub host: Batch,
    /// Events for key managers.
    pub events: Vec<Event>,
}

/// Packets and bytes of one direction. A segment burst or super-packet counts as the packets in it.
///
/// `received == sent + dropped + absorbed + held` after every batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    // Bytes are not next to their packets: together they would be added as one vector, which costs
    // more than two additions.
    /// Packets given to the worker.
    pub received: u64,
    /// Packets that came out, counted before outer fragmentation and coalescing.
    pub sent: u64,
    /// Bytes of `received`.
    pub received_bytes: u64,
    /// Bytes of `sent`.
    pub sent_bytes: u64,
    /// Packets dropped, each under one drop reason.
    pub dropped: u64,
    /// Fragments merged into a reassembled packet, which itself counts as one.
    pub absorbed: u64,
    /// Packets queued now: outbound for an SA, inbound fragments for the rest of their datagram.
    pub held: u64,
    /// Packets that the engine originated (ICMP errors); not in `sent`.
    pub originated: u64,
}

impl TrafficCounters {
    #[inline(always)]
    pub(crate) fn count_received(&mut self, packets: u64, bytes: u64) {
        self.received += packets;
        self.received_bytes += bytes;
    }

    #[inline(always)]
    pub(crate) fn count_sent(&mut self, packets: u64, bytes: u64) {
        self.sent += packets;
        self.sent_bytes += bytes;
    }
}

/// What the stages of both directions use for one batch.
pub(crate) struct BatchContext<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) crypter: &'a mut Crypter,
    pub(crate) drops: &'a mut DropLog,
    pub(crate) now: Moment,
    pub(crate) pool: &'a mut Pool,
    pub(crate) out: &'a mut Output,
    /// Counters of the batch's direction.
    pub(crate) traffic: &'a mut TrafficCounters,
}

impl BatchContext<'_> {
    /// Counts `packets` packets as dropped; `site` is what is known of one of them.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_drop(&mut self, packets: u64, reason: DropReason, site: &DropSite<'_>) {
        self.traffic.dropped += packets;
        let Self { snapshot, settings, now, .. } = *self;
        self.drops.note(packets, reason, site, DropView { snapshot, settings, now });
    }

    /// Drops a buffer with `count` packets.
    #[cold]
    #[inline(never)]
    pub(crate) fn discard(&mut self, packet: PacketBuf, count: usize, reason: DropReason) {
        self.note_drop(count as u64, reason, &DropSite::of(&packet));
        self.pool.give(packet);
    }

    /// Drops a buffer with `count` packets, for somebody who is known.
    #[cold]
    #[inline(never)]
    pub(crate) fn discard_of(
        &mut self,
        packet: PacketBuf,
        count: usize,
        reason: DropReason,
        known: DropSubject,
    ) {
        self.note_drop(count as u64, reason, &DropSite { known, ..DropSite::of(&packet) });
        self.pool.give(packet);
    }

    /// Drops a packet of an SA.
    #[cold]
    #[inline(never)]
    pub(crate) fn discard_of_sa(&mut self, packet: PacketBuf, sa: &Sa, reason: DropReason) {
        self.note_drop(1, reason, &DropSite::of(&packet).by_sa(sa));
        self.pool.give(packet);
    }

    /// Drops a packet that could not be sealed; its headers may be written already.
    #[cold]
    #[inline(never)]
    pub(crate) fn discard_unsealed(&mut self, packet: PacketBuf) {
        let seen = SeenPacket { wrapping: EspAround::Sealed, ..SeenPacket::of(&packet) };
        let site = DropSite { packet: Some(seen), ..DropSite::default() };
        self.note_drop(1, DropReason::OutCrypto, &site);
        self.pool.give(packet);
    }

    /// Queues an event for key managers, at most once per batch.
    pub(crate) fn push_event(&mut self, event: Event) {
        if !self.out.events.contains(&event) {
            self.out.events.push(event);
        }
    }
}
