//! What is known of states that packets came by, and until when.

use proptest::prelude::*;
use uxfrm_crypto::Backend;

use super::*;
use crate::Moment;
use crate::sa::sample;
use crate::sa::shared_config::SaWords;

#[test]
fn a_state_stays_for_the_next_batch_until_one_of_its_spi_changes() {
    let config = sample("10.0.0.2", 7);
    let sa = Sa::new(&config, Arc::new(SaWords::of(&config, Backend::Portable)), Moment(0));
    let name = (Spi(7), config.id.destination, 0);
    let mut used = UsedStates::new();
    let mut snapshot = Snapshot { generation: 1, ..Snapshot::default() };
    used.begin(&snapshot);
    let place = used.place(&sa);
    used.note_name(place, name);
    used[place as usize].standing = Standing::Expired;
    used.finish();
    used.begin(&snapshot);
    assert_eq!((used.named(name), used.has_met(place)), (Some(place), false));
    used.meet(place);
    assert!(used.has_met(place) && used[place as usize].standing == Standing::Good);
    used.finish();
    let change = |snapshot: &mut Snapshot, spi| {
        snapshot.note_state(Spi(spi));
        snapshot.generation += 1;
    };
    change(&mut snapshot, 8);
    used.begin(&snapshot);
    assert_eq!((used.named(name), Arc::strong_count(&sa)), (Some(place), 2));
    used.finish();
    change(&mut snapshot, 7);
    used.begin(&snapshot);
    assert_eq!((used.named(name), Arc::strong_count(&sa)), (None, 1));
}

#[test]
fn more_changes_than_are_known_and_another_host_let_all_go() {
    let all = states(3);
    let mut used = UsedStates::new();
    let mut snapshot = Snapshot::default();
    let host = Host {
        addresses: crate::HostAddresses::default(),
        mtu: 1500,
        narrow: crate::NarrowPaths::new(),
    };
    for turn in 0..2 {
        meet_under(&mut used, &all, &snapshot);
        assert_eq!(used.len(), 3);
        match turn {
            0 => (0..257).for_each(|_| snapshot.note_state(Spi(99))),
            _ => snapshot.host = Some(Arc::new(host.clone())),
        }
        snapshot.generation += 1;
        used.begin(&snapshot);
        assert_eq!(used.len(), 0, "{turn}");
    }
}

/// What passes is asked again after a change of policies, by the next batch that meets the state.
#[test]
fn a_change_of_policies_leaves_states_and_forgets_what_passes() {
    let all = states(2);
    let mut used = UsedStates::new();
    let mut snapshot = Snapshot::default();
    meet_under(&mut used, &all, &snapshot);
    let places = [0, 1_usize].map(|at| used.named(name(&all[at])).unwrap());
    let answer = crate::PolicyCache::new(crate::CacheSettings::default(), 1).lookup(
        &snapshot.spd,
        crate::Direction::In,
        &crate::FlowKey::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
        Spi(1),
    );
    places.iter().for_each(|place| used[*place as usize].passes = Some(answer));
    snapshot.generation += 1;
    used.begin(&snapshot);
    used.meet(places[0]);
    assert_eq!(used[places[0] as usize].passes, Some(answer), "policies are what they were");
    used.finish();
    let spd = Arc::make_mut(&mut snapshot.spd);
    spd.set_defaults(crate::Defaults { inbound: crate::Action::Block, ..spd.defaults() });
    snapshot.generation += 1;
    used.begin(&snapshot);
    for (place, state) in places.into_iter().zip(&all) {
        assert_eq!(used.named(name(state)), Some(place));
        used.meet(place);
        assert_eq!(used[place as usize].passes, None);
    }
}

proptest! {
    /// Against a set of SPIs: whichever change, they are found that did not, and no other; and each is found once.
    #[test]
    fn those_stay_that_did_not_change(
        batches in prop::collection::vec(
            (prop::collection::vec(0_usize..150, 0..64), prop::collection::vec(1_u32..160, 0..4)),
            1..20,
        ),
    ) {
        let all = states(150);
        let mut used = UsedStates::new();
        // Of another generation than the first one: then all are kept, as there are not many.
        let mut snapshot = Snapshot { generation: 1, ..Snapshot::default() };
        let mut model = std::collections::BTreeSet::new();
        for (met, changed) in batches {
            used.begin(&snapshot);
            for sa in met.iter().map(|at| &all[*at]) {
                let found = used.named(name(sa));
                prop_assert_eq!(found.is_some(), model.contains(&sa.id().spi));
                let place = found.unwrap_or_else(|| used.place(sa));
                used.meet(place);
                used.note_name(place, name(sa));
                model.insert(sa.id().spi);
            }
            used.finish();
            for spi in changed {
                snapshot.note_state(Spi(spi));
                model.remove(&Spi(spi));
            }
            snapshot.generation += 1;
            used.begin(&snapshot);
            prop_assert_eq!(used.len(), model.len());
            let kept = all.iter().filter(|sa| model.contains(&sa.id().spi));
            for sa in kept {
                let place = used.named(name(sa)).unwrap();
                prop_assert!(Arc::ptr_eq(&used[place as usize].sa, sa));
                prop_assert_eq!(Arc::strong_count(sa), 2);
            }
            used.finish();
        }
    }
}

/// Has a batch meet all.
fn meet_under(used: &mut UsedStates, states: &[Arc<Sa>], snapshot: &Snapshot) {
    used.begin(snapshot);
    for sa in states {
        let place = used.place(sa);
        used.note_name(place, name(sa));
    }
    used.finish();
}

/// States of so many SPIs, from 1 on.
fn states(count: u32) -> Vec<Arc<Sa>> {
    let config = sample("10.0.0.2", 1);
    let words = Arc::new(SaWords::of(&config, Backend::Portable));
    let state = |spi| {
        let sa = Sa::new(&sample("10.0.0.2", spi), Arc::clone(&words), Moment(0));
        sa.set_turn(spi.into());
        sa
    };
    (1..=count).map(state).collect()
}

fn name(sa: &Sa) -> Name {
    (sa.id().spi, sa.id().destination, 0)
}

/// Lets packets of these come in batches; how many states' were not known from before.
fn meet_all(used: &mut UsedStates, states: &[Arc<Sa>]) -> usize {
    let mut news = 0;
    for batch in states.chunks(64) {
        used.begin(&Snapshot::default());
        for sa in batch {
            match used.named(name(sa)) {
                Some(place) => {
                    assert!(Arc::ptr_eq(&used[place as usize].sa, sa));
                    used.meet(place);
                }
                None => {
                    let place = used.place(sa);
                    used.note_name(place, name(sa));
                    news += 1;
                }
            }
        }
        used.note_latest(used.named(name(&batch[0])));
        used.finish();
        let latest = used.latest().map(|place| used[place as usize].sa.id());
        assert!(latest.is_none_or(|latest| latest == batch[0].id()));
    }
    news
}

#[test]
fn of_more_than_there_is_room_for_most_stay() {
    let states = states(70_000);
    let mut used = UsedStates::new();
    used.most = most_among(2 * states.len());
    let few = &states[..20_000];
    assert_eq!((meet_all(&mut used, few), meet_all(&mut used, few)), (few.len(), 0));
    meet_all(&mut used, &states);
    for _ in 0..3 {
        let news = meet_all(&mut used, &states);
        assert!(news < states.len() / 5, "a fifth would be more than {news}");
        assert_eq!(used.len(), MOST);
    }
    let held = |sa: &&Arc<Sa>| Arc::strong_count(sa) > 1;
    assert_eq!(states.iter().filter(held).count(), MOST, "each once");
}

#[test]
fn what_one_takes() {
    let sizes = [size_of::<Used>(), size_of::<Looks>(), size_of::<Option<Regular>>()];
    assert_eq!(sizes, [112, 208, 128]);
}

#[test]
fn many_states_are_let_go_after_their_batch() {
    let mut used = UsedStates::new();
    used.most = most_among(MANY + 1);
    for (sa, place) in states(u32::try_from(FEW).unwrap() + 1).iter().zip(0..) {
        used.begin(&Snapshot::default());
        assert_eq!(used.place(sa), place);
        used.finish();
    }
    assert!(used.is_empty());
}
