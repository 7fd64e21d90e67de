//! The journal: lines of text in groups, each group ended by a line with its generation and
//! checksum. Of several lines about one thing the last one counts. A group is added and synced in
//! one go; when most lines are out of date, the file is replaced as a whole.
//!
//! ```text
//! uxfrm-sequences 1 ID
//! sent KEY DESTINATION SPI MARK/MASK HIGHEST
//! prefix KEY BITS
//! received KEY DESTINATION SPI MARK/MASK FROM EDGE
//! forgotten KEY DESTINATION SPI MARK/MASK
//! commit GENERATION CRC32
//! ```
//!
//! A crash may leave a group half written. Nobody relied on that one: what follows the last whole
//! group is nothing. The file is longer than its lines, so that a full disk still takes what must
//! be written; the rest is zeros.

use std::{fmt, io};

use super::{disk::Disk, sa_name::SaName};

/// Lines that may be out of date before the file is replaced, besides as many as are not.
const SLACK: usize = if cfg!(test) { 16 } else { 4096 };
/// Bytes that are kept free for lines to come.
const ROOM: u64 = 1 << 20;
/// Lines of a group at the most where the file is replaced, so that damage to one loses few.
const GROUP: usize = 1024;
const VERSION: &str = "1";

/// Distinguishes a store from all others and from its own copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreId {
    /// Random, drawn when the store was made.
    pub(crate) id: u128,
    /// Groups that were committed.
    pub(crate) generation: u64,
}

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A state may have sent all numbers up to this one.
    Sent(SaName, u64),
    /// A prefix of IVs was drawn under a key.
    Prefix(u128, u32),
    /// A state received the first number, and may have received all up to the second.
    Received(SaName, u64, u64),
    /// What a state received counts no more.
    Forgotten(SaName),
}

/// What stands in a journal.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// `None`: it has no beginning that can be read.
    pub(super) identity: Option<StoreId>,
    pub(super) records: Vec<Record>,
    /// Where the last whole group ends.
    end: usize,
    /// Groups that are not what was written, with whole ones behind them.
    pub(super) damaged: usize,
    /// Whether there is anything but zeros.
    pub(super) has_text: bool,
}

/// The journal, and what is to be added to it.
#[derive(Debug)]
pub(super) struct Journal {
    disk: Box<dyn Disk>,
    identity: StoreId,
    /// Where the next group is written; `None` when the file has to be replaced first.
    end: Option<u64>,
    /// Whether another process has written the file until now, so that there is no need of another
    /// one.
    follows: bool,
    /// What was written is not found under its name any more, and its place could not be made anew
    /// yet.
    is_away: bool,
    room: u64,
    /// Lines in the file.
    lines: usize,
    text: String,
    new_lines: usize,
}

impl Journal {
    /// Nothing is written before something is added.
    pub(super) const fn new(disk: Box<dyn Disk>, identity: StoreId) -> Self {
        Self {
            disk,
            identity,
            end: None,
            follows: false,
            is_away: false,
            room: 0,
            lines: 0,
            text: String::new(),
            new_lines: 0,
        }
    }

    /// Another process has written the journal until now, and all that it knows is noted here, too,
    /// or stands there.
    pub(super) const fn follow(&mut self) {
        self.follows = true;
    }

    pub(super) const fn identity(&self) -> StoreId {
        self.identity
    }

    /// Adds a line at the next [`Journal::commit`].
    pub(super) fn note(&mut self, record: Record) {
        self.text.push_str(&record.to_string());
        self.new_lines += 1;
    }

    /// Whether something was noted since the last [`Journal::commit`].
    pub(super) const fn has_news(&self) -> bool {
        self.new_lines > 0
    }

    /// Reads what is on the disk now: its records if it is of a later time than what was written
    /// last, as memory was taken back. All is written anew by the next [`Journal::commit`].
    pub(super) fn read_again(&mut self) -> Option<Vec<Record>> {
        let bytes = self.disk.read().ok().flatten();
        self.end = None;
        let found = read(&bytes?).ok()?;
        let StoreId { id, generation } = found.identity?;
        if id != self.identity.id || generation <= self.identity.generation {
            return None;
        }
        self.identity.generation = generation;
        Some(found.records)
    }

    /// Whether others still find what is written under its name. What they don't find is to be
    /// replaced.
    ///
    /// # Errors
    /// When that can't be told, or can't be made anew: the next call tries again.
    pub(super) fn check_place(&mut self) -> io::Result<bool> {
        if !self.is_away {
            if self.disk.is_in_place()? {
                return Ok(true);
            }
            (self.end, self.is_away) = (None, true);
        }
        self.disk.reopen()?;
        self.is_away = false;
        Ok(false)
    }

    /// Brings what was noted to the disk. `current` has so many records, of all that counts, what
    /// was noted included.
    ///
    /// # Errors
    /// When it can't be written: nothing of it counts then, and it is written with what is noted
    /// next.
    pub(super) fn commit(
        &mut self,
        count: usize,
        current: impl Iterator<Item = Record>,
    ) -> io::Result<()> {
        if self.is_away {
            return Err(io::Error::other("its directory is gone and can't be made anew yet"));
        }
        if self.new_lines == 0 && self.end.is_some() {
            return Ok(());
        }
        let generation = self.identity.generation + 1;
        let is_outdated = self.lines + self.new_lines > 2 * count + SLACK;
        match self.end {
            Some(end) if !is_outdated => self.append(end, generation)?,
            // A full disk may have no room for another file, and still for a few lines.
            Some(end) => {
                self.replace(count, current, generation)
                    .or_else(|_| self.append(end, generation))?;
            }
            None => match self.replace(count, current, generation) {
                Err(_) if self.follows => {
                    let end = self.resume()?;
                    self.append(end, self.identity.generation + 1)?;
                }
                replaced => replaced?,
            },
        }
        self.identity.generation = generation.max(self.identity.generation + 1);
        self.text.clear();
        self.new_lines = 0;
        Ok(())
    }

    /// Goes on in the file of the process before, which has kept room that a full disk does not
    /// give twice.
    fn resume(&mut self) -> io::Result<u64> {
        let bytes = self.disk.resume()?.unwrap_or_default();
        let found = read(&bytes)?;
        let identity = found.identity.filter(|found| found.id == self.identity.id);
        let identity = identity.ok_or_else(|| io::Error::other("it is another store's"))?;
        self.identity.generation = identity.generation.max(self.identity.generation);
        self.room = bytes.len() as u64;
        self.lines = bytes[..found.end].iter().filter(|byte| **byte == b'\n').count();
        Ok(found.end as u64)
    }

    fn append(&mut self, end: u64, generation: u64) -> io::Result<()> {
        let group = sealed(&self.text, generation);
        let length = end + group.len() as u64;
        if length + ROOM / 2 > self.room && self.disk.make_room(length + ROOM).is_ok() {
            self.room = length + ROOM;
        }
        self.disk.write(end, group.as_bytes())?;
        self.end = Some(length);
        self.lines += self.new_lines;
        Ok(())
    }

    /// A crash leaves the old file or the new one.
    fn replace(
        &mut self,
        count: usize,
        current: impl Iterator<Item = Record>,
        generation: u64,
    ) -> io::Result<()> {
        let mut text = String::new();
        let mut group = format!("uxfrm-sequences {VERSION} {:032x}\n", self.identity.id);
        for (place, record) in (1..).zip(current) {
            group.push_str(&record.to_string());
            if place % GROUP == 0 {
                text.push_str(&sealed(&group, generation));
                group.clear();
            }
        }
        text.push_str(&sealed(&group, generation));
        let length = text.len() as u64;
        self.disk.replace(text.as_bytes(), length + ROOM)?;
        (self.end, self.room, self.lines) = (Some(length), length + ROOM, count);
        Ok(())
    }
}

/// A group with its last line.
fn sealed(group: &str, generation: u64) -> String {
    let line = format!("commit {generation}");
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(group.as_bytes());
    checksum.update(line.as_bytes());
    format!("{group}{line} {:08x}\n", checksum.finalize())
}

/// Reads a journal: what was committed and is what it was.
///
/// # Errors
/// A journal of another version, which a newer release wrote.
pub(super) fn read(bytes: &[u8]) -> io::Result<Contents> {
    let has_text = bytes.iter().any(|byte| *byte != 0);
    let mut contents = Contents { has_text, ..Contents::default() };
    let (mut broken, mut start, mut at) = (0, 0, 0);
    while let Some(length) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        let (line, group) = (&bytes[at..=at + length], &bytes[start..=at + length]);
        at += length + 1;
        let Some((generation, is_whole)) = commit_of(line, group) else { continue };
        start = at;
        match str::from_utf8(group).ok().filter(|_| is_whole) {
            Some(text) => {
                contents.take(text, generation)?;
                contents.end = at;
                contents.damaged += std::mem::take(&mut broken);
            }
            None => broken += 1,
        }
    }
    Ok(contents)
}

/// Of the last line of a group, its generation and whether the group is what was written; `None`
/// for other lines.
fn commit_of(line: &[u8], group: &[u8]) -> Option<(u64, bool)> {
    let text = str::from_utf8(line).ok()?.strip_prefix("commit ")?.trim_end();
    let (generation, checksum) = text.split_once(' ')?;
    let covered = &group[..group.len() - checksum.len() - 2];
    let is_whole = u32::from_str_radix(checksum, 16) == Ok(crc32fast::hash(covered));
    Some((generation.parse().ok()?, is_whole))
}

impl Contents {
    fn take(&mut self, group: &str, generation: u64) -> io::Result<()> {
        for line in group.lines() {
            if let Some(header) = line.strip_prefix("uxfrm-sequences ") {
                let (version, id) = header.split_once(' ').unwrap_or((header, ""));
                if version != VERSION {
                    let reason =
                        format!("format {version} of a newer release; this one reads {VERSION}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
                let id = u128::from_str_radix(id, 16).unwrap_or(0);
                self.identity = Some(StoreId { id, generation });
            } else {
                self.records.extend(parse(line));
            }
        }
        // Without a beginning the rest may be of any store, and counts all the same: it names keys.
        self.identity.iter_mut().for_each(|identity| identity.generation = generation);
        Ok(())
    }
}

impl fmt::Display for Record {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sent(state, highest) => writeln!(out, "sent {state} {highest}"),
            Self::Prefix(key, bits) => writeln!(out, "prefix {key:032x} {bits:08x}"),
            Self::Received(state, from, edge) => writeln!(out, "received {state} {from} {edge}"),
            Self::Forgotten(state) => writeln!(out, "forgotten {state}"),
        }
    }
}

/// What a line says; `None` for a group's last.
fn parse(line: &str) -> Option<Record> {
    let (kind, rest) = line.split_once(' ')?;
    match kind {
        "sent" => {
            let (state, highest) = rest.rsplit_once(' ')?;
            Some(Record::Sent(state.parse().ok()?, highest.parse().ok()?))
        }
        "prefix" => {
            let (key, bits) = rest.split_once(' ')?;
            let key = u128::from_str_radix(key, 16).ok()?;
            Some(Record::Prefix(key, u32::from_str_radix(bits, 16).ok()?))
        }
        "received" => {
            let (rest, edge) = rest.rsplit_once(' ')?;
            let (state, from) = rest.rsplit_once(' ')?;
            Some(Record::Received(state.parse().ok()?, from.parse().ok()?, edge.parse().ok()?))
        }
        "forgotten" => Some(Record::Forgotten(rest.parse().ok()?)),
        _ => None,
    }
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
#[cfg(test)]
mod tests;
