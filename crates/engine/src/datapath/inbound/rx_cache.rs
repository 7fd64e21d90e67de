//! Cache of the SAs that packets came by, each once per worker, with templates of their packets.
//!
//! A change of SAs evicts entries with the SPIs that changed. A change of policies invalidates
//! cached verdicts of the flows it may affect. When the cache is too large after a batch, random
//! entries are evicted.

#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use foldhash::fast::RandomState;
use uxfrm_packet::{BATCH, esp, prefetch_far_whole};

use super::inner_template::InnerTemplate;
use super::outer_template::OuterTemplate;
use super::rx_record::RxRecord;
use super::spi_index::SpiIndex;
use super::{FEW, SaLookupKey, narrow};
use crate::datapath::account::LimitCheck;
use crate::flow_cache::validity::ScopeEpochs;
use crate::flow_cache::{CachedVerdict, InsertionSeq};
use crate::sa::config::SaFlags;
use crate::{HostView, Mark, Mode, Sa, SaId, Snapshot, Spi, UdpEncapKind, VerdictId};

/// An SA and its uncommitted packet and byte counts.
#[derive(Debug)]
pub(super) struct RxEntry {
    pub(super) sa: Arc<Sa>,
    pub(super) packets: u32,
    pub(super) bytes: u64,
    pub(super) limit_check: LimitCheck,
    /// Likely index of the SA's pending count.
    pub(super) pending_slot: u32,
    /// Verdict under which packets of this SA alone pass, whatever their flow; `None` if unknown.
    pub(super) passes: Option<VerdictId>,
    /// Policy epoch of `passes`.
    epoch: u16,
    pub(super) insertion_seq: InsertionSeq,
    /// Key of the latest look-up that found the SA.
    lookup_key: Option<SaLookupKey>,
    /// Number of the latest batch with packets of this SA.
    seen_in: u64,
    pub(super) encap: Option<UdpEncapKind>,
    /// The SA has an offload device.
    pub(super) offloaded: bool,
    pub(super) extended: bool,
    pub(super) framing: EspFraming,
    /// Look-up of the latest plain packet that was fully checked in this batch.
    pub(super) asked: Option<u32>,
    seen: Seen,
}

/// Whether an earlier packet could have been a template. Only the second packet becomes one: most
/// of many SAs see just one packet at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    outside: bool,
    inside: bool,
}

/// Templates of an SA's packets, as far as known.
#[derive(Debug, Default)]
pub(super) struct RxTemplates {
    pub(super) outer: Option<OuterTemplate>,
    pub(super) inner: Option<InnerTemplate>,
}

/// ESP header and trailer lengths of an SA, and what else decapsulation needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct EspFraming {
    pub(super) spi: Spi,
    /// Bytes of SPI, sequence number and IV.
    pub(super) header_iv_len: u32,
    pub(super) icv: u32,
    pub(super) mode: Mode,
    pub(super) flags: SaFlags,
    pub(super) output_mark: Mark,
}

/// Uncommitted packet and byte counts of a run of one SA.
#[derive(Debug)]
pub(super) struct RxTally {
    pub(super) entry: u32,
    pub(super) framing: EspFraming,
    pub(super) packets: u32,
    pub(super) bytes: u64,
}

/// Entries of this batch and earlier ones, by index.
#[derive(Debug)]
pub(super) struct RxCache {
    all: Vec<RxEntry>,
    /// Templates, parallel to `all`, as far as any is known.
    templates: Vec<RxTemplates>,
    /// Records of SAs for the interleaved fast path, likewise.
    records: Vec<Option<RxRecord>>,
    /// Entries seen in this batch, in order of their first packets.
    seen: Vec<u32>,
    /// Number of the batch.
    batch: u64,
    /// SPIs, parallel to `all`.
    spis: Vec<u32>,
    /// Generations of snapshot, SAs and policies that the entries are valid for, and the host.
    generation: u64,
    sa_generation: u64,
    policies: u64,
    host: Option<Arc<HostView>>,
    /// Rises when policies change; the scopes of the changes by epoch.
    epoch: u16,
    scope_epochs: ScopeEpochs,
    /// The entry that was used last.
    latest: Option<u32>,
    /// Entries kept for the next batch.
    most: usize,
    /// Index in `all` by the low bits of the insertion sequence number; a hint that must be
    /// verified.
    by_seq_hint: Vec<u32>,
    spi_index: SpiIndex,
    /// Chooses the entries to evict.
    hasher: RandomState,
}

impl RxCache {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            templates: Vec::new(),
            records: Vec::new(),
            seen: Vec::new(),
            batch: 0,
            spis: Vec::new(),
            generation: 0,
            sa_generation: 0,
            policies: 0,
            host: None,
            epoch: 0,
            scope_epochs: ScopeEpochs::default(),
            latest: None,
            most: FEW,
            by_seq_hint: vec![0; BATCH],
            spi_index: SpiIndex::new(),
            hasher: RandomState::default(),
        }
    }

    /// To be called before a batch: invalidates what changed SAs or policies affect, and everything
    /// if the host changed.
    pub(super) fn begin(&mut self, snapshot: &Snapshot) {
        self.batch += 1;
        self.release_stale(snapshot);
    }

    /// Whether a part of a batch has many packets per SA.
    pub(super) fn is_small(&self) -> bool {
        self.all.len() <= SMALL
    }

    /// Whether the entries exceed the CPU cache.
    pub(super) fn exceeds_cache(&self) -> bool {
        self.all.len() > FEW
    }

    /// To be called after a batch: evicts surplus entries.
    pub(super) fn finish(&mut self) {
        self.seen.clear();
        if self.all.len() > self.most {
            self.make_room();
        }
    }

    /// Invalidates what changed SAs or policies affect, and everything if the host changed.
    #[inline]
    pub(super) fn release_stale(&mut self, snapshot: &Snapshot) {
        let host = (snapshot.host.as_ref().map(Arc::as_ptr), self.host.as_ref().map(Arc::as_ptr));
        if self.generation != snapshot.generation || host.0 != host.1 {
            self.catch_up(snapshot, host.0 == host.1);
        }
    }

    #[inline(never)]
    fn catch_up(&mut self, snapshot: &Snapshot, on_same_host: bool) {
        debug_assert!(self.seen.is_empty(), "between batches");
        self.generation = snapshot.generation;
        self.host.clone_from(&snapshot.host);
        self.most = most_among(snapshot.sad.len());
        let states = std::mem::replace(&mut self.sa_generation, snapshot.sa_generation);
        if !on_same_host || !self.evict_changed(snapshot, states) {
            self.forget();
        }
        let policies = std::mem::replace(&mut self.policies, snapshot.spd.generation());
        if policies != self.policies {
            if self.epoch == u16::MAX {
                (self.epoch, self.scope_epochs) = (0, ScopeEpochs::default());
                self.forget();
            }
            self.epoch += 1;
            self.scope_epochs.note(snapshot.spd.scopes_since(policies), self.epoch);
        }
    }

    /// Evicts the entries whose SPIs changed. Returns false if the change log is too short or the
    /// search too long.
    fn evict_changed(&mut self, snapshot: &Snapshot, since: u64) -> bool {
        let Some(changed) = snapshot.changed_since(since) else { return false };
        if changed.len() * self.spis.len() > MAX_SPI_COMPARES {
            return false;
        }
        for Spi(spi) in changed {
            while let Some(at) = place_in(&self.spis, spi) {
                self.evict(at);
            }
        }
        true
    }

    /// Evicts surplus entries; all of them if few are to be kept.
    #[inline(never)]
    fn make_room(&mut self) {
        if self.most == FEW {
            return self.forget();
        }
        while self.all.len() > self.most {
            let random = self.hasher.hash_one((self.batch, self.all.len()));
            self.evict((random >> 32) as usize % self.all.len());
        }
    }

    /// Removes an entry; the last one moves to its index.
    fn evict(&mut self, at: usize) {
        let last = self.all.len() - 1;
        let gone = self.all.swap_remove(at);
        self.spis.swap_remove(at);
        fill(&mut self.templates, at, last);
        fill(&mut self.records, at, last);
        if let Some((SaId { spi, .. }, _)) = gone.lookup_key {
            self.spi_index.remove(spi.0, narrow(at));
        }
        if at < last {
            self.update_index(narrow(last), narrow(at));
        }
        self.latest = match self.latest {
            Some(place) if place as usize == at => None,
            Some(place) if place as usize == last => Some(narrow(at)),
            latest => latest,
        };
    }

    /// Updates hints after an entry has moved.
    fn update_index(&mut self, from: u32, to: u32) {
        let Self { all, by_seq_hint, spi_index, .. } = self;
        let moved = &all[to as usize];
        let slots = by_seq_hint.len();
        let hint = &mut by_seq_hint[moved.insertion_seq.slot(slots)];
        if *hint == from {
            *hint = to;
        }
        if let Some((SaId { spi, .. }, _)) = moved.lookup_key
            && spi_index.get(spi.0) == Some(from)
        {
            spi_index.insert(spi.0, to);
        }
    }

    fn forget(&mut self) {
        self.drop_all();
        self.spis.clear();
        self.templates.clear();
        self.spi_index.clear();
        self.latest = None;
    }

    /// Dropping an SA writes to it, which may miss the CPU cache.
    fn drop_all(&mut self) {
        self.records.clear();
        self.all.iter().rev().take(EVICT_PREFETCH_DISTANCE).for_each(|entry| entry.sa.fetch());
        while let Some(entry) = self.all.pop() {
            let ahead = self.all.len().checked_sub(EVICT_PREFETCH_DISTANCE);
            ahead.and_then(|at| self.all.get(at)).inspect(|ahead| ahead.sa.fetch());
            drop(entry);
        }
    }

    /// The entry that was used last, in this batch or before.
    pub(super) fn latest(&self) -> Option<u32> {
        self.latest
    }

    /// Sets the entry that was used last.
    pub(super) fn note_latest(&mut self, latest: Option<u32>) {
        self.latest = latest;
    }

    /// The index of an SA's entry, created if need be. The caller checks once per batch that the SA
    /// [receives](Sa::receives).
    #[inline]
    pub(super) fn entry_of(&mut self, sa: &Arc<Sa>) -> u32 {
        if self.all.len() >= self.by_seq_hint.len() {
            // Older entries are found by their keys, or are created again.
            self.by_seq_hint.resize(2 * self.by_seq_hint.len(), 0);
        }
        let slots = self.by_seq_hint.len();
        let hint = &mut self.by_seq_hint[InsertionSeq::of(sa).slot(slots)];
        let there = self.all.get(*hint as usize);
        if !there.is_some_and(|there| Arc::ptr_eq(&there.sa, sa)) {
            *hint = narrow(self.all.len());
            self.all.push(RxEntry::of(sa));
            self.spis.push(sa.id().spi.0);
        }
        let place = *hint;
        self.mark_seen(place);
        place
    }

    /// Whether this batch has seen the entry.
    #[inline]
    pub(super) fn seen_in_batch(&self, place: u32) -> bool {
        self.all[place as usize].seen_in == self.batch
    }

    /// Marks an entry as seen in this batch.
    #[inline]
    pub(super) fn mark_seen(&mut self, place: u32) {
        let entry = &mut self.all[place as usize];
        if entry.seen_in != self.batch {
            entry.revalidate(self.epoch);
            (entry.seen_in, entry.limit_check, entry.asked) = (self.batch, LimitCheck::Pass, None);
            let inner = self
                .templates
                .get_mut(place as usize)
                .and_then(|templates| templates.inner.as_mut());
            inner.into_iter().for_each(|inner| inner.lookup = None);
            self.seen.push(place);
        }
    }

    /// Invalidates the cached policy verdict if policies changed.
    pub(super) fn revalidate(&mut self, place: u32) {
        self.all[place as usize].revalidate(self.epoch);
    }

    /// Templates of an entry's packets.
    #[inline(always)]
    pub(super) fn templates(&self, place: u32) -> Option<&RxTemplates> {
        self.templates.get(place as usize)
    }

    #[inline(always)]
    pub(super) fn templates_mut(&mut self, place: u32) -> Option<&mut RxTemplates> {
        self.templates.get_mut(place as usize)
    }

    /// Stores an outer template.
    #[inline]
    pub(super) fn store_outer(&mut self, place: u32, look: impl FnOnce() -> Option<OuterTemplate>) {
        if std::mem::replace(&mut self.all[place as usize].seen.outside, true) {
            self.templates_slot(place).outer = look();
            self.drop_record(place);
        }
    }

    /// Stores an inner template.
    #[inline]
    pub(super) fn store_inner(&mut self, place: u32, look: impl FnOnce() -> Option<InnerTemplate>) {
        if std::mem::replace(&mut self.all[place as usize].seen.inside, true) {
            self.templates_slot(place).inner = look();
            self.drop_record(place);
        }
    }

    /// Record of an entry, if its packets match one and may skip the full check.
    #[inline(always)]
    pub(super) fn record(&self, place: u32) -> Option<&RxRecord> {
        self.records.get(place as usize)?.as_ref()
    }

    #[inline(always)]
    pub(super) fn record_mut(&mut self, place: u32) -> Option<&mut RxRecord> {
        self.records.get_mut(place as usize)?.as_mut()
    }

    /// Whether there is a record, valid under the current policies.
    #[inline(always)]
    pub(super) fn has_record(&self, place: u32) -> bool {
        self.record(place).is_some_and(|record| record.epoch == self.epoch)
    }

    /// Whether there is a record of a flow that no policy change affects; revalidates it.
    pub(super) fn revalidate_record(&mut self, place: u32) -> bool {
        let templates = self.templates.get(place as usize);
        let Some(InnerTemplate { flow, direction, .. }) =
            templates.and_then(|templates| templates.inner.as_ref())
        else {
            return false;
        };
        let Some(Some(record)) = self.records.get_mut(place as usize) else { return false };
        let holds_on = !self.scope_epochs.is_stale(*direction, flow, record.epoch);
        if holds_on {
            record.epoch = self.epoch;
        }
        holds_on
    }

    /// Whether there is a record and its verdict is still `answer`; revalidates it.
    pub(super) fn refresh_record(&mut self, place: u32, answer: VerdictId) -> bool {
        let epoch = self.epoch;
        let record = self.record_mut(place).filter(|record| record.answer == answer);
        record.map(|record| record.epoch = epoch).is_some()
    }

    /// Stores a record.
    pub(super) fn store_record(&mut self, place: u32, mut record: RxRecord) {
        record.epoch = self.epoch;
        let place = place as usize;
        if self.records.len() <= place {
            self.records.resize_with(place + 1, || None);
        }
        self.records[place] = Some(record);
    }

    fn drop_record(&mut self, place: u32) {
        if let Some(record) = self.records.get_mut(place as usize) {
            *record = None;
        }
    }

    /// Prefetches what [`RxCache::record`] reads.
    #[inline(always)]
    pub(super) fn prefetch_record(&self, place: u32) {
        self.records.get(place as usize).inspect(|record| prefetch_far_whole(*record));
    }

    fn templates_slot(&mut self, place: u32) -> &mut RxTemplates {
        let place = place as usize;
        if self.templates.len() <= place {
            self.templates.resize_with(place + 1, RxTemplates::default);
        }
        &mut self.templates[place]
    }

    /// An empty tally of an entry.
    #[inline]
    pub(super) fn tally(&self, place: u32) -> RxTally {
        RxTally { entry: place, framing: self.all[place as usize].framing, packets: 0, bytes: 0 }
    }

    /// Adds a tally to the entry's counts.
    #[inline]
    pub(super) fn commit(&mut self, tally: &RxTally) {
        let entry = &mut self.all[tally.entry as usize];
        entry.packets += tally.packets;
        entry.bytes += tally.bytes;
    }

    /// Visits each entry seen in this batch.
    #[inline]
    pub(super) fn for_each_seen(&mut self, visit: &mut impl FnMut(&mut RxEntry)) {
        self.seen.iter().for_each(|place| visit(&mut self.all[*place as usize]));
    }

    /// Entry of an SA with this SPI, if seen in this batch. A hint.
    #[inline(always)]
    pub(super) fn seen_with_spi(&self, spi: u32) -> Option<u32> {
        self.with_spi(spi).filter(|place| self.seen_in_batch(*place))
    }

    /// Prefetches what [`RxCache::with_spi`] reads.
    #[inline(always)]
    pub(super) fn prefetch_spi(&self, spi: u32) {
        self.spi_index.prefetch(spi);
    }

    /// Like [`RxCache::seen_with_spi`], for entries of any batch.
    #[inline(always)]
    pub(super) fn with_spi(&self, spi: u32) -> Option<u32> {
        self.spi_index.get(spi).filter(|place| (*place as usize) < self.all.len())
    }

    /// Entry whose latest look-up had this key.
    #[inline]
    pub(super) fn find_by_key(&self, lookup_key: SaLookupKey) -> Option<u32> {
        let place = self.spi_index.get(lookup_key.0.spi.0)?;
        let there = self.all.get(place as usize)?;
        there.has_key(&lookup_key).then_some(place)
    }

    /// Stores the key by which an entry was found.
    pub(super) fn store_key(&mut self, place: u32, lookup_key: SaLookupKey) {
        self.spi_index.insert(lookup_key.0.spi.0, place);
        self.all[place as usize].lookup_key = Some(lookup_key);
    }
}

/// Upper bound of entries: each takes half a kilobyte.
const MOST: usize = 1 << 16;
/// With more SAs in both directions, an entry is mostly evicted before its next packet.
const MANY: usize = 4 * MOST;
/// With no more entries, a part of a batch has many packets of each.
const SMALL: usize = 4;
/// SPIs compared when SAs change: with more, refilling the cache is cheaper.
const MAX_SPI_COMPARES: usize = 1 << 20;
/// How many entries ahead of eviction an SA is prefetched.
const EVICT_PREFETCH_DISTANCE: usize = 16;

/// Entries worth keeping among so many SAs.
const fn most_among(states: usize) -> usize {
    if states <= MANY { MOST } else { FEW }
}

/// Position of an SPI. Compares chunks without branches, as a match is rare.
fn place_in(spis: &[u32], spi: u32) -> Option<usize> {
    const PIECE: usize = 64;
    let has = |piece: &[u32]| piece.iter().fold(false, |has, other| has | (*other == spi));
    let piece = spis.chunks(PIECE).position(has)?;
    let within = spis[piece * PIECE..].iter().position(|other| *other == spi)?;
    Some(piece * PIECE + within)
}

/// Moves the last element to another index; elements beyond the end count as default.
fn fill<T: Default>(all: &mut Vec<T>, at: usize, last: usize) {
    let moved = if all.len() > last { all.pop() } else { None };
    if let Some(there) = all.get_mut(at) {
        *there = moved.unwrap_or_default();
    }
}

impl Deref for RxCache {
    type Target = [RxEntry];

    #[inline]
    fn deref(&self) -> &[RxEntry] {
        &self.all
    }
}

impl DerefMut for RxCache {
    #[inline]
    fn deref_mut(&mut self) -> &mut [RxEntry] {
        &mut self.all
    }
}

impl RxEntry {
    fn of(sa: &Arc<Sa>) -> Self {
        let config = sa.config();
        Self {
            sa: Arc::clone(sa),
            packets: 0,
            bytes: 0,
            limit_check: LimitCheck::Pass,
            pending_slot: 0,
            passes: None,
            epoch: 0,
            insertion_seq: InsertionSeq::of(sa),
            lookup_key: None,
            seen_in: 0,
            encap: config.encap.as_ref().map(|encap| encap.kind),
            offloaded: config.offload.is_some(),
            extended: sa.extended(),
            framing: EspFraming::of(sa),
            asked: None,
            seen: Seen::default(),
        }
    }

    fn revalidate(&mut self, epoch: u16) {
        if self.epoch != epoch {
            (self.epoch, self.passes) = (epoch, None);
        }
    }

    /// Whether packets of this SA alone pass under their flow's verdict.
    #[inline(always)]
    pub(super) fn lets_pass(&self, known: CachedVerdict) -> bool {
        self.passes == Some(known.verdict) || known.sa_satisfies(self.insertion_seq)
    }

    /// Whether the entry was found by this key.
    #[inline(always)]
    pub(super) fn has_key(&self, lookup_key: &SaLookupKey) -> bool {
        self.lookup_key.as_ref() == Some(lookup_key)
    }
}

impl EspFraming {
    fn of(sa: &Sa) -> Self {
        let (config, transform) = (sa.config(), sa.transform());
        Self {
            spi: sa.id().spi,
            header_iv_len: narrow(esp::HEADER_LEN + transform.iv_len()),
            icv: narrow(transform.icv_len()),
            mode: config.mode,
            flags: config.flags,
            output_mark: config.output_mark,
        }
    }
}
