//! Which cached flows policy changes may have affected since an epoch. All others stay valid.

use crate::spd::scope::{BUCKETS, InvalidationScope, PrefixGranularity};
use crate::{Direction, FlowKey};

/// Policy [epochs](super::table::Epochs) in which scopes were invalidated last.
#[derive(Debug, Default)]
pub(crate) struct ScopeEpochs {
    /// By granularity.
    granularities: [BucketEpochs; PrefixGranularity::ALL.len()],
    /// Epoch in which all flows were invalidated.
    all: u16,
}

/// Epoch of each bucket of a granularity.
#[derive(Debug, Default)]
struct BucketEpochs {
    /// Latest epoch of any bucket.
    latest: u16,
    /// Empty until the first invalidation.
    each: Box<[u16]>,
}

impl ScopeEpochs {
    /// Records the scopes that changed before an epoch; `None` if unknown.
    pub(crate) fn note(
        &mut self,
        scopes: Option<impl Iterator<Item = InvalidationScope>>,
        epoch: u16,
    ) {
        let Some(scopes) = scopes else {
            self.all = epoch;
            return;
        };
        for scope in scopes {
            match scope {
                InvalidationScope::Bucket(granularity, bucket) => {
                    self.granularities[granularity.index()].note(bucket, epoch)
                }
                InvalidationScope::All => self.all = epoch,
            }
        }
    }

    /// Whether a verdict of epoch `since` may be outdated.
    #[inline]
    pub(crate) fn is_stale(&self, direction: Direction, flow: &FlowKey, since: u16) -> bool {
        let is_stale_in = |(buckets, granularity): (&BucketEpochs, PrefixGranularity)| {
            // Similar policies share a granularity: of the others nothing is read.
            since < buckets.latest && buckets.changed(granularity.bucket_of(direction, flow), since)
        };
        since < self.all || self.granularities.iter().zip(PrefixGranularity::ALL).any(is_stale_in)
    }

    pub(super) fn memory(&self) -> usize {
        self.granularities.iter().map(|buckets| size_of_val(&*buckets.each)).sum()
    }
}

impl BucketEpochs {
    fn note(&mut self, bucket: u16, epoch: u16) {
        if self.each.is_empty() {
            self.each = vec![0; BUCKETS].into();
        }
        self.each[usize::from(bucket)] = epoch;
        self.latest = epoch;
    }

    #[inline]
    fn changed(&self, bucket: u16, since: u16) -> bool {
        self.each.get(usize::from(bucket)).is_some_and(|latest| since < *latest)
    }
}
