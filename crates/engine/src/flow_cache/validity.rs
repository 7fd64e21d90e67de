//! Which flows a change of policies may have concerned since something was found out about them. Of all others it holds on.

use crate::spd::scope::{BUCKETS, InvalidationScope, PrefixGranularity};
use crate::{Direction, FlowKey};

/// When flows were last concerned, in the policies' [epochs](super::table::Epochs).
#[derive(Debug, Default)]
pub(crate) struct Concerned {
    /// By grain.
    granularities: [BucketEpochs; PrefixGranularity::ALL.len()],
    /// When all were together.
    all: u16,
}

/// When each cell of a grain was concerned.
#[derive(Debug, Default)]
struct BucketEpochs {
    /// The latest of all.
    latest: u16,
    /// Empty while none was.
    each: Box<[u16]>,
}

impl Concerned {
    /// Notes what changed before an epoch; `None`: nobody knows.
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

    /// Whether what was found out about a flow in an epoch may be another by now.
    #[inline]
    pub(crate) fn is(&self, direction: Direction, flow: &FlowKey, since: u16) -> bool {
        let is_stale_in = |(buckets, granularity): (&BucketEpochs, PrefixGranularity)| {
            // Policies of one kind are of one grain: of the others nothing is read.
            since < buckets.latest && buckets.is(granularity.bucket_of(direction, flow), since)
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
    fn is(&self, bucket: u16, since: u16) -> bool {
        self.each.get(usize::from(bucket)).is_some_and(|latest| since < *latest)
    }
}
