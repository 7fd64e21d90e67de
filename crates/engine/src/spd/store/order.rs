//! Policies in order of insertion: the list of `net/xfrm/xfrm_policy.c: xfrm_policy_walk`. A policy
//! that replaces another comes last here, though it keeps its position in match order; so its
//! sequence number is stored apart.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::insertion_order::InsertionOrder;

/// Position of a dump of all policies, youngest first. Holds no reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyCursor(Option<u64>);

/// Slots by sequence number. The caller supplies the match-order number of a slot.
#[derive(Debug, Default)]
pub(super) struct PolicyOrder {
    slots: InsertionOrder<u32>,
    /// Sequence numbers of policies that replaced another. For all others it equals the match-order
    /// number.
    overrides: HashMap<u32, u64, RandomState>,
}

impl PolicyOrder {
    /// Inserts a slot with its sequence number. `age_of` must know it and all others.
    pub(super) fn insert(&mut self, came: u64, slot: u32, age_of: impl Fn(u32) -> u64) {
        let Self { slots, overrides } = self;
        if came != age_of(slot) {
            overrides.insert(slot, came);
        }
        slots.insert(came, slot, |slot| seq(overrides, *slot, &age_of));
    }

    /// Removes a slot whose policy `age_of` still knows.
    pub(super) fn remove(&mut self, slot: u32, age_of: impl Fn(u32) -> u64) {
        let Self { slots, overrides } = self;
        // Comparing adjacent slots is faster than asking for their numbers.
        slots.remove(seq(overrides, slot, age_of), |run| run.iter().position(|held| *held == slot));
        overrides.remove(&slot);
    }

    /// Slots that a cursor has not passed, youngest first, each with the cursor behind it.
    pub(super) fn from(
        &self,
        cursor: PolicyCursor,
        age_of: impl Fn(u32) -> u64 + Copy,
    ) -> impl Iterator<Item = (PolicyCursor, u32)> {
        let seq = move |slot: &u32| seq(&self.overrides, *slot, age_of);
        let slots = self.slots.before(cursor.0.unwrap_or(u64::MAX), seq);
        slots.map(move |slot| (PolicyCursor(Some(seq(slot))), *slot))
    }
}

fn seq(overrides: &HashMap<u32, u64, RandomState>, slot: u32, age_of: impl Fn(u32) -> u64) -> u64 {
    overrides.get(&slot).copied().unwrap_or_else(|| age_of(slot))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::spd::store::PolicyStore;
    use crate::{Direction, Moment, Policy, PolicyEntry, PortMask, spd::table::tests::policy};

    /// The kernel's list, youngest first, with the dump's position in it.
    #[derive(Default)]
    struct List {
        policies: Vec<(u64, Arc<PolicyEntry>)>,
        looked_at: Option<usize>,
        /// Sequence number of the last one shown.
        last: u64,
        came: u64,
    }

    impl List {
        fn push(&mut self, entry: &Arc<PolicyEntry>) {
            self.came += 1;
            self.policies.insert(0, (self.came, Arc::clone(entry)));
            self.looked_at = self.looked_at.map(|passed| passed + 1);
        }

        fn remove(&mut self, entry: &Arc<PolicyEntry>) {
            let Some(at) = self.policies.iter().position(|(_, one)| Arc::ptr_eq(one, entry)) else {
                return;
            };
            self.policies.remove(at);
            self.looked_at = self.looked_at.map(|passed| passed - usize::from(at < passed));
        }

        /// Inserts by sequence number.
        fn restore(&mut self, entry: &Arc<PolicyEntry>) {
            let own = entry.precedence().insertion_seq();
            let at = self.policies.partition_point(|(seq, _)| *seq > own);
            self.policies.insert(at, (own, Arc::clone(entry)));
            let is_passed = own >= self.last;
            self.looked_at = self.looked_at.map(|passed| passed + usize::from(is_passed));
        }

        fn look(&mut self, many: usize) -> Vec<*const PolicyEntry> {
            let passed = self.looked_at.unwrap_or(0);
            let shown: Vec<_> = self.policies.iter().skip(passed).take(many).collect();
            self.last = shown.last().map_or(self.last, |(seq, _)| *seq);
            self.looked_at = (!shown.is_empty()).then_some(passed + shown.len());
            shown.iter().map(|(_, entry)| Arc::as_ptr(entry)).collect()
        }
    }

    /// Few identities and priorities, so that they collide.
    fn of(name: u16, priority: u32) -> Policy {
        let mut policy = policy(Direction::Out, priority);
        policy.selector.source_port = PortMask::exactly(name);
        policy
    }

    proptest! {
        #[test]
        fn dump_in_steps_shows_what_the_kernel_shows(
            steps in prop::collection::vec((0_u8..20, 0_u16..250, 0_u32..3, any::<prop::sample::Index>()), 0..900),
        ) {
            let (mut ledger, mut list) = (PolicyStore::default(), List::default());
            let (mut cursor, mut gone) = (PolicyCursor::default(), Vec::new());
            for (choice, name, priority, which) in steps {
                match choice {
                    0..7 => if let Ok(entry) = ledger.add(&of(name, priority), None, Moment(0)) {
                        list.push(&entry);
                    }
                    7..11 => {
                        let (entry, old) = ledger.update(&of(name, priority), None, Moment(0)).unwrap();
                        old.iter().for_each(|old| list.remove(old));
                        list.push(&entry);
                    }
                    11..14 if !list.policies.is_empty() => {
                        let (_, entry) = list.policies[which.index(list.policies.len())].clone();
                        ledger.remove(&entry);
                        list.remove(&entry);
                        gone.push(entry);
                    }
                    14..16 => if let Some(Ok(entry)) = gone.pop().map(|entry| ledger.restore(&entry)) {
                        list.restore(&entry);
                    }
                    16 if priority == 0 && name < 25 => {
                        let all: Vec<_> = ledger.iter().cloned().collect();
                        for entry in &all {
                            ledger.remove(entry);
                            list.remove(entry);
                        }
                    }
                    _ => {
                        let next: Vec<_> = ledger.from(cursor).take(usize::from(name / 8)).collect();
                        let shown: Vec<_> = next.iter().map(|(_, entry)| Arc::as_ptr(entry)).collect();
                        prop_assert_eq!(shown, list.look(usize::from(name / 8)));
                        cursor = next.last().map_or_else(PolicyCursor::default, |(passed, _)| *passed);
                    }
                }
                let all = ledger.from(PolicyCursor::default()).map(|(_, entry)| Arc::as_ptr(entry));
                let known = list.policies.iter().map(|(_, entry)| Arc::as_ptr(entry));
                prop_assert!(all.eq(known));
                prop_assert!(ledger.order.overrides.len() <= list.policies.len(), "nothing stays behind");
            }
        }
    }
}
