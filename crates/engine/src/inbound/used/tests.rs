//! What is known of states that packets came by, and until when.

use uxfrm_crypto::Backend;

use super::*;
use crate::Moment;
use crate::sa::{sample, words::SaWords};

#[test]
fn a_state_stays_for_the_next_batch_until_states_or_policies_change() {
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
    snapshot.generation = 2;
    used.begin(&snapshot);
    assert_eq!((used.named(name), Arc::strong_count(&sa)), (None, 1));
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
