//! Drop counts by subject: exact, sparse, and bounded.
//!
//! A key is a reason with the state, policy and device that are known; packets of which nothing is
//! known have no key. With [`MAX_TALLIES`] keys, counts of states that are gone are merged first;
//! after that, new keys count as "other".

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::subject::DropSubject;
use crate::{DropCounts, DropReason, Drops, Sad};

/// Keys for which a worker counts: with all of them it takes about half a megabyte, and its
/// published copy as much again ([`DropTallies::bytes`]).
pub const MAX_TALLIES: usize = 4096;

/// Packets dropped for one reason and one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropTally {
    /// Why.
    pub reason: DropReason,
    /// Whose.
    pub subject: DropSubject,
    /// How many.
    pub packets: u64,
}

/// Drop counts by subject, as of one instant. `total == none + other + tallies`, for each reason.
///
/// They begin with the worker, so at an upgrade too; the counts by reason alone go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropTallies {
    tallies: Vec<DropTally>,
    other: DropCounts,
    total: DropCounts,
}

/// Where a worker publishes its [`DropTallies`], about once a second, for any thread.
#[derive(Debug, Default)]
pub struct SharedDropTallies(ArcSwap<DropTallies>);

/// The tallies of a worker.
#[derive(Debug, Default)]
pub(super) struct Tallying {
    tallies: Vec<DropTally>,
    places: HashTable<u32>,
    hasher: RandomState,
    other: DropCounts,
    /// Place of the latest key.
    latest: usize,
    has_news: bool,
    /// Keys did not fit since the latest merge.
    is_full: bool,
}

impl SharedDropTallies {
    /// The counts as of the latest [`Worker::refresh`](crate::Worker::refresh).
    #[must_use]
    pub fn read(&self) -> Arc<DropTallies> {
        self.0.load_full()
    }

    pub(super) fn publish(&self, tallies: DropTallies) {
        self.0.store(Arc::new(tallies));
    }
}

impl DropTallies {
    /// The counts, one for each reason and subject, in no order.
    #[must_use]
    pub fn tallies(&self) -> &[DropTally] {
        &self.tallies
    }

    /// Packets dropped for a reason whose subject was not counted: the keys were used up, or the
    /// state is gone.
    #[must_use]
    pub fn other(&self, reason: DropReason) -> u64 {
        self.other.of(reason)
    }

    /// All packets dropped for a reason.
    #[must_use]
    pub fn total(&self, reason: DropReason) -> u64 {
        self.total.of(reason)
    }

    /// Packets dropped for a reason of which neither state, policy nor device is known.
    #[must_use]
    pub fn none(&self, reason: DropReason) -> u64 {
        let known = self.tallies.iter().filter(|tally| tally.reason == reason);
        let known: u64 = known.map(|tally| tally.packets).sum();
        self.total(reason).saturating_sub(known + self.other(reason))
    }

    /// The counts by whatever of the subject: by state, policy, device, or the request id of the
    /// state for a tunnel. What has none is left out.
    ///
    /// ```
    /// use uxfrm_engine::DropTallies;
    ///
    /// let tallies = DropTallies::default(); // SharedDropTallies::read
    /// let by_sa = tallies.by(|subject| subject.sa.map(|sa| sa.id));
    /// let by_policy = tallies.by(|subject| subject.policy);
    /// assert!(by_sa.is_empty() && by_policy.is_empty());
    /// ```
    #[must_use]
    pub fn by<K: Ord>(
        &self,
        key: impl Fn(&DropSubject) -> Option<K>,
    ) -> BTreeMap<(K, DropReason), u64> {
        let mut sums = BTreeMap::new();
        for tally in &self.tallies {
            if let Some(key) = key(&tally.subject) {
                *sums.entry((key, tally.reason)).or_default() += tally.packets;
            }
        }
        sums
    }

    /// The sum over several workers; a reason and subject may then have a tally of each.
    #[must_use]
    pub fn sum<'a>(workers: impl IntoIterator<Item = &'a Self>) -> Self {
        workers.into_iter().fold(Self::default(), |mut sum, worker| {
            sum.tallies.extend_from_slice(&worker.tallies);
            for reason in DropReason::ALL {
                sum.other.add(*reason, worker.other(*reason));
                sum.total.add(*reason, worker.total(*reason));
            }
            sum
        })
    }

    /// Memory that the counts take, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.tallies.capacity() * size_of::<DropTally>()
    }
}

impl Tallying {
    /// Counts packets.
    pub(super) fn add(&mut self, reason: DropReason, subject: DropSubject, packets: u64) {
        self.has_news = true;
        if subject == DropSubject::NOBODY {
            return;
        }
        match self.place(reason, subject) {
            Some(place) => self.tallies[place].packets += packets,
            None => self.other.add(reason, packets),
        }
    }

    /// The counts, if they have changed since the last time. If they were full, merges those of
    /// SAs that are gone.
    pub(super) fn news(&mut self, counts: &Drops, sad: &Sad) -> Option<DropTallies> {
        if !std::mem::take(&mut self.has_news) {
            return None;
        }
        if std::mem::take(&mut self.is_full) {
            self.merge_gone(sad);
        }
        let (tallies, other) = (self.tallies.clone(), self.other.clone());
        Some(DropTallies { tallies, other, total: DropCounts::sum([counts]) })
    }

    /// Place of a key, new if there is room for it.
    fn place(&mut self, reason: DropReason, subject: DropSubject) -> Option<usize> {
        let is_it = |tally: &DropTally| tally.reason == reason && tally.subject == subject;
        if self.tallies.get(self.latest).is_some_and(is_it) {
            return Some(self.latest);
        }
        let hash = self.hasher.hash_one((reason, subject));
        let known = self.places.find(hash, |place| is_it(&self.tallies[*place as usize]));
        self.latest = match known {
            Some(place) => *place as usize,
            None if self.tallies.len() == MAX_TALLIES => {
                self.is_full = true;
                return None;
            }
            None => {
                self.tallies.push(DropTally { reason, subject, packets: 0 });
                let place = self.tallies.len() - 1;
                self.enter(place, hash);
                place
            }
        };
        Some(self.latest)
    }

    fn enter(&mut self, place: usize, hash: u64) {
        let Self { tallies, places, hasher, .. } = self;
        // There are at most MAX_TALLIES.
        let place = u32::try_from(place).unwrap_or(u32::MAX);
        places.insert_unique(hash, place, |place| hash_of(hasher, &tallies[*place as usize]));
    }

    /// Counts what SAs dropped that are gone as "other", to make room.
    fn merge_gone(&mut self, sad: &Sad) {
        let Self { tallies, other, .. } = self;
        tallies.retain(|tally| {
            let is_gone = |id| sad.with_id(id).next().is_none();
            let is_kept = !tally.subject.sa.is_some_and(|sa| is_gone(sa.id));
            if !is_kept {
                other.add(tally.reason, tally.packets);
            }
            is_kept
        });
        self.places.clear();
        for place in 0..self.tallies.len() {
            self.enter(place, hash_of(&self.hasher, &self.tallies[place]));
        }
    }
}

fn hash_of(hasher: &RandomState, tally: &DropTally) -> u64 {
    hasher.hash_one((tally.reason, tally.subject))
}
