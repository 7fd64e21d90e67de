//! Sets: many keys that one rule looks up in a kernel hash table.

use std::fmt;

use super::message::{Batch, Kind};
use super::model::MessageSubject;
use uxfrm_netlink_wire::NetlinkFlags;

/// The name of a set in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetId(pub u32);

/// A set of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name, unused before in the table.
    pub id: SetId,
    /// Its keys.
    pub keys: SetKeys,
}

/// Keys of one length: values of some fields, concatenated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetKeys {
    length: usize,
    bytes: Vec<u8>,
}

impl SetKeys {
    /// No keys yet; each will have `length` bytes, of which a set takes 4 to 64.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { length: length.max(1), bytes: Vec::new() }
    }

    /// Adds a key, which must have the set's length.
    pub fn push(&mut self, key: &[u8]) {
        debug_assert_eq!(key.len(), self.length);
        self.bytes.extend(key);
    }

    /// One after the other.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.length)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of each.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Splits into two halves; `None` when one would be empty.
    pub(super) fn halves(&self) -> Option<[Self; 2]> {
        let count = self.iter().len();
        let middle = Some(count / 2).filter(|middle| *middle > 0)? * self.length;
        let (first, second) = self.bytes.split_at(middle);
        Some([first, second].map(|bytes| Self { length: self.length, bytes: bytes.to_vec() }))
    }
}

impl fmt::Display for SetId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "set{}", self.0)
    }
}

impl SetId {
    /// Adds it, empty, for keys of `length` bytes. Without sizes and intervals the kernel chooses a
    /// growing hash table.
    pub(super) fn add(self, table: &str, length: usize, batch: &mut Batch) {
        batch.push(MessageSubject::Set(self), Kind::NewSet, NetlinkFlags::CREATE, |set| {
            set.text(1, table);
            set.text(2, &self.to_string());
            set.be32(4, INTEGER);
            set.be32(5, u32::try_from(length).unwrap_or(u32::MAX));
            set.be32(10, self.0);
        });
    }

    pub(super) fn delete(self, table: &str, batch: &mut Batch) {
        batch.push(MessageSubject::Set(self), Kind::DeleteSet, NetlinkFlags::empty(), |set| {
            set.text(1, table);
            set.text(2, &self.to_string());
        });
    }

    /// Adds keys (`NewElements`) or removes them (`DeleteElements`).
    pub(super) fn elements(self, kind: Kind, table: &str, keys: &SetKeys, batch: &mut Batch) {
        let flags =
            if kind == Kind::NewElements { NetlinkFlags::CREATE } else { NetlinkFlags::empty() };
        let each = ELEMENT + keys.length.next_multiple_of(4);
        for some in keys.bytes.chunks(MOST / each * keys.length) {
            batch.push(MessageSubject::Set(self), kind, flags, |elements| {
                elements.text(1, table);
                elements.text(2, &self.to_string());
                elements.nest(3, |list| {
                    for key in some.chunks_exact(keys.length) {
                        list.nest(1, |element| {
                            element.nest(1, |data| data.bytes(1, key));
                        });
                    }
                });
            });
        }
    }
}

/// `nft list`'s type of purely numeric keys; the kernel ignores it.
const INTEGER: u32 = 4;

/// Overhead per key in bytes: element, key, value.
const ELEMENT: usize = 12;

/// Bytes of elements per message: an attribute has less than 64 KiB.
const MOST: usize = 60_000;
