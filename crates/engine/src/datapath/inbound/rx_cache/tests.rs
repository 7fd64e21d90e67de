//! What is known of states that packets came by, and until when.

use proptest::prelude::*;
use uxfrm_crypto::Backend;

use super::*;
use crate::Moment;
use crate::sa::sample;
use crate::sa::shared_config::SharedSaConfig;

#[test]
fn entry_stays_until_its_spi_changes() {
    let config = sample("10.0.0.2", 7);
    let sa = Sa::new(&config, Arc::new(SharedSaConfig::of(&config, Backend::Portable)), Moment(0));
    let lookup_key = (config.id, 0);
    let mut cache = RxCache::new();
    let mut snapshot = Snapshot { generation: 1, ..Snapshot::default() };
    cache.begin(&snapshot);
    let place = cache.entry_of(&sa);
    cache.store_key(place, lookup_key);
    cache[place as usize].limit_check = LimitCheck::Expired;
    cache.finish();
    cache.begin(&snapshot);
    assert_eq!((cache.find_by_key(lookup_key), cache.seen_in_batch(place)), (Some(place), false));
    cache.mark_seen(place);
    assert!(cache.seen_in_batch(place) && cache[place as usize].limit_check == LimitCheck::Pass);
    cache.finish();
    let change = |snapshot: &mut Snapshot, spi| {
        snapshot.note_state(Spi(spi));
        snapshot.generation += 1;
    };
    change(&mut snapshot, 8);
    cache.begin(&snapshot);
    assert_eq!((cache.find_by_key(lookup_key), Arc::strong_count(&sa)), (Some(place), 2));
    cache.finish();
    change(&mut snapshot, 7);
    cache.begin(&snapshot);
    assert_eq!((cache.find_by_key(lookup_key), Arc::strong_count(&sa)), (None, 1));
}

#[test]
fn lost_changes_and_new_host_evict_all() {
    let all = states(3);
    let mut cache = RxCache::new();
    let mut snapshot = Snapshot::default();
    let host = HostView {
        addresses: crate::HostAddresses::default(),
        mtu: 1500,
        path_mtus: crate::PathMtus::new(),
    };
    for turn in 0..2 {
        meet_under(&mut cache, &all, &snapshot);
        assert_eq!(cache.len(), 3);
        match turn {
            0 => (0..257).for_each(|_| snapshot.note_state(Spi(99))),
            _ => snapshot.host = Some(Arc::new(host.clone())),
        }
        snapshot.generation += 1;
        cache.begin(&snapshot);
        assert_eq!(cache.len(), 0, "{turn}");
    }
}

/// What passes is asked again after a change of policies, by the next batch that meets the state.
#[test]
fn policy_change_keeps_entries_and_clears_verdicts() {
    let all = states(2);
    let mut cache = RxCache::new();
    let mut snapshot = Snapshot::default();
    meet_under(&mut cache, &all, &snapshot);
    let places = [0, 1_usize].map(|at| cache.find_by_key(name(&all[at])).unwrap());
    let answer = crate::PolicyCache::new(crate::CacheSettings::default(), 1).lookup(
        &snapshot.spd,
        crate::Direction::In,
        &crate::FlowKey::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        Spi(1),
    );
    places.iter().for_each(|place| cache[*place as usize].passes = Some(answer));
    snapshot.generation += 1;
    cache.begin(&snapshot);
    cache.mark_seen(places[0]);
    assert_eq!(cache[places[0] as usize].passes, Some(answer), "policies are what they were");
    cache.finish();
    let spd = Arc::make_mut(&mut snapshot.spd);
    spd.set_defaults(crate::DefaultActions { inbound: crate::Action::Block, ..spd.defaults() });
    snapshot.generation += 1;
    cache.begin(&snapshot);
    for (place, state) in places.into_iter().zip(&all) {
        assert_eq!(cache.find_by_key(name(state)), Some(place));
        cache.mark_seen(place);
        assert_eq!(cache[place as usize].passes, None);
    }
}

proptest! {
    /// Against a set of SPIs: whichever change, they are found that did not, and no other; and each
    /// is found once.
    #[test]
    fn unchanged_entries_stay(
        batches in prop::collection::vec(
            (prop::collection::vec(0_usize..150, 0..64), prop::collection::vec(1_u32..160, 0..4)),
            1..20,
        ),
    ) {
        let all = states(150);
        let mut cache = RxCache::new();
        // Of another generation than the first one: then all are kept, as there are not many.
        let mut snapshot = Snapshot { generation: 1, ..Snapshot::default() };
        let mut model = std::collections::BTreeSet::new();
        for (seen, changed) in batches {
            cache.begin(&snapshot);
            for sa in seen.iter().map(|at| &all[*at]) {
                let found = cache.find_by_key(name(sa));
                prop_assert_eq!(found.is_some(), model.contains(&sa.id().spi));
                let place = found.unwrap_or_else(|| cache.entry_of(sa));
                cache.mark_seen(place);
                cache.store_key(place, name(sa));
                model.insert(sa.id().spi);
            }
            cache.finish();
            for spi in changed {
                snapshot.note_state(Spi(spi));
                model.remove(&Spi(spi));
            }
            snapshot.generation += 1;
            cache.begin(&snapshot);
            prop_assert_eq!(cache.len(), model.len());
            let kept = all.iter().filter(|sa| model.contains(&sa.id().spi));
            for sa in kept {
                let place = cache.find_by_key(name(sa)).unwrap();
                prop_assert!(Arc::ptr_eq(&cache[place as usize].sa, sa));
                prop_assert_eq!(Arc::strong_count(sa), 2);
            }
            cache.finish();
        }
    }
}

/// Has a batch meet all.
fn meet_under(cache: &mut RxCache, states: &[Arc<Sa>], snapshot: &Snapshot) {
    cache.begin(snapshot);
    for sa in states {
        let place = cache.entry_of(sa);
        cache.store_key(place, name(sa));
    }
    cache.finish();
}

/// States of so many SPIs, from 1 on.
fn states(count: u32) -> Vec<Arc<Sa>> {
    let config = sample("10.0.0.2", 1);
    let words = Arc::new(SharedSaConfig::of(&config, Backend::Portable));
    let state = |spi| {
        let sa = Sa::new(&sample("10.0.0.2", spi), Arc::clone(&words), Moment(0));
        sa.set_insertion_seq(spi.into());
        sa
    };
    (1..=count).map(state).collect()
}

fn name(sa: &Sa) -> SaLookupKey {
    (sa.id(), 0)
}

/// Lets packets of these come in batches; how many states' were not known from before.
fn meet_all(cache: &mut RxCache, states: &[Arc<Sa>]) -> usize {
    let mut news = 0;
    for batch in states.chunks(64) {
        cache.begin(&Snapshot::default());
        for sa in batch {
            match cache.find_by_key(name(sa)) {
                Some(place) => {
                    assert!(Arc::ptr_eq(&cache[place as usize].sa, sa));
                    cache.mark_seen(place);
                }
                None => {
                    let place = cache.entry_of(sa);
                    cache.store_key(place, name(sa));
                    news += 1;
                }
            }
        }
        cache.note_latest(cache.find_by_key(name(&batch[0])));
        cache.finish();
        let latest = cache.latest().map(|place| cache[place as usize].sa.id());
        assert!(latest.is_none_or(|latest| latest == batch[0].id()));
    }
    news
}

#[test]
fn cache_overflow_keeps_most_entries() {
    let states = states(70_000);
    let mut cache = RxCache::new();
    cache.most = most_among(2 * states.len());
    let few = &states[..20_000];
    assert_eq!((meet_all(&mut cache, few), meet_all(&mut cache, few)), (few.len(), 0));
    meet_all(&mut cache, &states);
    for _ in 0..3 {
        let news = meet_all(&mut cache, &states);
        assert!(news < states.len() / 5, "a fifth would be more than {news}");
        assert_eq!(cache.len(), MOST);
    }
    let held = |sa: &&Arc<Sa>| Arc::strong_count(sa) > 1;
    assert_eq!(states.iter().filter(held).count(), MOST, "each once");
}

#[test]
fn entry_size_is_bounded() {
    let sizes = [size_of::<RxEntry>(), size_of::<RxTemplates>(), size_of::<Option<RxRecord>>()];
    assert_eq!(sizes, [112, 208, 128]);
}

#[test]
fn surplus_entries_are_evicted_after_batch() {
    let mut cache = RxCache::new();
    cache.most = most_among(MANY + 1);
    for (sa, place) in states(u32::try_from(FEW).unwrap() + 1).iter().zip(0..) {
        cache.begin(&Snapshot::default());
        assert_eq!(cache.entry_of(sa), place);
        cache.finish();
    }
    assert!(cache.is_empty());
}
