//! A worker's bundles: one for each chain of states, shared by all flows that leave by it.
//!
//! What was found out about a flow holds until states change. Then its states are looked for again, and a bundle is made only of a chain
//! that has none yet; a change of policies touches the flows of these policies alone. States that are gone are let go, with their keys, a few
//! with each batch. A worker keeps [`MOST`] bundles, and a batch's: before the next one as many as are too many go, any of them, so that the
//! flows of all others go on as they did. Room is taken as bundles come.

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

use super::{Bundle, Chain, Deciding, Exit, States, chain, version_of};
use crate::esp::encap::Layer;
use crate::events::acquire::Missing;
use crate::{DropReason, FlowKey, Host, KeyManagers, Moment, Sa, Settings, Snapshot};
use flows::{Flows, Way};

/// What all packets of one batch want of one SA, and what it gave them.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Account {
    /// Its place in the cache.
    pub(crate) place: u32,
    pub(crate) sa: Arc<Sa>,
    /// Layers that draw on it.
    layers: u32,
    /// Packets and bytes asked for.
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
    pub(crate) grant: Grant,
    /// Where what the SA is yet to count of packets that came alone is likely to be.
    pub(crate) debt: u32,
}

/// What an SA gave for what a batch wants of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// The next sequence number, and how many are left of the block.
    pub(crate) next: u64,
    pub(crate) left: u32,
    /// Why there are no more than those.
    pub(crate) refusal: DropReason,
    pub(crate) giving: Giving,
}

/// How an account gives numbers to the items of this batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Giving {
    /// From the block, until it is used up.
    Block,
    /// Only some packets fit under a hard limit: each is charged on its own.
    OneByOne,
}

/// The answer for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The bundle's place in the cache.
    Bundle(u32),
    /// The bundle's place; it is new, and key managers are to be asked for all that is [`missing`](BundleCache::missing).
    Asking(u32),
    /// There is none.
    Refused(DropReason),
    /// There is none before what is [`missing`](BundleCache::missing) is there, the last of which is required.
    Missing,
}

/// Bundles, and which flow leaves by which.
#[derive(Debug, Default)]
pub(crate) struct BundleCache {
    bundles: Vec<Bundle>,
    free: Vec<u32>,
    /// Places of bundles that are gone, by which flows may still be told to leave: free when all have asked again.
    vacated: Vec<u32>,
    /// Places of bundles that were found not to work any more.
    spent: Vec<u32>,
    /// Bundles made so far.
    made: u64,
    by_states: HashTable<Named>,
    hasher: RandomState,
    flows: Flows,
    accounts: Vec<Option<Account>>,
    free_accounts: Vec<u32>,
    account_of: HashMap<usize, u32, RandomState>,
    /// The states' generation.
    states: u64,
    host: Option<Arc<Host>>,
    /// Bundles before this place have no state that is gone.
    swept: usize,
    /// What the latest resolution found no states for.
    pub(crate) missing: Vec<Missing>,
}

/// Where the bundle of some states is.
#[derive(Clone, Copy, Debug)]
struct Named {
    hash: u64,
    place: u32,
}

/// Bundles kept at the most: each takes half a kilobyte, and its flow a tenth.
const MOST: usize = 1 << 16;
/// Places that are kept from use at the most: to use them again, all flows must ask for their bundles again.
const VACANCIES: usize = MOST / 2;
/// With more bundles than these, what packets need of them is out of the second-level cache before it is needed again.
const FEW: usize = 128;
/// Bundles looked at before each batch for states that are gone.
const SWEEP: usize = 256;
/// Flows looked at about once a second for what is gone: all of them within half a minute.
const SWEEP_FLOWS: usize = 1 << 12;
/// How soon it is looked again whether somebody listens who can be asked for what is optional.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);

impl Grant {
    pub(crate) const NOTHING: Self =
        Self { next: 0, left: 0, refusal: DropReason::OutSequenceOverflow, giving: Giving::Block };
}

impl BundleCache {
    /// To be called before a batch. True when flows must ask for their bundles again.
    #[inline]
    pub(crate) fn begin(&mut self, snapshot: &Snapshot) -> bool {
        let swept = self.swept == self.bundles.len() && self.states == snapshot.states;
        let goes_on = swept && !self.is_overfull() && !self.has_moved(snapshot);
        !goes_on && self.look_after(snapshot)
    }

    /// Whether some bundles are to go.
    #[inline]
    fn is_overfull(&self) -> bool {
        !self.spent.is_empty() || self.by_states.len() > MOST
    }

    /// Whether another host is told of than its bundles were made for.
    #[inline]
    fn has_moved(&self, snapshot: &Snapshot) -> bool {
        self.host.as_ref().map(Arc::as_ptr) != snapshot.host.as_ref().map(Arc::as_ptr)
    }

    /// What there is to do before a batch, now and then.
    #[inline(never)]
    fn look_after(&mut self, snapshot: &Snapshot) -> bool {
        if self.has_moved(snapshot) {
            let host = snapshot.host.clone();
            *self = Self { host, states: snapshot.states, made: self.made, ..Self::default() };
            return true;
        }
        let news = self.states != snapshot.states;
        if news {
            (self.states, self.swept) = (snapshot.states, 0);
        }
        self.sweep(snapshot, SWEEP);
        self.make_room();
        let begins_anew = news || self.vacated.len() > VACANCIES;
        if begins_anew {
            self.free.append(&mut self.vacated);
        }
        begins_anew
    }

    /// Lets go of all states that are gone, and of what is known of flows by policies and bundles that are, bit by bit.
    pub(crate) fn let_go(&mut self, snapshot: &Snapshot) {
        self.sweep(snapshot, self.bundles.len());
        let Self { flows, bundles, .. } = self;
        flows.sweep(SWEEP_FLOWS, |way| is_there(bundles, way));
    }

    #[inline]
    pub(crate) fn bundle(&self, place: u32) -> &Bundle {
        &self.bundles[place as usize]
    }

    /// Whether the bundle at a place, which is known from an earlier packet of the same flow, still works.
    #[inline(always)]
    pub(crate) fn works(&self, place: u32, now: Moment) -> bool {
        self.bundles.get(place as usize).is_some_and(|bundle| bundle.works(now))
    }

    /// Bundles, to be read while numbers are taken from the accounts.
    pub(crate) fn parts(&mut self) -> (&[Bundle], &mut [Option<Account>]) {
        (&self.bundles, &mut self.accounts)
    }

    /// The account and the layer at `depth` of a bundle; `None` when it is not so deep.
    #[inline(always)]
    pub(crate) fn draw(&mut self, place: u32, depth: usize) -> Option<(&mut Account, &Layer)> {
        let layer = self.bundles[place as usize].layers.get(depth)?;
        Some((self.accounts[layer.account as usize].as_mut()?, layer))
    }

    /// Asks for bundles that are about to be used, and for what they lead to but the keys themselves, before the first is waited for.
    pub(crate) fn fetch(&self, places: impl Iterator<Item = u32> + Clone) {
        let bundles = places.filter_map(|place| self.bundles.get(place as usize));
        bundles.clone().for_each(|bundle| prefetch_far(&bundle.layers));
        let layers = bundles.clone().flat_map(|bundle| &bundle.layers);
        layers.clone().for_each(prefetch_far_whole);
        for layer in layers.clone() {
            self.accounts
                .get(layer.account as usize)
                .inspect(|account| prefetch_far_whole(*account));
            layer.sa.fetch_to_send();
        }
        layers.for_each(|layer| layer.sa.fetch_live());
    }

    /// Asks for what of a bundle packets of many states in turn need.
    #[inline(always)]
    pub(crate) fn fetch_exit(&self, place: u32) {
        self.bundles.get(place as usize).inspect(|bundle| prefetch_far(&bundle.exit));
    }

    /// How packets of many states in turn leave by a bundle that is known from an earlier packet of the same flow.
    #[inline(always)]
    pub(crate) fn exit(&self, place: u32) -> Option<&Exit> {
        self.bundles.get(place as usize)?.exit.as_ref()
    }

    /// Places of accounts are below this.
    #[inline]
    pub(crate) fn accounts(&self) -> usize {
        self.accounts.len()
    }

    /// Whether there are so many bundles that what packets need of them is far away.
    pub(crate) fn is_far(&self) -> bool {
        self.bundles.len() > FEW
    }

    /// The account at a place.
    pub(crate) fn account(&mut self, place: u32) -> Option<&mut Account> {
        self.accounts.get_mut(place as usize)?.as_mut()
    }

    /// The bundle of a flow, made if need be.
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
            self.spent.push(place);
        }
        self.missing.clear();
        let Chain { states, is_of_flow } =
            match chain(snapshot, deciding, flow, settings, &mut self.missing) {
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
                    self.keep(Bundle { until: ask_again(snapshot, now), ..bundle })
                }
                Ok(bundle) => self.keep(bundle),
                Err(reason) => return Resolution::Refused(reason),
            },
        };
        let way = Way { place, made: self.bundle(place).made, states: self.states };
        match is_of_flow {
            true => self.flows.learn_one(deciding, flow, way),
            false => self.flows.learn(deciding, flow, way),
        }
        if asks { Resolution::Asking(place) } else { Resolution::Bundle(place) }
    }

    /// The bundle that was found for a flow under these states.
    fn known(&self, deciding: &Deciding<'_>, flow: &FlowKey) -> Option<u32> {
        let way = self.flows.find(deciding, flow)?;
        (way.states == self.states && is_there(&self.bundles, &way)).then_some(way.place)
    }

    fn find(&self, states: &States<'_>, inner: Version) -> Option<u32> {
        let hash = hash(&self.hasher, states.iter().copied());
        let is_it = |named: &Named| self.bundle(named.place).is_of(states, inner);
        self.by_states.find(hash, is_it).map(|named| named.place)
    }

    fn keep(&mut self, mut bundle: Bundle) -> u32 {
        for layer in &mut bundle.layers {
            layer.account = self.draw_on(&layer.sa);
        }
        bundle.exit = Exit::of(&bundle);
        self.made += 1;
        bundle.made = self.made;
        let place = self.free.pop().unwrap_or_else(|| {
            self.bundles.push(Bundle::gone());
            narrow(self.bundles.len() - 1)
        });
        let hash = hash(&self.hasher, states_of(&bundle));
        self.bundles[place as usize] = bundle;
        self.by_states.insert_unique(hash, Named { hash, place }, |named| named.hash);
        place
    }

    /// Drops what does not work any more, and as many bundles as are too many.
    fn make_room(&mut self) {
        while let Some(place) = self.spent.pop() {
            self.drop_bundle(place as usize);
        }
        let most = self.by_states.len().saturating_sub(MOST);
        for draw in 0..most as u64 {
            // Two thirds of the places or more are taken: the few draws that hit none are made up for before the next batch.
            let random = self.hasher.hash_one((self.made, draw));
            self.drop_bundle((random >> 32) as usize % self.bundles.len());
        }
    }

    /// Drops bundles with states that are gone, of so many.
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

    /// Empties a place, which may be empty.
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
        bundle.layers.iter().for_each(|layer| self.draw_no_more(layer.account));
        self.vacated.push(place);
    }

    /// The account of an SA that one more layer draws on.
    fn draw_on(&mut self, sa: &Arc<Sa>) -> u32 {
        let Self { accounts, free_accounts, account_of, .. } = self;
        let place = *account_of.entry(Arc::as_ptr(sa).addr()).or_insert_with(|| {
            let place = free_accounts.pop().unwrap_or_else(|| {
                accounts.push(None);
                narrow(accounts.len() - 1)
            });
            accounts[place as usize] = Some(Account {
                place,
                sa: Arc::clone(sa),
                layers: 0,
                packets: 0,
                bytes: 0,
                grant: Grant::NOTHING,
                debt: 0,
            });
            place
        });
        if let Some(account) = self.account(place) {
            account.layers += 1;
        }
        place
    }

    /// The account goes with the last layer.
    fn draw_no_more(&mut self, place: u32) {
        let Some(account) = self.account(place) else { return };
        account.layers -= 1;
        if account.layers == 0 {
            let sa = Arc::as_ptr(&account.sa).addr();
            self.account_of.remove(&sa);
            self.accounts[place as usize] = None;
            self.free_accounts.push(place);
        }
    }
}

/// Whether the bundle that a way led to is still there.
fn is_there(bundles: &[Bundle], way: &Way) -> bool {
    bundles.get(way.place as usize).is_some_and(|bundle| bundle.made == way.made)
}

fn states_of(bundle: &Bundle) -> impl Iterator<Item = &Arc<Sa>> {
    bundle.layers.iter().map(|layer| &layer.sa)
}

/// Of states by address: a bundle keeps its own alive.
fn hash<'a>(hasher: &RandomState, states: impl Iterator<Item = &'a Arc<Sa>>) -> u64 {
    let add = |hash: u64, sa: &Arc<Sa>| hasher.hash_one((hash, Arc::as_ptr(sa).addr()));
    states.fold(0, add)
}

fn ask_again(snapshot: &Snapshot, now: Moment) -> Moment {
    let acquires = &snapshot.acquires;
    now.plus(match acquires.key_managers {
        KeyManagers::Absent => LISTEN_AGAIN,
        KeyManagers::Listening => acquires.lifetime,
    })
}

/// Places in the cache, which has no more than for [`MOST`], [`VACANCIES`] and one batch.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
