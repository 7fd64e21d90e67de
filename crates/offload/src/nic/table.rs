//! SA table of a device: by handle, and receiving ones by SPI and destination.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::IpAddr,
};

use foldhash::fast::RandomState;
use uxfrm_engine::{Direction, Handle, Spi};

use super::association::{Association, SaPhase};

/// All SAs of a device, including deleted ones that are not yet freed.
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

    /// Activates an SA; of two with the same SPI and destination the later one receives.
    pub(super) fn open(&mut self, handle: Handle) {
        let Some(association) = self.by_handle.get_mut(&handle) else { return };
        if association.phase != SaPhase::Waiting {
            return;
        }
        association.phase = SaPhase::Live;
        if association.direction == Direction::In {
            let id = association.id();
            self.received.insert((id.destination, id.spi), handle);
        }
    }

    /// Deactivates an SA; packets in flight still leave while it is `Deleted`.
    pub(super) fn delete(&mut self, handle: Handle, phase: SaPhase) {
        let Some(association) = self.by_handle.get_mut(&handle) else { return };
        if !association.phase.is_held() {
            return;
        }
        association.phase = phase;
        self.free.push(Reverse(association.slot));
        let id = association.id();
        let name = (id.destination, id.spi);
        if self.received.get(&name) == Some(&handle) {
            self.received.remove(&name);
        }
    }

    pub(super) fn free(&mut self, handle: Handle) {
        self.delete(handle, SaPhase::Closed);
        self.by_handle.remove(&handle);
    }

    pub(super) fn of(&self, handle: Handle) -> Option<&Association> {
        self.by_handle.get(&handle)
    }

    pub(super) fn of_mut(&mut self, handle: Handle) -> Option<&mut Association> {
        self.by_handle.get_mut(&handle)
    }

    /// The SA that receives ESP of this destination and SPI.
    pub(super) fn receiving(&self, destination: IpAddr, spi: Spi) -> Option<&Association> {
        self.received.get(&(destination, spi)).and_then(|handle| self.by_handle.get(handle))
    }

    /// SAs in table order.
    pub(super) fn in_order(&self) -> Vec<&Association> {
        let held = |association: &&Association| association.phase.is_held();
        let mut all: Vec<_> = self.by_handle.values().filter(held).collect();
        all.sort_unstable_by_key(|association| association.slot);
        all
    }
}
