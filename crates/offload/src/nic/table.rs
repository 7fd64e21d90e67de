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
        if association.direction == Direction::In {
            let id = association.id();
            self.received.insert((id.destination, id.spi), association.handle);
        }
        self.by_handle.insert(association.handle, association);
    }

    /// Nothing goes through it any more.
    pub(super) fn delete(&mut self, handle: Handle) {
        let Some(association) = self.by_handle.get_mut(&handle) else { return };
        if association.standing == Standing::Deleted {
            return;
        }
        association.standing = Standing::Deleted;
        self.free.push(Reverse(association.slot));
        let id = association.id();
        let name = (id.destination, id.spi);
        if self.received.get(&name) == Some(&handle) {
            self.received.remove(&name);
        }
    }

    pub(super) fn free(&mut self, handle: Handle) {
        self.delete(handle);
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

    /// Those through which packets go, by their place in the table.
    pub(super) fn in_order(&self) -> Vec<&Association> {
        let live = |association: &&Association| association.standing == Standing::Live;
        let mut all: Vec<_> = self.by_handle.values().filter(live).collect();
        all.sort_unstable_by_key(|association| association.slot);
        all
    }
}
