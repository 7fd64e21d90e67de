//! Charges SAs and takes their sequence numbers: once per batch, exact at the limits.

use super::slow::device::Sealer;
use super::{TxBatch, TxItem, narrow};
use crate::bundle::{BundleCache, SaTally, SeqGrant, SeqMode};
use crate::datapath::account::{LimitCheck, charge, charge_one};
use crate::datapath::context::BatchContext;
use crate::drop_log::EspAround;
use crate::{DropReason, Sa};

/// Whether every SA had enough sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SeqSupply {
    /// All of them: numbers are assigned while headers are written.
    #[default]
    Enough,
    /// Some could not: numbers were assigned to the items beforehand.
    Short,
}

/// Stage 6: the SAs that the current encapsulation layer uses.
#[derive(Debug, Default)]
pub(super) struct SeqNumbering {
    /// Indexes of their tallies.
    touched: Vec<u32>,
    pub(super) supply: SeqSupply,
}

impl SeqNumbering {
    /// Adds an item's packets to the tally of its SA.
    #[inline(always)]
    pub(super) fn request_item(&mut self, cache: &mut BundleCache, item: &TxItem, depth: usize) {
        let Some((tally, layer)) = cache.tally_of(item.bundle, depth) else { return };
        self.request(tally, item.count, item.charged_bytes(layer.clear_len(&item.inner)));
    }

    /// Adds packets and bytes to a tally.
    #[inline(always)]
    pub(super) fn request(&mut self, tally: &mut SaTally, packets: u32, bytes: u64) {
        if tally.packets == 0 {
            self.touched.push(tally.place);
        }
        tally.packets += packets;
        tally.bytes += bytes;
    }

    /// Charges each SA that the layer uses, and takes its numbers.
    #[inline(always)]
    pub(super) fn take_all(&mut self, cache: &mut BundleCache, ctx: &mut BatchContext<'_>) {
        self.supply = SeqSupply::Enough;
        for place in self.touched.drain(..) {
            let Some(tally) = cache.tally(place) else { continue };
            let wanted = tally.packets;
            tally.charge(ctx);
            if tally.grant.left < wanted {
                self.supply = SeqSupply::Short;
            }
        }
    }
}

/// Stage 6. If every SA has enough numbers, they are assigned while headers are written.
#[inline(always)]
pub(super) fn take_numbers(depth: usize, tx: &mut TxBatch, ctx: &mut BatchContext<'_>) {
    let TxBatch { items, cache, numbering, .. } = tx;
    if depth > 0 {
        for item in items.iter().filter(|item| item.count > 0) {
            numbering.request_item(cache, item, depth);
        }
    }
    numbering.take_all(cache, ctx);
    if numbering.supply == SeqSupply::Short {
        distribute(depth, tx, ctx);
    }
}

/// Assigns the numbers taken, item by item; what gets none is dropped.
#[cold]
pub(super) fn distribute(depth: usize, tx: &mut TxBatch, ctx: &mut BatchContext<'_>) {
    let wrapping = if depth == 0 { EspAround::AsOnArrival } else { EspAround::Sealed };
    let TxBatch { items, cache, .. } = tx;
    for item in items.iter_mut().filter(|item| item.count > 0) {
        let Some((tally, layer)) = cache.tally_of(item.bundle, depth) else { continue };
        let granted = tally.allocate_for(item, layer.clear_len(&item.inner), ctx);
        if granted < item.count {
            let refused = u64::from(item.count - granted);
            ctx.note_drop(refused, tally.grant.refusal, &item.site(granted, &tally.sa, wrapping));
            item.keep(granted);
        }
    }
}

impl SeqGrant {
    /// Charges an SA for a batch and takes numbers for the packets that it may send.
    #[inline(always)]
    pub(super) fn of(sa: &Sa, packets: u32, bytes: u64, ctx: &mut BatchContext<'_>) -> Self {
        let mut grant = Self { refusal: DropReason::OutStateExpired, ..Self::NOTHING };
        match charge(sa, packets, bytes, ctx) {
            LimitCheck::Pass => grant.take(sa, packets),
            LimitCheck::PerPacket => grant.mode = SeqMode::PerPacket,
            LimitCheck::Expired => {}
        }
        grant
    }

    /// Takes numbers of an SA whose packets are counted later.
    #[inline(always)]
    pub(super) fn take_uncharged(sa: &Sa, packets: u32) -> Self {
        let mut grant = Self::NOTHING;
        grant.take(sa, packets);
        grant
    }

    /// The first of `count` numbers; there must be enough.
    #[inline(always)]
    pub(super) fn allocate(&mut self, count: u32) -> u64 {
        debug_assert!(self.left >= count);
        self.left -= count;
        let first = self.next;
        self.next += u64::from(count);
        first
    }

    /// Takes numbers. Those that are missing are refused: the numbers end, or the owner has
    /// reserved no more yet.
    #[inline(always)]
    fn take(&mut self, sa: &Sa, packets: u32) {
        match sa.sequence().take(packets) {
            Ok(block) if block.count == packets => {
                (self.next, self.left) = (block.first, block.count);
            }
            Ok(block) => {
                (self.next, self.left) = (block.first, block.count);
                self.refusal = sa.sequence().shortage();
            }
            Err(reason) => (self.left, self.refusal) = (0, reason),
        }
    }
}

impl SaTally {
    /// Charges the SA for the batch.
    #[inline(always)]
    fn charge(&mut self, ctx: &mut BatchContext<'_>) {
        let (packets, bytes) = (self.packets, self.bytes);
        (self.packets, self.bytes) = (0, 0);
        self.grant = SeqGrant::of(&self.sa, packets, bytes, ctx);
    }

    /// Assigns numbers to an item and returns how many of its packets got one.
    fn allocate_for(
        &mut self,
        item: &mut TxItem,
        clear_len: usize,
        ctx: &mut BatchContext<'_>,
    ) -> u32 {
        if self.grant.mode == SeqMode::PerPacket {
            self.grant.left = 0;
            match self.charge_per_packet(item, clear_len, ctx) {
                0 => {}
                passed => self.grant.take(&self.sa, passed),
            }
        }
        let granted = item.count.min(self.grant.left);
        item.sequence = self.grant.allocate(granted);
        granted
    }

    /// Charges packet by packet, up to a limit.
    fn charge_per_packet(
        &self,
        item: &TxItem,
        clear_len: usize,
        ctx: &mut BatchContext<'_>,
    ) -> u32 {
        let passes = |k: &u32| {
            let len = if k + 1 == item.count { item.last_len } else { item.len } as usize;
            charge_one(&self.sa, (len - clear_len) as u64, ctx)
        };
        narrow((0..item.count).take_while(passes).count())
    }
}

impl TxItem {
    /// Bytes that the SA is charged: payload without padding, as in
    /// `net/xfrm/xfrm_output.c: xfrm_output_one`.
    fn charged_bytes(&self, clear_len: usize) -> u64 {
        let (len, last_len) = (self.len as usize - clear_len, self.last_len as usize - clear_len);
        len as u64 * u64::from(self.count - 1) + last_len as u64
    }

    /// Drops all but the first `count` packets.
    fn keep(&mut self, count: u32) {
        // A segmenting device is told how many segments to send.
        if self.sealer != Sealer::SegmentingDevice {
            self.packet.trim(self.stride as usize * count as usize);
        }
        self.last_len = self.len;
        self.count = count;
    }
}
