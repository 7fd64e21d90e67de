//! The states of a device: by handle, and received ones by SPI and destination.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::IpAddr,
};

use foldhash::fast::RandomState;
use uxfrm_engine::{Direction, Handle, Spi};

use super::association::{Association, Standing};

/// All states that a device has, deleted ones that are not yet freed with them.
#[derive(Debug, Default)]
pub(super) struct StateTable {
    by_handle: HashMap<Handle, Association, RandomState>,
    received: HashMap<(IpAddr, Spi), Handle, RandomState>,
    free: BinaryHeap<Reverse<usize>>,
    slots: usize,
}

impl StateTable {
    pub(super) fn insert(&mut self, mut association: Association) {
        association.slot = match self.free.pop() {
            Some(Reverse(slot)) => slot,
            None => {
                self.slots += 1;
                self.slots - 1
            }
        };
        self.by_handle.insert(association.handle, association);
    }

    /// Packets go through it from now on; of two with the same names the one that was opened last receives.
    pub(super) fn open(&mut self, handle: Handle) {
        let Some(association) = self.by_handle.get_mut(&handle) else { return };
        if association.standing != Standing::Waiting {
            return;
        }
        association.standing = Standing::Live;
        if association.direction == Direction::In {
            let id = association.id();
            self.received.insert((id.destination, id.spi), handle);
        }
    }

    /// Nothing goes through it any more, and what was handed over before only while it is `Deleted`.
    pub(super) fn delete(&mut self, handle: Handle, standing: Standing) {
        let Some(association) = self.by_handle.get_mut(&handle) else { return };
        if !association.standing.is_held() {
            return;
        }
        association.standing = standing;
        self.free.push(Reverse(association.slot));
        let id = association.id();
        let name = (id.destination, id.spi);
        if self.received.get(&name) == Some(&handle) {
            self.received.remove(&name);
        }
    }

    pub(super) fn free(&mut self, handle: Handle) {
        self.delete(handle, Standing::Closed);
        self.by_handle.remove(&handle);
    }

    pub(super) fn of(&self, handle: Handle) -> Option<&Association> {
        self.by_handle.get(&handle)
    }

    pub(super) fn of_mut(&mut self, handle: Handle) -> Option<&mut Association> {
        self.by_handle.get_mut(&handle)
    }

    /// The state that receives ESP with these names.
    pub(super) fn receiving(&self, destination: IpAddr, spi: Spi) -> Option<&Association> {
        self.received.get(&(destination, spi)).and_then(|handle| self.by_handle.get(handle))
    }

    /// Those that have a place in the table, by that.
    pub(super) fn in_order(&self) -> Vec<&Association> {
        let held = |association: &&Association| association.standing.is_held();
        let mut all: Vec<_> = self.by_handle.values().filter(held).collect();
        all.sort_unstable_by_key(|association| association.slot);
        all
    }
}
