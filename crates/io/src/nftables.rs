//! A table of the kernel's packet filter (`nf_tables`), through `NETLINK_NETFILTER`, without the
//! `nft` program or its libraries.
//!
//! Only what the guard needs: one `inet` table with named counters, chains at the hooks
//! *prerouting*, *input*, *forward* and *postrouting*, rules that compare [`Condition`]s, and sets
//! that rules look fields ([`SetKeyField`]) up in. Each change is one transaction: packets see all
//! of it or nothing. On Linux 6.9 and later the table is owned: nobody else may change it
//! meanwhile, `nft flush ruleset` leaves it alone, and it stays after our end. For set-up and
//! tear-down, not for the data path: it allocates.

#[cfg(any(test, fuzzing))]
pub(crate) mod bytes;
mod change;
mod condition;
mod field;
mod key_field;
mod message;
mod model;
mod set;
mod simulated_table;
mod watch;

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd},
    time::Duration,
};

use netlink_sys::{Socket, protocols::NETLINK_NETFILTER};
use nix::sys::{
    socket::{setsockopt, sockopt},
    time::TimeVal,
};

pub use change::{RuleId, TableChange};
pub use condition::Condition;
pub use field::Destination;
pub use key_field::{KeyValue, SetKeyField};
pub use model::{Chain, Hook, Rule, RuleVerdict, SetLookup, Table};
pub use set::{Set, SetId, SetKeys};
pub use simulated_table::{SamplePacket, SimulatedTable};
pub use watch::TableWatch;

use message::{Batch, Kind};
use model::{MessageSubject, Ownership};

use crate::message::{Answer, Payload, answers};
use uxfrm_netlink_wire::{NetlinkFlags, find_attribute};

/// The kernel answers at once; a later answer never comes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// New rules per transaction whose handles are requested: the socket might not hold more notices.
const TOLD: usize = 100;

/// Errors of a request; `request` names it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no `nf_tables`, or an older one without something that is needed.
    #[error("{request}: this kernel's nf_tables can't ({kernel})")]
    Unsupported {
        /// The request.
        request: String,
        /// The kernel's error, which is in the text; as a source it would be printed twice.
        kernel: io::Error,
    },
    /// Needs `CAP_NET_ADMIN` in the user namespace that owns the network namespace, or somebody
    /// else owns the table.
    #[error("{request}: not permitted (needs CAP_NET_ADMIN, and a table that nobody else owns)")]
    NotPermitted {
        /// The request.
        request: String,
    },
    /// There are more rules than fit into one transaction (`EMSGSIZE`).
    #[error(
        "{request}: {bytes} bytes of rules are too many for one transaction; raise net.core.wmem_max"
    )]
    TooLong {
        /// The request.
        request: String,
        /// Bytes of the transaction.
        bytes: usize,
    },
    /// Some of several transactions succeeded, and a later one failed.
    #[error(transparent)]
    Halfway(Box<Self>),
    /// Any other error of the kernel.
    #[error("{request}: {kernel}")]
    Refused {
        /// The request.
        request: String,
        /// The kernel's error, which is in the text; as a source it would be printed twice.
        kernel: io::Error,
    },
}

/// A connection to the network namespace that the thread was in when it was opened.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
    sequence: u32,
    /// Ownership of the table added last.
    ownership: Ownership,
}

/// Values of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterValue {
    /// The counter's name.
    pub name: String,
    /// Packets.
    pub packets: u64,
}

impl Nftables {
    /// Connects to the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the kernel has no `nf_tables`.
    pub fn open() -> Result<Self, Error> {
        let request = "nf_tables";
        let socket = connect().map_err(|error| Error::of(request, error))?;
        let mut nftables = Self { socket, sequence: 0, ownership: Ownership::Own };
        let generation =
            |sequence| message::question(Kind::GetGeneration, NetlinkFlags::ACK, sequence, |_| {});
        nftables.ask(generation).map_err(|error| Error::of(request, error))?;
        Ok(nftables)
    }

    /// Continues with a predecessor's socket, which owns the table.
    #[must_use]
    pub fn of_socket(socket: OwnedFd) -> Self {
        // SAFETY: the descriptor is ours alone, and open.
        let socket = unsafe { Socket::from_raw_fd(socket.into_raw_fd()) };
        Self { socket, sequence: 0, ownership: Ownership::Own }
    }

    /// The socket, for a successor process.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether others may remove the table added last, as `nft flush ruleset` would.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.ownership == Ownership::Shared
    }

    /// Values of a table's named counters since it was added; none if there is no such table.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counts(&mut self, table: &str) -> Result<Vec<CounterValue>, Error> {
        let question = |sequence| {
            message::question(Kind::GetObject, NetlinkFlags::DUMP, sequence, |object| {
                object.text(1, table)
            })
        };
        let found = self
            .ask(question)
            .map_err(|error| Error::of(&format!("counters of table {table}"), error))?;
        Ok(found.iter().filter_map(|object| count(table, object)).collect())
    }

    /// The names of all tables.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tables(&mut self) -> Result<Vec<String>, Error> {
        let question =
            |sequence| message::question(Kind::GetTable, NetlinkFlags::DUMP, sequence, |_| {});
        let found = self.ask(question).map_err(|error| Error::of("tables", error))?;
        Ok(found.iter().filter_map(|table| text(table, 1)).map(str::to_owned).collect())
    }

    /// The names of a table's sets.
    fn sets(&mut self, table: &str) -> Result<Vec<String>, Error> {
        let question = |sequence| {
            message::question(Kind::GetSet, NetlinkFlags::DUMP, sequence, |set| set.text(1, table))
        };
        let found = self
            .ask(question)
            .map_err(|error| Error::of(&format!("sets of table {table}"), error))?;
        let of_table = found.iter().filter(|set| text(set, 1) == Some(table));
        Ok(of_table.filter_map(|set| text(set, 2)).map(str::to_owned).collect())
    }

    /// No rule uses the new sets until they are complete.
    fn replace_in_pieces(
        &mut self,
        table: &Table,
        others: &[String],
        request: &str,
    ) -> Result<(), Error> {
        self.change(&table.name, &table.filling()).map_err(Error::alone)?;
        let mut batch = self.batch();
        table.describe_swap(others, &mut batch);
        self.commit(request, batch)
    }

    /// Removes the unused sets of a table, except `kept`.
    fn leave_sets(&mut self, table: &str, kept: &[String]) -> Result<(), Error> {
        let mut batch = self.batch();
        for set in self.sets(table)?.iter().filter(|set| !kept.contains(set)) {
            batch.push(MessageSubject::Table, Kind::DeleteSet, NetlinkFlags::empty(), |gone| {
                gone.text(1, table);
                gone.text(2, set);
            });
        }
        self.commit(&format!("sets of table {table}"), batch)
    }

    /// `None` when the changes cannot be split.
    fn change_in_halves(
        &mut self,
        table: &str,
        changes: &[TableChange],
    ) -> Result<Option<Vec<RuleId>>, Error> {
        let Some([first, second]) = change::halves(changes) else { return Ok(None) };
        let mut made = self.change(table, &first)?;
        let halfway = |error: Error| Error::Halfway(Box::new(error.alone()));
        made.extend(self.change(table, &second).map_err(halfway)?);
        Ok(Some(made))
    }

    fn change_at_once(
        &mut self,
        table: &str,
        changes: &[TableChange],
    ) -> Result<Vec<RuleId>, Error> {
        let mut batch = self.batch();
        for (place, change) in changes.iter().enumerate() {
            change.describe(table, place + 1, &mut batch);
        }
        self.commit_telling(&format!("rules of table {table}"), batch)
    }

    fn install_as(&mut self, table: &Table, ownership: Ownership) -> Result<(), Error> {
        let is_there = self.has(&table.name)?;
        let mut batch = self.batch();
        if is_there {
            delete(&table.name, &mut batch);
        }
        table.describe(ownership, &mut batch);
        self.commit(&format!("table {}", table.name), batch)?;
        self.ownership = ownership;
        Ok(())
    }

    fn batch(&mut self) -> Batch {
        self.sequence = self.sequence.wrapping_add(1);
        Batch::new(self.sequence)
    }

    /// Sends a transaction and waits for its end. The first of several errors counts.
    fn commit(&mut self, request: &str, batch: Batch) -> Result<(), Error> {
        self.commit_telling(request, batch).map(drop)
    }

    /// As [`Nftables::commit`], with the handles of added rules.
    fn commit_telling(&mut self, request: &str, mut batch: Batch) -> Result<Vec<RuleId>, Error> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.sequence = batch.last_sequence().wrapping_add(1);
        let bytes = batch.finish();
        let length = bytes.len();
        self.send(bytes).map_err(|error| match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Error::TooLong { request: request.to_owned(), bytes: length },
            _other => Error::of(request, error),
        })?;
        let mut first = None;
        let mut made = Vec::new();
        loop {
            match self.receive() {
                Ok(datagram) => {
                    made.extend(told(&datagram, &batch));
                    if read_results(&datagram, &batch, &mut first) {
                        break;
                    }
                }
                // So many errors that the last answers were lost; the first ones remain.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.drain(&batch, &mut first).map_err(|error| Error::of(request, error))?;
                    first.get_or_insert((None, libc::ENOBUFS));
                    break;
                }
                Err(error) => return Err(Error::of(request, error)),
            }
        }
        let Some((part, errno)) = first else { return Ok(made) };
        let request = part.map_or_else(|| request.to_owned(), |part| format!("{request}: {part}"));
        Err(Error::of(&request, io::Error::from_raw_os_error(errno)))
    }

    /// Reads the available results of a transaction, without waiting: until then the kernel sends
    /// no more.
    fn drain(
        &self,
        batch: &Batch,
        first: &mut Option<(Option<MessageSubject>, i32)>,
    ) -> io::Result<()> {
        self.socket.set_non_blocking(true)?;
        while let Ok(datagram) = self.receive() {
            read_results(&datagram, batch, first);
        }
        self.socket.set_non_blocking(false)
    }

    /// Sends a request; returns the attributes of each answer.
    fn ask(&mut self, question: impl Fn(u32) -> Vec<u8>) -> io::Result<Vec<Vec<u8>>> {
        self.sequence = self.sequence.wrapping_add(1);
        self.send(&question(self.sequence))?;
        let mut found = Vec::new();
        loop {
            let datagram = self.receive()?;
            for answer in answers(&datagram).filter(|answer| answer.sequence == self.sequence) {
                match answer.payload {
                    Payload::Result(0) | Payload::Done => return Ok(found),
                    Payload::Result(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    Payload::Attributes(attributes) => found.push(attributes.to_owned()),
                    Payload::Other => {}
                }
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        // A transaction is one datagram. Only root of the initial user namespace may exceed the
        // administrator's limit.
        let room = bytes.len().saturating_mul(2);
        if setsockopt(&self.socket, sockopt::SndBufForce, &room).is_err() {
            setsockopt(&self.socket, sockopt::SndBuf, &room)?;
        }
        self.socket.send(bytes, 0).map(drop)
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        self.socket.recv_from_full().map(|(datagram, _kernel)| datagram)
    }
}

/// A packet filter: the kernel's, or in tests a [`SimulatedTable`].
pub trait PacketFilter {
    /// Installs a table, replacing one of the same name; counters start at 0.
    ///
    /// # Errors
    /// The kernel's; nothing has changed then.
    fn install(&mut self, table: &Table) -> Result<(), Error>;

    /// Replaces all rules and sets of a table at once; counters go on. A missing table is added.
    /// Names of new sets must differ from existing ones.
    ///
    /// # Errors
    /// The kernel's; no rule has changed then.
    fn replace_rules(&mut self, table: &Table) -> Result<(), Error>;

    /// Changes single rules and sets of a table: at once, or in several transactions if one is too
    /// small. Returns the added rules in order.
    ///
    /// # Errors
    /// The kernel's; the first parts may have been applied.
    fn change(&mut self, table: &str, changes: &[TableChange]) -> Result<Vec<RuleId>, Error>;

    /// Removes a table with its content, if it exists.
    ///
    /// # Errors
    /// The kernel's.
    fn remove(&mut self, table: &str) -> Result<(), Error>;

    /// Whether a table exists.
    ///
    /// # Errors
    /// The kernel's.
    fn has(&mut self, table: &str) -> Result<bool, Error>;

    /// The rules of a chain in order.
    ///
    /// # Errors
    /// The kernel's.
    fn rules(&mut self, table: &str, chain: &str) -> Result<Vec<RuleId>, Error>;
}

impl PacketFilter for Nftables {
    fn install(&mut self, table: &Table) -> Result<(), Error> {
        match self.install_as(table, Ownership::Own) {
            Err(Error::Unsupported { .. }) => self.install_as(table, Ownership::Shared),
            result => result,
        }
    }

    fn replace_rules(&mut self, table: &Table) -> Result<(), Error> {
        if !self.has(&table.name)? {
            return self.install(table);
        }
        let others = self.sets(&table.name)?;
        let request = format!("rules of table {}", table.name);
        let mut batch = self.batch();
        table.describe_change(&others, &mut batch);
        match self.commit(&request, batch) {
            Err(Error::TooLong { .. }) => {
                let result = self.replace_in_pieces(table, &others, &request);
                if result.is_err() {
                    self.leave_sets(&table.name, &others)?;
                }
                result
            }
            result => result,
        }
    }

    fn change(&mut self, table: &str, changes: &[TableChange]) -> Result<Vec<RuleId>, Error> {
        if change::new_rules(changes) > TOLD
            && let Some(made) = self.change_in_halves(table, changes)?
        {
            return Ok(made);
        }
        match self.change_at_once(table, changes) {
            Err(error @ Error::TooLong { .. }) => {
                self.change_in_halves(table, changes)?.ok_or(error)
            }
            result => result,
        }
    }

    fn remove(&mut self, table: &str) -> Result<(), Error> {
        if !self.has(table)? {
            return Ok(());
        }
        let mut batch = self.batch();
        delete(table, &mut batch);
        self.commit(&format!("delete table {table}"), batch)
    }

    fn has(&mut self, table: &str) -> Result<bool, Error> {
        let question = |sequence| {
            message::question(Kind::GetTable, NetlinkFlags::ACK, sequence, |asked| {
                asked.text(1, table)
            })
        };
        match self.ask(question) {
            Ok(_table) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(Error::of(&format!("table {table}"), error)),
        }
    }

    fn rules(&mut self, table: &str, chain: &str) -> Result<Vec<RuleId>, Error> {
        let question = |sequence| {
            message::question(Kind::GetRule, NetlinkFlags::DUMP, sequence, |rule| {
                rule.text(1, table);
                rule.text(2, chain);
            })
        };
        let found = self
            .ask(question)
            .map_err(|error| Error::of(&format!("rules of chain {chain}"), error))?;
        let in_chain =
            |rule: &&Vec<u8>| text(rule, 1) == Some(table) && text(rule, 2) == Some(chain);
        Ok(found.iter().filter(in_chain).filter_map(|rule| handle(rule)).collect())
    }
}

impl Error {
    /// The kernel's errno.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotPermitted { .. } => libc::EPERM,
            Self::TooLong { .. } => libc::EMSGSIZE,
            Self::Halfway(error) => error.errno(),
            Self::Unsupported { kernel, .. } | Self::Refused { kernel, .. } => {
                kernel.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }

    /// Whether the kernel refused, so that nothing was applied; without an answer in time it may
    /// have been.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Halfway(_)) && !matches!(self.errno(), libc::EAGAIN | libc::EINTR)
    }

    /// Whether the kernel lacks the feature, or the object to change does not exist.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        match self {
            Self::Unsupported { .. } => true,
            Self::Halfway(error) => error.is_unsupported(),
            Self::NotPermitted { .. } | Self::TooLong { .. } | Self::Refused { .. } => false,
        }
    }

    /// The error without earlier transactions.
    fn alone(self) -> Self {
        match self {
            Self::Halfway(error) => *error,
            Self::Unsupported { .. }
            | Self::NotPermitted { .. }
            | Self::TooLong { .. }
            | Self::Refused { .. } => self,
        }
    }

    fn of(request: &str, kernel: io::Error) -> Self {
        let request = request.to_owned();
        match kernel.raw_os_error() {
            Some(
                libc::EPROTONOSUPPORT
                | libc::EAFNOSUPPORT
                | libc::EOPNOTSUPP
                | libc::EINVAL
                | libc::ENOENT
                | libc::ENOSYS,
            ) => Self::Unsupported { request, kernel },
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { request },
            _other => Self::Refused { request, kernel },
        }
    }
}

/// Finds the first error of a transaction and its subject; whether the last answer was among the
/// messages.
fn read_results(
    datagram: &[u8],
    batch: &Batch,
    first: &mut Option<(Option<MessageSubject>, i32)>,
) -> bool {
    for answer in answers(datagram) {
        let (part, is_begin) = (batch.part(answer.sequence), batch.begins_with(answer.sequence));
        let Payload::Result(errno) = answer.payload else { continue };
        if part.is_none() && !is_begin {
            continue; // of an earlier request
        }
        if errno != 0 {
            first.get_or_insert((part, errno));
        }
        if is_begin || answer.sequence == batch.last_sequence() {
            return true;
        }
    }
    false
}

/// Handles of the transaction's rules that a datagram reports.
fn told(datagram: &[u8], batch: &Batch) -> Vec<RuleId> {
    let of_batch = |answer: &Answer<'_>| batch.part(answer.sequence).is_some();
    let rule = |answer: Answer<'_>| match answer.payload {
        Payload::Attributes(attributes) => handle(attributes),
        Payload::Result(_) | Payload::Done | Payload::Other => None,
    };
    answers(datagram).filter(of_batch).filter_map(rule).collect()
}

/// A text attribute.
fn text(attributes: &[u8], kind: u16) -> Option<&str> {
    let bytes = find_attribute(attributes, kind)?;
    std::str::from_utf8(bytes.strip_suffix(&[0])?).ok()
}

/// `NFTA_RULE_HANDLE`
fn handle(rule: &[u8]) -> Option<RuleId> {
    let handle = find_attribute(rule, 3)?.try_into().ok()?;
    Some(RuleId(u64::from_be_bytes(handle)))
}

fn connect() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    // Error answers need not repeat the request.
    socket.set_cap_ack(true)?;
    let seconds = i64::try_from(REPLY_TIMEOUT.as_secs()).unwrap_or(i64::MAX);
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(seconds, 0))?;
    Ok(socket)
}

fn delete(name: &str, batch: &mut Batch) {
    batch.push(MessageSubject::Table, Kind::DeleteTable, NetlinkFlags::empty(), |table| {
        table.text(1, name)
    });
}

/// Parses a counter of `table` (`NFTA_OBJ_*`, `NFTA_COUNTER_PACKETS`).
fn count(table: &str, object: &[u8]) -> Option<CounterValue> {
    if text(object, 1)? != table {
        return None;
    }
    let packets = find_attribute(find_attribute(object, 4)?, 2)?;
    Some(CounterValue {
        name: text(object, 2)?.to_owned(),
        packets: u64::from_be_bytes(packets.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests;
