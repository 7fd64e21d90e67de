//! A bucket of SAs with tags, which a look-up reads before the SAs.

use std::sync::Arc;

use uxfrm_packet::prefetch_far;

use crate::Sa;

/// SAs with eight bits of their hash each. As long as a cache line, but not aligned: that would
/// waste a sixth of the memory.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct Bucket {
    /// Tag of each SA; the last byte holds flags.
    tags: [u8; 8],
    states: [Option<Arc<Sa>>; WIDTH],
}

/// Where else SAs of this bucket may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverflowKind {
    /// An SA of this bucket is in the next one.
    Spilled = 1,
    /// SAs with one hash are in a group.
    Grouped = 2,
}

pub(super) const WIDTH: usize = 7;
const FLAGS: usize = 7;

impl Bucket {
    /// SAs with a tag, and possibly others.
    #[inline]
    pub(super) fn tagged(&self, tag: u8) -> impl Iterator<Item = &Arc<Sa>> {
        self.places(tag).filter_map(|at| self.states[at].as_ref())
    }

    /// Prefetches what [`Bucket::tagged`] reads.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch_far(&self.tags);
        prefetch_far(&self.states[WIDTH - 1]);
    }

    /// All SAs.
    pub(super) fn states(&self) -> &[Option<Arc<Sa>>] {
        &self.states
    }

    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut Arc<Sa>> {
        self.states.iter_mut().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.states.iter().flatten().count()
    }

    /// Inserts an SA, if there is room.
    pub(super) fn push(&mut self, tag: u8, sa: Arc<Sa>) -> Result<(), Arc<Sa>> {
        let Some(at) = self.states.iter().position(Option::is_none) else { return Err(sa) };
        (self.tags[at], self.states[at]) = (tag, Some(sa));
        Ok(())
    }

    /// Removes the first SA with a tag for which `is_meant` holds.
    pub(super) fn take(&mut self, tag: u8, is_meant: &dyn Fn(&Sa) -> bool) -> Option<Arc<Sa>> {
        let is_it = |at: &usize| self.states[*at].as_ref().is_some_and(|sa| is_meant(sa));
        let at = self.places(tag).find(is_it)?;
        self.states[at].take()
    }

    /// Whether any flag is set.
    #[inline]
    pub(super) const fn has_overflow(&self) -> bool {
        self.tags[FLAGS] != 0
    }

    #[inline]
    pub(super) const fn has(&self, set_flag: OverflowKind) -> bool {
        self.tags[FLAGS] & set_flag as u8 != 0
    }

    pub(super) fn set_flag(&mut self, set_flag: OverflowKind) {
        self.tags[FLAGS] |= set_flag as u8;
    }

    pub(super) fn clear_flag(&mut self, set_flag: OverflowKind) {
        self.tags[FLAGS] &= !(set_flag as u8);
    }

    /// Indexes with a tag. A zero byte of the difference borrows from the one above, which may
    /// yield a false positive.
    #[inline]
    fn places(&self, tag: u8) -> impl Iterator<Item = usize> + use<> {
        const EACH: u64 = 0x0001_0101_0101_0101;
        let differences = u64::from_le_bytes(self.tags) ^ (EACH * u64::from(tag));
        let mut left = differences.wrapping_sub(EACH) & !differences & (EACH << 7);
        std::iter::from_fn(move || {
            let at = left.trailing_zeros() as usize / 8;
            let found = (left != 0).then_some(at);
            left &= left.wrapping_sub(1);
            found
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Moment;
    use crate::sa::sample;
    use crate::sad::tests::words;

    #[test]
    fn bucket_finds_by_tag_and_ignores_flags() {
        assert_eq!(size_of::<Bucket>(), 64);
        let all: Vec<_> = (1..=u32::try_from(WIDTH).unwrap() + 1)
            .map(|spi| {
                Sa::new(&sample("10.0.0.2", spi), words(&sample("10.0.0.2", spi)), Moment(0))
            })
            .collect();
        for tags in [
            [0, 0, 1, 1, 2, 255, 254],
            [255; 7],
            [0; 7],
            [1, 0, 1, 0, 1, 0, 1],
            [3, 2, 1, 0, 3, 2, 1],
        ] {
            let mut bucket = Bucket::default();
            for set_flag in [OverflowKind::Spilled, OverflowKind::Grouped] {
                bucket.set_flag(set_flag);
            }
            for (tag, sa) in tags.into_iter().zip(&all) {
                bucket.push(tag, Arc::clone(sa)).unwrap();
            }
            assert!(bucket.push(9, Arc::clone(&all[WIDTH])).is_err(), "full");
            for tag in 0..=255 {
                let found: Vec<_> = bucket.tagged(tag).map(Arc::as_ptr).collect();
                for (other, sa) in tags.into_iter().zip(&all) {
                    assert!(other != tag || found.contains(&Arc::as_ptr(sa)), "{tag} of {tags:?}");
                }
            }
            assert!(bucket.take(tags[3], &|sa| std::ptr::eq(sa, &*all[3])).is_some());
            assert_eq!(
                (bucket.len(), bucket.tagged(tags[3]).any(|sa| Arc::ptr_eq(sa, &all[3]))),
                (6, false)
            );
            bucket.clear_flag(OverflowKind::Spilled);
            assert!(!bucket.has(OverflowKind::Spilled) && bucket.has(OverflowKind::Grouped));
            assert!(bucket.has_overflow());
            bucket.clear_flag(OverflowKind::Grouped);
            assert!(!bucket.has_overflow());
        }
    }
}
