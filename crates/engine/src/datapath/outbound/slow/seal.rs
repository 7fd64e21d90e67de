//! Stages 7 to 9 for items, layer by layer.

use std::ops::Range;

use uxfrm_crypto::Crypter;

use super::device::Sealer;
use super::item::TxItem;
use crate::DropReason;
use crate::datapath::context::BatchCtx;
use crate::datapath::outbound::seal_jobs::{self, SealJobs};
use crate::datapath::outbound::{Outbound, SeqSupply};
use crate::esp::headers;

impl Outbound {
    /// Stages 7 and 8, chunk by chunk, so that written headers are still in the cache when sealed.
    pub(crate) fn seal(&mut self, depth: usize, ctx: &mut BatchCtx<'_>) {
        self.seal_layer(depth, ctx.crypter);
        if !self.failed.is_empty() {
            self.drop_failed_items(ctx);
        }
    }

    #[cold]
    pub(crate) fn drop_failed_items(&mut self, ctx: &BatchCtx<'_>) {
        for place in self.failed.drain(..) {
            let item = &mut self.items[place];
            ctx.count_drop(&mut self.traffic, item.count.into(), DropReason::OutCrypto);
            item.count = 0;
        }
    }

    fn seal_layer(&mut self, depth: usize, crypter: &mut Crypter) {
        let all = self.items.len();
        if !self.cache.exceeds_cache() {
            return self.seal_items(0..all, depth, crypter);
        }
        for first in (0..all).step_by(seal_jobs::CHUNK) {
            let some = first..all.min(first + seal_jobs::CHUNK);
            self.prefetch_keys(some.clone(), depth);
            self.seal_items(some, depth, crypter);
        }
    }

    /// Prefetches the keys of the next items.
    fn prefetch_keys(&self, places: Range<usize>, depth: usize) {
        let bundles = self.items[places].iter().map(|item| self.cache.bundle(item.bundle));
        let layers = bundles.filter_map(|bundle| bundle.layers.get(depth));
        layers.for_each(|layer| layer.sa.fetch_keys());
    }

    fn seal_items(&mut self, places: Range<usize>, depth: usize, crypter: &mut Crypter) {
        let (bundles, tallies) = self.cache.parts();
        let mut jobs = SealJobs::new(crypter, &mut self.failed);
        let mut first = places.start;
        for run in self.items[places].chunk_by_mut(TxItem::same_encap) {
            let place = first;
            first += run.len();
            let TxItem { bundle, sealer, .. } = run[0];
            let bundle = &bundles[bundle as usize];
            let Some(layer) = bundle.layers.get(depth) else { continue };
            if self.seq_supply == SeqSupply::Enough {
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
                run.iter_mut().for_each(|item| item.wrap_for_device(layer, &mut self.ident));
                continue;
            }
            let key = layer.sa.key();
            for (place, item) in (place..).zip(run) {
                item.wrap((layer, key), &mut self.ident, (place, &mut jobs));
            }
        }
        jobs.run();
    }

    /// Stage 9: only UDP over IPv6 needs a checksum.
    #[inline]
    pub(crate) fn finish(&mut self, depth: usize) {
        if std::mem::take(&mut self.needs_finish) {
            self.finish_all(depth);
        }
    }

    #[inline(never)]
    fn finish_all(&mut self, depth: usize) {
        for item in &mut self.items {
            let Some(layer) = self.cache.bundle(item.bundle).layers.get(depth) else { continue };
            if !layer.needs_finish() || item.sealer == Sealer::SegmentingDevice {
                continue;
            }
            let (at, inner) = (item.at as usize, item.inner);
            for (frame, len) in item.frames() {
                headers::finish(&mut frame[at..at + len], layer, &inner);
            }
        }
    }
}
