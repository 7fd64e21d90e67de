//! Counts the policies that want each set key. Keys of one length lie in a table without pointers,
//! as there may be a million.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
};

use foldhash::fast::RandomState;

/// Counts of keys, by their longest length.
#[derive(Debug)]
pub(super) enum KeyRefcounts {
    Two(Counts<8>),
    Four(Counts<16>),
    Eight(Counts<32>),
    /// What a key has at the most: IPv6 addresses, a mark, a device, the protocol, GRE's flags and
    /// its key are 56 bytes.
    Sixteen(Counts<64>),
}

/// A table that could hold so many times what it does gives room back.
const SPARSE: usize = 8;

type Counts<const N: usize> = HashMap<[u8; N], u32, RandomState>;

impl KeyRefcounts {
    /// For keys of this length.
    pub(super) fn new(length: usize) -> Self {
        match length {
            0..=8 => Self::Two(HashMap::default()),
            9..=16 => Self::Four(HashMap::default()),
            17..=32 => Self::Eight(HashMap::default()),
            33.. => Self::Sixteen(HashMap::default()),
        }
    }

    /// One more; whether it is the first.
    pub(super) fn put(&mut self, key: &[u8]) -> bool {
        match self {
            Self::Two(counts) => put(counts, key),
            Self::Four(counts) => put(counts, key),
            Self::Eight(counts) => put(counts, key),
            Self::Sixteen(counts) => put(counts, key),
        }
    }

    /// One less; whether it was the last. `None` when there is none.
    pub(super) fn take(&mut self, key: &[u8]) -> Option<bool> {
        match self {
            Self::Two(counts) => take(counts, key),
            Self::Four(counts) => take(counts, key),
            Self::Eight(counts) => take(counts, key),
            Self::Sixteen(counts) => take(counts, key),
        }
    }

    pub(super) fn has(&self, key: &[u8]) -> bool {
        match self {
            Self::Two(counts) => counts.contains_key(&padded(key)),
            Self::Four(counts) => counts.contains_key(&padded(key)),
            Self::Eight(counts) => counts.contains_key(&padded(key)),
            Self::Sixteen(counts) => counts.contains_key(&padded(key)),
        }
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Two(counts) => counts.len(),
            Self::Four(counts) => counts.len(),
            Self::Eight(counts) => counts.len(),
            Self::Sixteen(counts) => counts.len(),
        }
    }

    /// All keys, each with zeros behind it up to the longest length.
    pub(super) fn iter(&self) -> Box<dyn Iterator<Item = &[u8]> + '_> {
        match self {
            Self::Two(counts) => Box::new(counts.keys().map(<[u8; 8]>::as_slice)),
            Self::Four(counts) => Box::new(counts.keys().map(<[u8; 16]>::as_slice)),
            Self::Eight(counts) => Box::new(counts.keys().map(<[u8; 32]>::as_slice)),
            Self::Sixteen(counts) => Box::new(counts.keys().map(<[u8; 64]>::as_slice)),
        }
    }
}

fn put<const N: usize>(counts: &mut Counts<N>, key: &[u8]) -> bool {
    let count = counts.entry(padded(key)).or_default();
    *count += 1;
    *count == 1
}

fn take<const N: usize>(counts: &mut Counts<N>, key: &[u8]) -> Option<bool> {
    let Entry::Occupied(mut count) = counts.entry(padded(key)) else { return None };
    *count.get_mut() -= 1;
    let is_last = *count.get() == 0;
    if is_last {
        count.remove();
        if counts.len() < counts.capacity() / SPARSE {
            counts.shrink_to(2 * counts.len());
        }
    }
    Some(is_last)
}

fn padded<const N: usize>(key: &[u8]) -> [u8; N]
where
    [u8; N]: Hash + Eq,
{
    let mut padded = [0; N];
    padded.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_refcounts_shrink_and_keep_other_keys() {
        let mut refcounts = KeyRefcounts::new(4);
        let key = |number: u32| number.to_be_bytes();
        (0..10_000).for_each(|number| assert!(refcounts.put(&key(number))));
        (100..10_000).for_each(|number| assert_eq!(refcounts.take(&key(number)), Some(true)));
        assert_eq!(refcounts.len(), 100);
        assert!((0..100).all(|number| refcounts.has(&key(number))));
        let KeyRefcounts::Two(counts) = refcounts else {
            panic!("keys of four bytes lie in eight")
        };
        assert!(counts.capacity() < 10_000 / SPARSE, "{}", counts.capacity());
    }
}
