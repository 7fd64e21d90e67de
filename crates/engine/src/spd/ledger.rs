//! The writer's side of the SPD: policies by name and in order.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::{
    Direction, Error, IfId, Mark, Moment, Place, Policy, PolicyEntry, PolicyIndex, PolicyKey,
    PolicyKind, PolicyName, Selector, Spd, spd::check,
};

/// All policies. What it does to them, it does to the [`Spd`] that workers will read as well.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    lists: [[BTreeMap<Place, Arc<PolicyEntry>>; 2]; 3],
    by_name: HashMap<Name, Arc<PolicyEntry>, foldhash::fast::RandomState>,
    by_index: HashMap<PolicyIndex, Arc<PolicyEntry>, foldhash::fast::RandomState>,
    age: u64,
    serial: u32,
    slots: u32,
    free_slots: Vec<u32>,
}

type Name = (Direction, PolicyKind, Selector, Mark, IfId);

impl Ledger {
    /// Adds a policy whose name is new.
    pub(crate) fn add(
        &mut self,
        policy: Policy,
        now: Moment,
        spd: &mut Spd,
    ) -> Result<Arc<PolicyEntry>, Error> {
        check::verify(&policy)?;
        if self.by_name.contains_key(&name(&policy)) {
            return Err(Error::Exists);
        }
        let index = self.index(&policy);
        Ok(self.insert(policy, index, now, spd))
    }

    /// Adds a policy; one of the same name gives it its index and goes. It stands behind its equals, as a new one does. It, and the
    /// one that went.
    pub(crate) fn update(
        &mut self,
        policy: Policy,
        now: Moment,
        spd: &mut Spd,
    ) -> Result<(Arc<PolicyEntry>, Option<Arc<PolicyEntry>>), Error> {
        check::verify(&policy)?;
        let old = self.by_name.get(&name(&policy)).cloned();
        let index = old.as_ref().map_or_else(|| self.index(&policy), |old| old.index());
        if let Some(old) = &old {
            self.remove(old, spd);
        }
        Ok((self.insert(policy, index, now, spd), old))
    }

    /// The policy of that name.
    pub(crate) fn find(&self, key: &PolicyKey) -> Option<&Arc<PolicyEntry>> {
        match &key.name {
            PolicyName::Selector(selector) => {
                self.by_name.get(&(key.direction, key.kind, *selector, key.mark, key.if_id))
            }
            PolicyName::Index(index) => self.by_index.get(index).filter(|entry| {
                let policy = entry.policy();
                (policy.direction, policy.kind, policy.mark, policy.if_id)
                    == (key.direction, key.kind, key.mark, key.if_id)
            }),
        }
    }

    /// All policies; sub before main in each direction.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<PolicyEntry>> {
        self.lists.iter().flatten().flat_map(BTreeMap::values)
    }

    /// Whether this very entry is in.
    pub(crate) fn holds(&self, entry: &Arc<PolicyEntry>) -> bool {
        self.by_index.get(&entry.index()).is_some_and(|held| Arc::ptr_eq(held, entry))
    }

    pub(crate) fn remove(&mut self, entry: &Arc<PolicyEntry>, spd: &mut Spd) {
        let policy = entry.policy();
        self.list(policy.kind, policy.direction).remove(&entry.place());
        spd.remove(entry);
        self.free_slots.push(entry.slot());
        self.by_name.remove(&name(policy));
        self.by_index.remove(&entry.index());
    }

    fn insert(
        &mut self,
        policy: Policy,
        index: PolicyIndex,
        now: Moment,
        spd: &mut Spd,
    ) -> Arc<PolicyEntry> {
        self.age += 1;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        let (kind, direction, name) = (policy.kind, policy.direction, name(&policy));
        let entry = Arc::new(PolicyEntry::new(policy, index, slot, self.age, now));
        self.list(kind, direction).insert(entry.place(), Arc::clone(&entry));
        spd.insert(&entry);
        self.by_name.insert(name, Arc::clone(&entry));
        self.by_index.insert(index, Arc::clone(&entry));
        entry
    }

    /// The index asked for if it is free, else the next free one.
    fn index(&mut self, policy: &Policy) -> PolicyIndex {
        let mut index = policy.index;
        while index.0 == 0 || self.by_index.contains_key(&index) {
            index = check::index(self.serial, policy.direction);
            self.serial = self.serial.wrapping_add(1);
        }
        index
    }

    fn list(
        &mut self,
        kind: PolicyKind,
        direction: Direction,
    ) -> &mut BTreeMap<Place, Arc<PolicyEntry>> {
        &mut self.lists[direction as usize][kind as usize]
    }
}

/// What two policies must not share.
fn name(policy: &Policy) -> Name {
    (policy.direction, policy.kind, policy.selector, policy.mark, policy.if_id)
}
