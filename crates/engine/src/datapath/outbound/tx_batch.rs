//! What the stages of the outbound path work on: the batch's items and the bundles they leave by.

use super::number::SeqNumbering;
use super::slow::item::TxItem;
use crate::bundle::BundleCache;
use crate::esp::encap::InnerInfo;
use crate::fragments::split::FragmentPlan;

/// The items of a batch, and the bundles, which outlive it.
#[derive(Debug)]
pub(crate) struct TxBatch {
    pub(super) items: Vec<TxItem>,
    /// The most layers that an item needs.
    pub(super) max_layers: usize,
    pub(super) cache: BundleCache,
    pub(super) numbering: SeqNumbering,
    /// Latest identification of outer headers and fragments.
    pub(super) ident: u32,
}

impl TxBatch {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            items: Vec::with_capacity(uxfrm_packet::BATCH),
            max_layers: 0,
            cache: BundleCache::default(),
            numbering: SeqNumbering::default(),
            ident: fold_seed(seed),
        }
    }

    /// Adds an item and requests numbers for its innermost layer.
    #[inline(always)]
    pub(super) fn push_item(&mut self, item: TxItem) {
        self.numbering.request_item(&mut self.cache, &item, 0);
        self.items.push(item);
    }

    /// Like [`Self::push_item`], for the items from `first` on, which are in the list already.
    pub(super) fn request_from(&mut self, first: usize) {
        for item in &self.items[first..] {
            self.numbering.request_item(&mut self.cache, item, 0);
        }
    }

    /// How to fragment a datagram, under the next identification.
    pub(super) fn fragment_plan(&mut self, inner: &InnerInfo, mtu: usize) -> FragmentPlan {
        self.ident = self.ident.wrapping_add(1);
        FragmentPlan {
            version: inner.version,
            place: inner.esp_offset(),
            next_header_at: inner.next_header_at(),
            mtu,
            ident: self.ident,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a seed is random in all its bits")]
fn fold_seed(seed: u64) -> u32 {
    (seed ^ seed >> 32) as u32
}
