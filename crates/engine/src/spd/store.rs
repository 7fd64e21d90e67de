//! The writer's side of the SPD: policies by key, and in order of insertion.

mod id_index;
mod order;

use std::{hash::BuildHasher, sync::Arc};

use foldhash::fast::RandomState;

use super::compact::shared::SharedFieldsTable;
use super::entry::NewEntry;
use super::validate;
use crate::{
    DeviceId, Direction, Error, IfId, Mark, Moment, Policy, PolicyEntry, PolicyIndex, PolicyKey,
    PolicyKind, PolicyName, Selector,
};
use id_index::IdIndex;
pub use order::PolicyCursor;
use order::PolicyOrder;

/// All policies.
#[derive(Debug, Default)]
pub(crate) struct PolicyStore {
    /// By slot.
    entries: Entries,
    free_slots: Vec<u32>,
    /// By hash of selector, mark and the like.
    by_name: IdIndex,
    /// By index; see [`number`].
    by_index: IdIndex,
    order: PolicyOrder,
    hasher: RandomState,
    shared: SharedFieldsTable,
    last_seq: u64,
    serial: u32,
}

type Entries = Vec<Option<Arc<PolicyEntry>>>;

/// Position of a policy: by index, in match order, and in dump order.
struct ListPosition {
    index: PolicyIndex,
    match_seq: u64,
    dump_seq: u64,
}

/// What identifies a policy.
type PolicyIdentity = (Direction, PolicyKind, Selector, Mark, IfId);

impl PolicyStore {
    /// Adds a policy; fails if one with the same identity exists.
    pub(crate) fn add(
        &mut self,
        policy: &Policy,
        device: Option<DeviceId>,
        now: Moment,
    ) -> Result<Arc<PolicyEntry>, Error> {
        validate::verify(policy)?;
        if self.named(&name(policy)).is_some() {
            return Err(Error::Exists);
        }
        let (index, seq) = (self.index(policy), self.next_seq());
        let position = ListPosition { index, match_seq: seq, dump_seq: seq };
        Ok(self.insert(policy, device, position, now))
    }

    /// Adds a policy that was removed, with its old index, position and time.
    pub(crate) fn restore(&mut self, entry: &PolicyEntry) -> Result<Arc<PolicyEntry>, Error> {
        let policy = entry.policy();
        if self.named(&name(&policy)).is_some() {
            return Err(Error::Exists);
        }
        let (index, seq) = (self.index(&policy), entry.precedence().insertion_seq());
        let position = ListPosition { index, match_seq: seq, dump_seq: seq };
        let restored = self.insert(&policy, entry.device(), position, entry.added());
        restored.set_counts(entry.packets(), entry.bytes(), entry.last_used());
        Ok(restored)
    }

    /// Adds or replaces a policy. A policy that replaces another takes its index and, with equal
    /// priority, its position in match order; otherwise it comes behind its equals
    /// (`net/xfrm/xfrm_policy.c: xfrm_policy_insert_list`). In dump order it is always last.
    /// Returns the new policy and the replaced one.
    pub(crate) fn update(
        &mut self,
        policy: &Policy,
        device: Option<DeviceId>,
        now: Moment,
    ) -> Result<(Arc<PolicyEntry>, Option<Arc<PolicyEntry>>), Error> {
        validate::verify(policy)?;
        let old = self.named(&name(policy)).cloned();
        let index = old.as_ref().map_or_else(|| self.index(policy), |old| old.index());
        if let Some(old) = &old {
            self.remove(old);
        }
        let place =
            old.as_ref().map(|old| old.precedence()).filter(|old| old.is_equal_rank(policy));
        let dump_seq = self.next_seq();
        let match_seq = place.map_or(dump_seq, |old| old.insertion_seq());
        let position = ListPosition { index, match_seq, dump_seq };
        Ok((self.insert(policy, device, position, now), old))
    }

    /// Finds a policy.
    pub(crate) fn find(&self, key: &PolicyKey) -> Option<&Arc<PolicyEntry>> {
        let PolicyKey { direction, kind, mark, if_id, name } = key;
        match name {
            PolicyName::Selector(selector) => {
                self.named(&(*direction, *kind, *selector, *mark, *if_id))
            }
            PolicyName::Index(index) => self.indexed(*index).filter(|entry| {
                (entry.direction(), entry.kind(), entry.mark(), entry.if_id())
                    == (*direction, *kind, *mark, *if_id)
            }),
        }
    }

    /// All policies in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        self.entries.iter().flatten()
    }

    /// Policies that a cursor has not passed, youngest first, each with the cursor behind it.
    pub(crate) fn from(
        &self,
        cursor: PolicyCursor,
    ) -> impl Iterator<Item = (PolicyCursor, &Arc<PolicyEntry>)> {
        let slots = self.order.from(cursor, |slot| seq_in(&self.entries, slot));
        slots.filter_map(|(cursor, slot)| self.held(slot).map(|entry| (cursor, entry)))
    }

    /// Whether this very entry is present.
    pub(crate) fn holds(&self, entry: &Arc<PolicyEntry>) -> bool {
        let held = self.entries.get(entry.slot() as usize);
        held.and_then(Option::as_ref).is_some_and(|held| Arc::ptr_eq(held, entry))
    }

    /// Removes a policy that is present.
    pub(crate) fn remove(&mut self, entry: &Arc<PolicyEntry>) {
        let slot = entry.slot();
        self.by_name.remove(self.hash(&name_of(entry)), slot);
        self.by_index.remove(number(entry.index()), slot);
        self.shared.release(entry.shared());
        self.order.remove(slot, |slot| seq_in(&self.entries, slot));
        self.entries[slot as usize] = None;
        self.free_slots.push(slot);
    }

    fn insert(
        &mut self,
        policy: &Policy,
        device: Option<DeviceId>,
        position: ListPosition,
        now: Moment,
    ) -> Arc<PolicyEntry> {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.entries.push(None);
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        let ListPosition { index, match_seq, dump_seq } = position;
        let shared = self.shared.share(policy, device, match_seq);
        let admission = NewEntry { index, slot, insertion_seq: match_seq, added: now, shared };
        let entry = Arc::new(PolicyEntry::new(policy, admission));
        let Self { entries, hasher, .. } = self;
        entries[slot as usize] = Some(Arc::clone(&entry));
        let held = |slot: u32| entries[slot as usize].as_ref();
        let name_hash = |slot| held(slot).map_or(0, |entry| hasher.hash_one(name_of(entry)));
        self.by_name.insert(slot, name_hash);
        self.by_index.insert(slot, |slot| held(slot).map_or(0, |entry| number(entry.index())));
        self.order.insert(dump_seq, slot, |slot| seq_in(entries, slot));
        entry
    }

    /// The next insertion number.
    const fn next_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// The requested index if free, else the next free one.
    fn index(&mut self, policy: &Policy) -> PolicyIndex {
        let mut index = policy.index;
        while index.0 == 0 || self.indexed(index).is_some() {
            index = validate::index(self.serial, policy.direction);
            self.serial = self.serial.wrapping_add(1);
        }
        index
    }

    fn named(&self, name: &PolicyIdentity) -> Option<&Arc<PolicyEntry>> {
        let is_match = |slot| self.held(slot).is_some_and(|entry| name_of(entry) == *name);
        self.by_name.find(self.hash(name), is_match).and_then(|slot| self.held(slot))
    }

    fn indexed(&self, index: PolicyIndex) -> Option<&Arc<PolicyEntry>> {
        let is_match = |slot| self.held(slot).is_some_and(|entry| entry.index() == index);
        self.by_index.find(number(index), is_match).and_then(|slot| self.held(slot))
    }

    fn held(&self, slot: u32) -> Option<&Arc<PolicyEntry>> {
        self.entries.get(slot as usize)?.as_ref()
    }

    fn hash(&self, of: &impl std::hash::Hash) -> u64 {
        self.hasher.hash_one(of)
    }
}

/// Hash of an index: the serial number first, as most share the direction.
fn number(index: PolicyIndex) -> u64 {
    /// Direction bits.
    const DIRECTION: u32 = 3;
    index.0.rotate_right(DIRECTION).into()
}

/// Insertion number of the policy in a slot.
fn seq_in(entries: &Entries, slot: u32) -> u64 {
    let entry = entries.get(slot as usize).and_then(Option::as_ref);
    entry.map_or(0, |entry| entry.precedence().insertion_seq())
}

fn name(policy: &Policy) -> PolicyIdentity {
    (policy.direction, policy.kind, policy.selector, policy.mark, policy.if_id)
}

fn name_of(entry: &PolicyEntry) -> PolicyIdentity {
    (entry.direction(), entry.kind(), entry.selector(), entry.mark(), entry.if_id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spd::table::tests::policy;

    fn add(store: &mut PolicyStore, port: u16, mark: u32) -> Arc<PolicyEntry> {
        let mut policy = policy(Direction::Out, 1);
        policy.selector.source_port = crate::PortMask::exactly(port);
        policy.mark = Mark { value: mark, mask: 1 };
        store.add(&policy, None, Moment(0)).unwrap()
    }

    #[test]
    fn store_frees_shared_fields_with_last_policy() {
        let mut store = PolicyStore::default();
        let entries: Vec<_> = (0..100).map(|port| add(&mut store, port, 0)).collect();
        let other = add(&mut store, 1, 1);
        assert_eq!(store.shared.len(), 2);
        store.remove(&other);
        assert_eq!(store.shared.len(), 1);
        entries.iter().for_each(|entry| store.remove(entry));
        assert_eq!((store.shared.len(), store.by_name.len(), store.by_index.len()), (0, 0, 0));
        assert_eq!((store.iter().count(), store.from(PolicyCursor::default()).count()), (0, 0));
        assert_eq!(add(&mut store, 7, 7).slot(), entries[99].slot(), "slots are used again");
    }
}
