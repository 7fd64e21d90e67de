//! Stages 7 to 9 for items, layer by layer.

use std::ops::Range;

use uxfrm_crypto::Crypter;

use super::device::Sealer;
use super::item::TxItem;
use crate::DropReason;
use crate::bundle::BundleCache;
use crate::datapath::context::BatchContext;
use crate::datapath::outbound::TxBatch;
use crate::datapath::outbound::number::SeqSupply;
use crate::datapath::outbound::seal_jobs::{self, SealJobs};
use crate::drop_log::EspAround;
use crate::esp::headers;

/// Stages 7 to 9.
#[derive(Debug, Default)]
pub(crate) struct ItemSealer {
    /// Items in which the crypto library refused a packet.
    failed: Vec<usize>,
    /// Some item needs stage 9.
    needs_finish: bool,
}

impl ItemSealer {
    /// Stages 7 and 8, chunk by chunk, so that written headers are still in the cache when sealed.
    pub(crate) fn seal(&mut self, depth: usize, tx: &mut TxBatch, ctx: &mut BatchContext<'_>) {
        self.seal_layer(depth, tx, ctx.crypter);
        if !self.failed.is_empty() {
            self.drop_failed(depth, tx, ctx);
        }
    }

    #[cold]
    fn drop_failed(&mut self, depth: usize, tx: &mut TxBatch, ctx: &mut BatchContext<'_>) {
        let TxBatch { items, cache, .. } = tx;
        for place in self.failed.drain(..) {
            let item = &mut items[place];
            // A bundle without this layer seals nothing.
            if let Some(layer) = cache.bundle(item.bundle).layers.get(depth) {
                let site = item.site(0, &layer.sa, EspAround::Sealed);
                ctx.note_drop(item.count.into(), DropReason::OutCrypto, &site);
            }
            item.count = 0;
        }
    }

    fn seal_layer(&mut self, depth: usize, tx: &mut TxBatch, crypter: &mut Crypter) {
        let all = tx.items.len();
        if !tx.cache.exceeds_cache() {
            return self.seal_items(0..all, depth, tx, crypter);
        }
        for first in (0..all).step_by(seal_jobs::CHUNK) {
            let some = first..all.min(first + seal_jobs::CHUNK);
            prefetch_keys(&tx.items[some.clone()], depth, &tx.cache);
            self.seal_items(some, depth, tx, crypter);
        }
    }

    fn seal_items(
        &mut self,
        places: Range<usize>,
        depth: usize,
        tx: &mut TxBatch,
        crypter: &mut Crypter,
    ) {
        let (bundles, tallies) = tx.cache.parts();
        let mut jobs = SealJobs::new(crypter, &mut self.failed);
        let mut first = places.start;
        for run in tx.items[places].chunk_by_mut(TxItem::same_encap) {
            let place = first;
            first += run.len();
            let TxItem { bundle, sealer, .. } = run[0];
            let bundle = &bundles[bundle as usize];
            let Some(layer) = bundle.layers.get(depth) else { continue };
            if tx.numbering.supply == SeqSupply::Enough {
                match tallies[layer.tally as usize].as_mut() {
                    Some(tally) => run
                        .iter_mut()
                        .for_each(|item| item.sequence = tally.grant.allocate(item.count)),
                    // A bundle's tallies live as long as the bundle.
                    None => {
                        jobs.failed.extend(place..first);
                        continue;
                    }
                }
            }
            self.needs_finish |= layer.needs_finish();
            if sealer != Sealer::Engine && depth + 1 == bundle.layers.len() {
                run.iter_mut().for_each(|item| item.wrap_for_device(layer, &mut tx.ident));
                continue;
            }
            let key = layer.sa.key();
            for (place, item) in (place..).zip(run) {
                item.wrap((layer, key), &mut tx.ident, (place, &mut jobs));
            }
        }
        jobs.run();
    }

    /// Stage 9: only UDP over IPv6 needs a checksum.
    #[inline]
    pub(crate) fn finish(&mut self, depth: usize, tx: &mut TxBatch) {
        if std::mem::take(&mut self.needs_finish) {
            finish_all(depth, tx);
        }
    }
}

/// Prefetches the keys of the next items.
fn prefetch_keys(items: &[TxItem], depth: usize, cache: &BundleCache) {
    let bundles = items.iter().map(|item| cache.bundle(item.bundle));
    let layers = bundles.filter_map(|bundle| bundle.layers.get(depth));
    layers.for_each(|layer| layer.sa.fetch_keys());
}

#[inline(never)]
fn finish_all(depth: usize, TxBatch { items, cache, .. }: &mut TxBatch) {
    for item in items {
        let Some(layer) = cache.bundle(item.bundle).layers.get(depth) else { continue };
        if !layer.needs_finish() || item.sealer == Sealer::SegmentingDevice {
            continue;
        }
        let (at, inner) = (item.at as usize, item.inner);
        for (frame, len) in item.frames() {
            headers::finish(&mut frame[at..at + len], layer, &inner);
        }
    }
}
