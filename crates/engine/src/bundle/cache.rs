//! A worker's bundles: one per chain of SAs, shared by all flows that leave by it.
//!
//! A resolved flow stays cached until SAs change. Then its SAs are looked up again, and a bundle is
//! built only for a new chain; a policy change affects only flows of that policy. Bundles of
//! removed SAs are released, with the keys, a few per batch. A worker keeps [`MOST`] bundles and
//! those of a batch; surplus ones are evicted at random before the next batch. Memory grows with
//! the bundles.

mod flows;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use uxfrm_packet::{Version, prefetch_far, prefetch_far_whole};

use super::{Bundle, ChainSas, Deciding, SaChain, TxRecord, resolve_chain, version_of};
use crate::esp::encap::EncapLayer;
use crate::events::acquire::MissingSa;
use crate::{DropReason, FlowKey, HostView, KeyManagers, Moment, Sa, Settings, Snapshot};
use flows::{BundleRef, FlowBundles};

/// What a batch requests of one SA, and the numbers taken for it.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct SaTally {
    /// Its index in the cache.
    pub(crate) place: u32,
    pub(crate) sa: Arc<Sa>,
    /// Layers that use it.
    layers: u32,
    /// Packets and bytes requested.
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    pub(crate) grant: SeqGrant,
    /// Likely index of the SA's pending count.
    pub(crate) pending_slot: u32,
}

/// Sequence numbers of an SA that a batch took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeqGrant {
    /// Next number, and how many are left.
    pub(crate) next: u64,
    pub(crate) left: u32,
    /// Drop reason for packets without a number.
    pub(crate) refusal: DropReason,
    pub(crate) mode: SeqMode,
}

/// How numbers are assigned to the items of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeqMode {
    /// From the block, until it is used up.
    Block,
    /// Only some packets fit under a hard limit: each is charged on its own.
    PerPacket,
}

/// Result of resolving a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// Index of the bundle.
    Bundle(u32),
    /// Index of a new bundle; acquires for all of [`missing`](BundleCache::missing) are due.
    Asking(u32),
    /// None; packets are dropped for this reason.
    Refused(DropReason),
    /// None until the SAs in [`missing`](BundleCache::missing) are there; the last one is required.
    Missing,
}

/// Bundles, and the bundle of each resolved flow.
#[derive(Debug, Default)]
pub(crate) struct BundleCache {
    bundles: Vec<Bundle>,
    free: Vec<u32>,
    /// Indexes of removed bundles to which flows may still refer; free once all flows resolve
    /// again.
    vacated: Vec<u32>,
    /// Indexes of bundles that were found unusable.
    stale: Vec<u32>,
    /// Bundles built so far.
    created: u64,
    by_states: HashTable<BundleSlot>,
    hasher: RandomState,
    flows: FlowBundles,
    tallies: Vec<Option<SaTally>>,
    free_tallies: Vec<u32>,
    tally_by_sa: HashMap<usize, u32, RandomState>,
    /// Generation of the SAs.
    sa_generation: u64,
    host: Option<Arc<HostView>>,
    /// Bundles below this index have no removed SA.
    swept: usize,
    /// SAs that the latest resolution did not find.
    pub(crate) missing: Vec<MissingSa>,
}

/// Index of a chain's bundle.
#[derive(Clone, Copy, Debug)]
struct BundleSlot {
    hash: u64,
    place: u32,
}

/// Upper bound of bundles: each takes half a kilobyte, and its flow a tenth.
const MOST: usize = 1 << 16;
/// Upper bound of indexes withheld from reuse; to free them, all flows must resolve again.
const MAX_VACATED: usize = MOST / 2;
/// With more bundles, their data leaves the L2 cache between uses.
const FEW: usize = 128;
/// Bundles checked for removed SAs before each batch.
const BUNDLES_PER_SWEEP: usize = 256;
/// Flows checked about once a second: all of them within half a minute.
const FLOWS_PER_SWEEP: usize = 1 << 12;
/// How soon to check again for key managers to ask for optional SAs.
const KEY_MANAGER_RECHECK: Duration = Duration::from_secs(1);

impl SeqGrant {
    pub(crate) const NOTHING: Self =
        Self { next: 0, left: 0, refusal: DropReason::OutSequenceOverflow, mode: SeqMode::Block };
}

impl BundleCache {
    /// To be called before a batch. Returns true if all flows must resolve again.
    #[inline]
    pub(crate) fn begin(&mut self, snapshot: &Snapshot) -> bool {
        let swept =
            self.swept == self.bundles.len() && self.sa_generation == snapshot.sa_generation;
        let goes_on = swept && !self.exceeds_limit() && !self.host_changed(snapshot);
        !goes_on && self.maintain(snapshot)
    }

    /// Whether some bundles are to be evicted.
    #[inline]
    fn exceeds_limit(&self) -> bool {
        !self.stale.is_empty() || self.by_states.len() > MOST
    }

    /// Whether the host changed since the bundles were built.
    #[inline]
    fn host_changed(&self, snapshot: &Snapshot) -> bool {
        self.host.as_ref().map(Arc::as_ptr) != snapshot.host.as_ref().map(Arc::as_ptr)
    }

    /// Maintenance before a batch, when there is some.
    #[inline(never)]
    fn maintain(&mut self, snapshot: &Snapshot) -> bool {
        if self.host_changed(snapshot) {
            let (host, sa_generation) = (snapshot.host.clone(), snapshot.sa_generation);
            *self = Self { host, sa_generation, created: self.created, ..Self::default() };
            return true;
        }
        let news = self.sa_generation != snapshot.sa_generation;
        if news {
            (self.sa_generation, self.swept) = (snapshot.sa_generation, 0);
        }
        self.sweep(snapshot, BUNDLES_PER_SWEEP);
        self.make_room();
        let begins_anew = news || self.vacated.len() > MAX_VACATED;
        if begins_anew {
            self.free.append(&mut self.vacated);
        }
        begins_anew
    }

    /// Releases all removed SAs, and some flows whose policies or bundles are gone.
    pub(crate) fn release_stale(&mut self, snapshot: &Snapshot) {
        self.sweep(snapshot, self.bundles.len());
        let Self { flows, bundles, .. } = self;
        flows.sweep(FLOWS_PER_SWEEP, |bundle_ref| is_there(bundles, bundle_ref));
    }

    #[inline]
    pub(crate) fn bundle(&self, place: u32) -> &Bundle {
        &self.bundles[place as usize]
    }

    /// Whether a cached bundle is still usable.
    #[inline(always)]
    pub(crate) fn works(&self, place: u32, now: Moment) -> bool {
        self.bundles.get(place as usize).is_some_and(|bundle| bundle.works(now))
    }

    /// The bundles, to be read while numbers are taken from the tallies.
    pub(crate) fn parts(&mut self) -> (&[Bundle], &mut [Option<SaTally>]) {
        (&self.bundles, &mut self.tallies)
    }

    /// The tally and the layer at `depth` of a bundle; `None` if it has fewer layers.
    #[inline(always)]
    pub(crate) fn tally_of(
        &mut self,
        place: u32,
        depth: usize,
    ) -> Option<(&mut SaTally, &EncapLayer)> {
        let layer = self.bundles[place as usize].layers.get(depth)?;
        Some((self.tallies[layer.tally as usize].as_mut()?, layer))
    }

    /// Prefetches bundles that are about to be used and what they refer to, except keys.
    pub(crate) fn fetch(&self, places: impl Iterator<Item = u32> + Clone) {
        let bundles = places.filter_map(|place| self.bundles.get(place as usize));
        bundles.clone().for_each(|bundle| prefetch_far(&bundle.layers));
        let layers = bundles.clone().flat_map(|bundle| &bundle.layers);
        layers.clone().for_each(prefetch_far_whole);
        for layer in layers.clone() {
            self.tallies.get(layer.tally as usize).inspect(|tally| prefetch_far_whole(*tally));
            layer.sa.fetch_to_send();
        }
        layers.for_each(|layer| layer.sa.fetch_live());
    }

    /// Prefetches a bundle's [`TxRecord`].
    #[inline(always)]
    pub(crate) fn prefetch_record(&self, place: u32) {
        self.bundles.get(place as usize).inspect(|bundle| prefetch_far(&bundle.tx_record));
    }

    /// The record for the interleaved fast path of a cached bundle.
    #[inline(always)]
    pub(crate) fn tx_record(&self, place: u32) -> Option<&TxRecord> {
        self.bundles.get(place as usize)?.tx_record.as_ref()
    }

    /// Upper bound of tally indexes.
    #[inline]
    pub(crate) fn tallies(&self) -> usize {
        self.tallies.len()
    }

    /// Whether the bundles exceed the CPU cache.
    pub(crate) fn exceeds_cache(&self) -> bool {
        self.bundles.len() > FEW
    }

    /// The tally at an index.
    pub(crate) fn tally(&mut self, place: u32) -> Option<&mut SaTally> {
        self.tallies.get_mut(place as usize)?.as_mut()
    }

    /// The bundle of a flow, built if need be.
    pub(crate) fn resolve(
        &mut self,
        snapshot: &Snapshot,
        deciding: &Deciding<'_>,
        flow: &FlowKey,
        settings: &Settings,
        now: Moment,
    ) -> Resolution {
        if let Some(place) = self.known(deciding, flow) {
            if self.works(place, now) {
                return Resolution::Bundle(place);
            }
            self.stale.push(place);
        }
        self.missing.clear();
        let SaChain { states, is_per_flow } =
            match resolve_chain(snapshot, deciding, flow, settings, &mut self.missing) {
                Ok(chain) => chain,
                Err(DropReason::OutNoState) if !self.missing.is_empty() => {
                    return Resolution::Missing;
                }
                Err(reason) => return Resolution::Refused(reason),
            };
        let inner = version_of(flow.destination);
        let asks = !self.missing.is_empty();
        let known = if asks { None } else { self.find(&states, inner) };
        let place = match known {
            Some(place) => place,
            None => match Bundle::of(&states, inner, settings) {
                Ok(bundle) if asks => {
                    self.keep(Bundle { until: recheck_at(snapshot, now), ..bundle })
                }
                Ok(bundle) => self.keep(bundle),
                Err(reason) => return Resolution::Refused(reason),
            },
        };
        let (created, sa_generation) = (self.bundle(place).created, self.sa_generation);
        let bundle_ref = BundleRef { place, created, sa_generation };
        match is_per_flow {
            true => self.flows.insert_for_flow(deciding, flow, bundle_ref),
            false => self.flows.insert_for_addresses(deciding, flow, bundle_ref),
        }
        if asks { Resolution::Asking(place) } else { Resolution::Bundle(place) }
    }

    /// The cached bundle of a flow, valid for the current SAs.
    fn known(&self, deciding: &Deciding<'_>, flow: &FlowKey) -> Option<u32> {
        let bundle_ref = self.flows.find(deciding, flow)?;
        (bundle_ref.sa_generation == self.sa_generation && is_there(&self.bundles, &bundle_ref))
            .then_some(bundle_ref.place)
    }

    fn find(&self, states: &ChainSas<'_>, inner: Version) -> Option<u32> {
        let hash = hash(&self.hasher, states.iter().copied());
        let is_it = |named: &BundleSlot| self.bundle(named.place).is_of(states, inner);
        self.by_states.find(hash, is_it).map(|named| named.place)
    }

    fn keep(&mut self, mut bundle: Bundle) -> u32 {
        for layer in &mut bundle.layers {
            layer.tally = self.add_layer_to_tally(&layer.sa);
        }
        bundle.tx_record = TxRecord::of(&bundle);
        self.created += 1;
        bundle.created = self.created;
        let place = self.free.pop().unwrap_or_else(|| {
            self.bundles.push(Bundle::gone());
            narrow(self.bundles.len() - 1)
        });
        let hash = hash(&self.hasher, states_of(&bundle));
        self.bundles[place as usize] = bundle;
        self.by_states.insert_unique(hash, BundleSlot { hash, place }, |named| named.hash);
        place
    }

    /// Drops unusable and surplus bundles.
    fn make_room(&mut self) {
        while let Some(place) = self.stale.pop() {
            self.drop_bundle(place as usize);
        }
        let most = self.by_states.len().saturating_sub(MOST);
        for draw in 0..most as u64 {
            // At least two thirds of the indexes are occupied; the few draws that miss are made up
            // for before the next batch.
            let random = self.hasher.hash_one((self.created, draw));
            self.drop_bundle((random >> 32) as usize % self.bundles.len());
        }
    }

    /// Drops bundles with removed SAs, among the next `most`.
    fn sweep(&mut self, snapshot: &Snapshot, most: usize) {
        let end = self.bundles.len().min(self.swept + most);
        for place in self.swept..end {
            let is_in = |sa| snapshot.sad.holds(sa);
            let all = states_of(&self.bundles[place]).all(is_in);
            if !all {
                self.drop_bundle(place);
            }
        }
        self.swept = end;
    }

    /// Removes the bundle at an index, if there is one.
    fn drop_bundle(&mut self, place: usize) {
        let bundle = std::mem::replace(&mut self.bundles[place], Bundle::gone());
        if bundle.is_gone() {
            return;
        }
        let place = narrow(place);
        let hash = hash(&self.hasher, states_of(&bundle));
        if let Ok(found) = self.by_states.find_entry(hash, |named| named.place == place) {
            found.remove();
        }
        bundle.layers.iter().for_each(|layer| self.remove_layer_from_tally(layer.tally));
        self.vacated.push(place);
    }

    /// The tally of an SA that one more layer uses.
    fn add_layer_to_tally(&mut self, sa: &Arc<Sa>) -> u32 {
        let Self { tallies, free_tallies, tally_by_sa, .. } = self;
        let place = *tally_by_sa.entry(Arc::as_ptr(sa).addr()).or_insert_with(|| {
            let place = free_tallies.pop().unwrap_or_else(|| {
                tallies.push(None);
                narrow(tallies.len() - 1)
            });
            tallies[place as usize] = Some(SaTally {
                place,
                sa: Arc::clone(sa),
                layers: 0,
                packets: 0,
                bytes: 0,
                grant: SeqGrant::NOTHING,
                pending_slot: 0,
            });
            place
        });
        if let Some(tally) = self.tally(place) {
            tally.layers += 1;
        }
        place
    }

    /// Drops the tally with its last layer.
    fn remove_layer_from_tally(&mut self, place: u32) {
        let Some(tally) = self.tally(place) else { return };
        tally.layers -= 1;
        if tally.layers == 0 {
            let sa = Arc::as_ptr(&tally.sa).addr();
            self.tally_by_sa.remove(&sa);
            self.tallies[place as usize] = None;
            self.free_tallies.push(place);
        }
    }
}

/// Whether a cached reference still leads to the same bundle.
fn is_there(bundles: &[Bundle], bundle_ref: &BundleRef) -> bool {
    bundles
        .get(bundle_ref.place as usize)
        .is_some_and(|bundle| bundle.created == bundle_ref.created)
}

fn states_of(bundle: &Bundle) -> impl Iterator<Item = &Arc<Sa>> {
    bundle.layers.iter().map(|layer| &layer.sa)
}

/// Hashes the addresses of SAs, which the bundle keeps alive.
fn hash<'a>(hasher: &RandomState, states: impl Iterator<Item = &'a Arc<Sa>>) -> u64 {
    let add = |hash: u64, sa: &Arc<Sa>| hasher.hash_one((hash, Arc::as_ptr(sa).addr()));
    states.fold(0, add)
}

fn recheck_at(snapshot: &Snapshot, now: Moment) -> Moment {
    let acquires = &snapshot.acquires;
    now.plus(match acquires.key_managers {
        KeyManagers::Absent => KEY_MANAGER_RECHECK,
        KeyManagers::Listening => acquires.lifetime,
    })
}

/// An index in the cache, which is limited to [`MOST`], [`MAX_VACATED`] and one batch.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
