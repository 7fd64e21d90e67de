//! 7 Wrap, 8 Seal and 9 Finish of items, layer by layer.

use std::ops::Range;

use uxfrm_crypto::Crypter;

use super::device::Sealer;
use super::item::Item;
use crate::DropReason;
use crate::datapath::context::Bench;
use crate::datapath::outbound::seal_jobs::{self, Jobs};
use crate::datapath::outbound::{Numbering, Outbound};
use crate::esp::headers;

impl Outbound {
    /// 7 Wrap, 8 Seal: as many at once as one call of the crypto library takes, so that what was written is still at hand.
    pub(crate) fn seal(&mut self, depth: usize, bench: &mut Bench<'_>) {
        self.seal_all(depth, bench.crypter);
        if !self.failed.is_empty() {
            self.refuse_failed(bench);
        }
    }

    #[cold]
    pub(crate) fn refuse_failed(&mut self, bench: &Bench<'_>) {
        for place in self.failed.drain(..) {
            let item = &mut self.items[place];
            bench.refuse(&mut self.traffic, item.count.into(), DropReason::OutCrypto);
            item.count = 0;
        }
    }

    fn seal_all(&mut self, depth: usize, crypter: &mut Crypter) {
        let all = self.items.len();
        if !self.cache.is_far() {
            return self.seal_some(0..all, depth, crypter);
        }
        for first in (0..all).step_by(seal_jobs::CHUNK) {
            let some = first..all.min(first + seal_jobs::CHUNK);
            self.fetch_keys(some.clone(), depth);
            self.seal_some(some, depth, crypter);
        }
    }

    /// Asks for the keys that seal these items next; what leads there is at hand already.
    fn fetch_keys(&self, places: Range<usize>, depth: usize) {
        let bundles = self.items[places].iter().map(|item| self.cache.bundle(item.bundle));
        let layers = bundles.filter_map(|bundle| bundle.layers.get(depth));
        layers.for_each(|layer| layer.sa.fetch_keys());
    }

    fn seal_some(&mut self, places: Range<usize>, depth: usize, crypter: &mut Crypter) {
        let (bundles, accounts) = self.cache.parts();
        let mut jobs = Jobs::new(crypter, &mut self.failed);
        let mut first = places.start;
        for run in self.items[places].chunk_by_mut(Item::leaves_like) {
            let place = first;
            first += run.len();
            let Item { bundle, sealer, .. } = run[0];
            let bundle = &bundles[bundle as usize];
            let Some(layer) = bundle.layers.get(depth) else { continue };
            if self.numbering == Numbering::Whole {
                match accounts[layer.account as usize].as_mut() {
                    Some(account) => run
                        .iter_mut()
                        .for_each(|item| item.sequence = account.grant.hand_out(item.count)),
                    // A bundle's accounts are there as long as it is.
                    None => {
                        jobs.failed.extend(place..first);
                        continue;
                    }
                }
            }
            self.unfinished |= layer.needs_finish();
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

    /// 9 Finish: only UDP over IPv6 has a checksum to be written.
    #[inline]
    pub(crate) fn finish(&mut self, depth: usize) {
        if std::mem::take(&mut self.unfinished) {
            self.finish_all(depth);
        }
    }

    #[inline(never)]
    fn finish_all(&mut self, depth: usize) {
        for item in &mut self.items {
            let Some(layer) = self.cache.bundle(item.bundle).layers.get(depth) else { continue };
            if !layer.needs_finish() || item.sealer == Sealer::Cutter {
                continue;
            }
            let (at, inside) = (item.at as usize, item.inside);
            for (frame, len) in item.frames() {
                headers::finish(&mut frame[at..at + len], layer, &inside);
            }
        }
    }
}
