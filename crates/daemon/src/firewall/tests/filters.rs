//! Filters that watch how a table changes.

use std::{cell::RefCell, rc::Rc};

use uxfrm_io::nftables::{
    Error, PacketFilter, RuleId, RuleVerdict, SamplePacket, SetKeys, SimulatedTable, Table,
    TableChange,
};

use super::{CHAINS, ChainKind, random::Plain};

/// A replica that notes after each single change which of its packets pass.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) replica: SimulatedTable,
    pub(super) packets: Vec<Plain>,
    pub(super) seen: Vec<Vec<bool>>,
    /// How many single changes it still makes, if it refuses some.
    pub(super) room: Option<usize>,
    /// Whether all rules together are too many for a transaction.
    pub(super) is_full: bool,
    /// The error that all rules together are refused with.
    pub(super) refuses_tables: Option<i32>,
    /// How often they were.
    pub(super) refused: usize,
}

impl Watched {
    pub(super) fn passing(&self) -> Vec<bool> {
        let of_chain = |(part, chain)| {
            let judge = move |packet: &Plain| self.replica.judge(chain, &packet.sample(part)).0;
            self.packets.iter().map(move |packet| judge(packet) == RuleVerdict::Accept)
        };
        // What tells of them, where the kernel has such a chain.
        let telling = self.packets.iter().map(Plain::told).map(|error| {
            self.replica.judge("quoted", &error.sample(ChainKind::QuotedIn)).0
                == RuleVerdict::Accept
        });
        CHAINS.into_iter().flat_map(of_chain).chain(telling).collect()
    }
}

/// A change key by key.
pub(super) fn pieces(change: &TableChange) -> Vec<TableChange> {
    let each = |keys: &SetKeys| {
        let one = |key: &[u8]| {
            let mut one = SetKeys::new(key.len());
            one.push(key);
            one
        };
        keys.iter().map(one).collect::<Vec<_>>()
    };
    match change {
        TableChange::AddKeys { set, keys } => {
            each(keys).into_iter().map(|keys| TableChange::AddKeys { set: *set, keys }).collect()
        }
        TableChange::DeleteKeys { set, keys } => {
            each(keys).into_iter().map(|keys| TableChange::DeleteKeys { set: *set, keys }).collect()
        }
        TableChange::AddRule { .. }
        | TableChange::DeleteRule { .. }
        | TableChange::AddSet { .. }
        | TableChange::DeleteSet { .. } => vec![change.clone()],
    }
}

impl PacketFilter for Watched {
    fn install(&mut self, table: &Table) -> Result<(), Error> {
        self.replica.install(table)
    }

    fn replace_rules(&mut self, table: &Table) -> Result<(), Error> {
        if self.is_full {
            return Err(too_long());
        }
        if let Some(errno) = self.refuses_tables {
            self.refused += 1;
            return Err(refused(errno));
        }
        self.replica.replace_rules(table)
    }

    fn change(&mut self, table: &str, changes: &[TableChange]) -> Result<Vec<RuleId>, Error> {
        let mut made = Vec::new();
        for (place, piece) in changes.iter().flat_map(pieces).enumerate() {
            if self.room == Some(0) {
                let error = refused(12);
                return Err(if place == 0 { error } else { Error::Halfway(Box::new(error)) });
            }
            self.room = self.room.map(|room| room - 1);
            made.extend(self.replica.change(table, &[piece])?);
            let now = self.passing();
            self.seen.push(now);
        }
        Ok(made)
    }

    fn remove(&mut self, table: &str) -> Result<(), Error> {
        self.replica.remove(table)
    }

    fn has(&mut self, table: &str) -> Result<bool, Error> {
        self.replica.has(table)
    }

    fn rules(&mut self, table: &str, chain: &str) -> Result<Vec<RuleId>, Error> {
        self.replica.rules(table, chain)
    }
}

/// A replica that takes no table with sets at once.
#[derive(Debug, Default)]
pub(super) struct Narrow {
    pub(super) replica: SimulatedTable,
    /// What became of a packet after each time that all rules were told, or went.
    pub(super) judged: Rc<RefCell<Vec<RuleVerdict>>>,
    pub(super) packet: Vec<u8>,
    /// Rules of a chain that are too many.
    pub(super) too_many: Option<usize>,
}

impl Narrow {
    pub(super) fn judge(&self) {
        let sample = SamplePacket { bytes: &self.packet, mark: 0, came_by: 0 };
        self.judged.borrow_mut().push(self.replica.judge("out", &sample).0);
    }
}

impl PacketFilter for Narrow {
    fn install(&mut self, table: &Table) -> Result<(), Error> {
        if !table.sets.is_empty() {
            return Err(too_long());
        }
        self.replica.install(table)?;
        self.judge();
        Ok(())
    }

    fn replace_rules(&mut self, table: &Table) -> Result<(), Error> {
        if table.chains.iter().any(|chain| Some(chain.rules.len()) == self.too_many) {
            return Err(too_long());
        }
        if !self.replica.has(&table.name)? {
            return self.install(table);
        }
        self.replica.replace_rules(table)?;
        self.judge();
        Ok(())
    }

    fn change(&mut self, table: &str, changes: &[TableChange]) -> Result<Vec<RuleId>, Error> {
        self.replica.change(table, changes)
    }

    fn remove(&mut self, table: &str) -> Result<(), Error> {
        self.replica.remove(table)?;
        self.judge();
        Ok(())
    }

    fn has(&mut self, table: &str) -> Result<bool, Error> {
        self.replica.has(table)
    }

    fn rules(&mut self, table: &str, chain: &str) -> Result<Vec<RuleId>, Error> {
        self.replica.rules(table, chain)
    }
}

fn too_long() -> Error {
    Error::TooLong { request: "table".to_owned(), bytes: 0 }
}

fn refused(errno: i32) -> Error {
    Error::Refused { request: "table".to_owned(), kernel: std::io::Error::from_raw_os_error(errno) }
}
