//! Use of a device's tables.

use std::{collections::HashMap, net::IpAddr};

use uxfrm_engine::Direction;

use crate::profile::{Table, TableSizes};

/// SAs of a whole device, or of one function.
#[derive(Clone, Debug, Default)]
pub(super) struct TableUsage {
    pub(super) receiving: usize,
    pub(super) transmitting: usize,
    /// Receiving states by destination.
    addresses: HashMap<IpAddr, usize>,
}

/// Sizes and use when an SA requests an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableLimits<'a> {
    /// Sizes and use of the device, and of the requesting function.
    pub(super) limits: [(TableSizes, &'a TableUsage); 2],
    /// [`Fault::FullTables`](crate::Fault::FullTables)
    pub(super) pretended_full: bool,
}

impl TableUsage {
    pub(super) fn enter(&mut self, direction: Direction, destination: IpAddr) {
        if direction == Direction::In {
            self.receiving += 1;
            *self.addresses.entry(destination).or_default() += 1;
        } else {
            self.transmitting += 1;
        }
    }

    pub(super) fn leave(&mut self, direction: Direction, destination: IpAddr) {
        if direction != Direction::In {
            self.transmitting -= 1;
            return;
        }
        self.receiving -= 1;
        if let Some(count) = self.addresses.get_mut(&destination) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&destination);
            }
        }
    }

    pub(super) fn addresses(&self) -> usize {
        self.addresses.len()
    }

    fn has(&self, sizes: TableSizes, table: Table, destination: IpAddr) -> bool {
        let below = |used: usize, size: Option<usize>| size.is_none_or(|size| used < size);
        match table {
            Table::Receive => below(self.receiving, sizes.receive),
            Table::Transmit => below(self.transmitting, sizes.transmit),
            Table::Both => below(self.receiving + self.transmitting, sizes.both),
            Table::Addresses => {
                self.addresses.contains_key(&destination)
                    || below(self.addresses.len(), sizes.addresses)
            }
        }
    }
}

impl TableLimits<'_> {
    /// Whether `table` has room for an SA to `destination`.
    pub(crate) fn has(&self, table: Table, destination: IpAddr) -> bool {
        let within =
            |(sizes, tally): &(TableSizes, &TableUsage)| tally.has(*sizes, table, destination);
        !self.pretended_full && self.limits.iter().all(within)
    }

    /// Whether every table has room, including those that the driver does not check.
    pub(super) fn has_any(&self, direction: Direction, destination: IpAddr) -> bool {
        let own: &[Table] = match direction {
            Direction::In => &[Table::Receive, Table::Addresses],
            Direction::Out | Direction::Forward => &[Table::Transmit],
        };
        self.has(Table::Both, destination) && own.iter().all(|table| self.has(*table, destination))
    }
}
