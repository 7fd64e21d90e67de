//! States in order of insertion: the list of `net/xfrm/xfrm_state.c: xfrm_state_walk`.

use std::sync::Arc;

use crate::Sa;
use crate::insertion_order::InsertionOrder;

/// Position in a dump of all states, from the youngest on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCursor(Option<u64>);

/// States by insertion sequence number.
#[derive(Debug, Default)]
pub(super) struct SaOrder(InsertionOrder<Arc<Sa>>);

impl StateCursor {
    /// Behind this state: older ones are next.
    #[must_use]
    pub fn behind(sa: &Sa) -> Self {
        Self(Some(sa.insertion_seq()))
    }
}

impl SaOrder {
    /// Appends a new state.
    pub(super) fn push(&mut self, sa: &Arc<Sa>) {
        self.0.insert(sa.insertion_seq(), Arc::clone(sa), seq_of);
    }

    /// Removes any generation of a state; a missing one is no error.
    pub(super) fn remove(&mut self, sa: &Sa) {
        self.0.remove(sa.insertion_seq(), |run| place(run, sa));
    }

    /// Replaces an older generation of `new`.
    pub(super) fn replace(&mut self, new: &Arc<Sa>) {
        if let Some(held) = self.0.of_mut(new.insertion_seq(), |run| place(run, new)) {
            *held = Arc::clone(new);
        }
    }

    /// States behind a cursor, the youngest first.
    pub(super) fn from(&self, cursor: StateCursor) -> impl Iterator<Item = &Arc<Sa>> {
        self.0.before(cursor.0.unwrap_or(u64::MAX), seq_of)
    }
}

/// Position in a run, for any generation of a state.
fn place(run: &[Arc<Sa>], sa: &Sa) -> Option<usize> {
    let at = run.binary_search_by_key(&sa.insertion_seq(), seq_of).ok()?;
    run[at].is_same(sa).then_some(at)
}

fn seq_of(sa: &Arc<Sa>) -> u64 {
    sa.insertion_seq()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uxfrm_crypto::Backend;

    use super::*;
    use crate::{Moment, SharedSaConfig, sa::sample};

    fn sa(insertion_seq: u64) -> Arc<Sa> {
        let config = sample("10.0.0.2", 1);
        let sa =
            Sa::new(&config, Arc::new(SharedSaConfig::of(&config, Backend::Portable)), Moment(0));
        sa.set_insertion_seq(insertion_seq);
        sa
    }

    proptest! {
        /// Against a list, with a reader all the time.
        #[test]
        fn dump_in_steps_shows_each_remaining_sa_once(
            steps in prop::collection::vec((0_u8..4, any::<prop::sample::Index>()), 0..600),
            before in 0_u64..300,
        ) {
            let (mut sa_order, mut model): (SaOrder, Vec<Arc<Sa>>) = Default::default();
            let mut last = 0;
            for _ in 0..before {
                last += 1;
                model.push(sa(last));
                sa_order.push(&model[model.len() - 1]);
            }
            let turns_of = |all: &[Arc<Sa>]| all.iter().map(|sa| sa.insertion_seq()).collect::<Vec<_>>();
            let (mut cursor, mut shown, mut expected) = (StateCursor::default(), vec![], vec![]);
            for (choice, which) in steps {
                match choice {
                    0 => {
                        last += 1;
                        model.push(sa(last));
                        sa_order.push(&model[model.len() - 1]);
                    }
                    1 if !model.is_empty() => {
                        let gone = model.remove(which.index(model.len()));
                        sa_order.remove(&gone);
                        let is_passed = cursor.0.is_some_and(|seq| gone.insertion_seq() >= seq);
                        expected.retain(|seq| is_passed || *seq != gone.insertion_seq());
                    }
                    2 if !model.is_empty() => {
                        let at = which.index(model.len());
                        let new = model[at].renewed(Arc::new(model[at].config().clone()));
                        sa_order.replace(&new);
                        model[at] = new;
                    }
                    _ => {
                        let next: Vec<_> = sa_order.from(cursor).take(3).cloned().collect();
                        if cursor == StateCursor::default() {
                            expected = turns_of(&model);
                        }
                        cursor = next.last().map_or(cursor, |sa| StateCursor::behind(sa));
                        shown.extend(turns_of(&next));
                    }
                }
                sa_order.remove(&sa(last / 2));
                let all: Vec<_> = sa_order.from(StateCursor::default()).map(Arc::as_ptr).collect();
                let known: Vec<_> = model.iter().rev().map(Arc::as_ptr).collect();
                prop_assert_eq!(all, known);
            }
            if cursor != StateCursor::default() {
                shown.extend(sa_order.from(cursor).map(|sa| sa.insertion_seq()));
                expected.reverse();
                prop_assert_eq!(shown, expected);
            }
        }
    }
}
