//! Index of [`RxCache`](super::rx_cache::RxCache) entries by SPI: a hint that must be verified.

/// Entry indexes by SPI, in buckets of one cache line; enough buckets that few are full.
#[derive(Debug)]
pub(super) struct SpiIndex {
    /// Their number is a power of two.
    sets: Vec<SpiBucket>,
    /// Upper bound of occupied slots.
    used: usize,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct SpiBucket {
    /// 0 marks a free slot.
    spis: [u32; SLOTS],
    places: [u32; SLOTS],
}

const SLOTS: usize = 8;
/// Initial buckets, and the average load that makes the index grow.
const SETS: usize = 64;
const FULL: usize = 2;

impl SpiIndex {
    pub(super) fn new() -> Self {
        Self { sets: vec![SpiBucket::default(); SETS], used: 0 }
    }

    /// The entry stored for an SPI.
    #[inline(always)]
    pub(super) fn get(&self, spi: u32) -> Option<u32> {
        let set = self.set(spi);
        set.spis.iter().position(|other| *other == spi).map(|way| set.places[way])
    }

    /// Prefetches what [`SpiIndex::get`] reads.
    #[inline(always)]
    pub(super) fn prefetch(&self, spi: u32) {
        uxfrm_packet::prefetch_far(self.set(spi));
    }

    /// Stores the entry of an SPI, in another's slot if the bucket is full.
    pub(super) fn insert(&mut self, spi: u32, place: u32) {
        if self.used >= FULL * self.sets.len() {
            self.grow();
        }
        self.used += usize::from(self.put(spi, place));
    }

    /// Removes the entry of an SPI, if it is this one.
    pub(super) fn remove(&mut self, spi: u32, place: u32) {
        let at = self.at(spi);
        let SpiBucket { spis, places } = &mut self.sets[at];
        if let Some(way) = (0..SLOTS).find(|way| (spis[*way], places[*way]) == (spi, place)) {
            spis[way] = 0;
            self.used -= 1;
        }
    }

    /// Removes all and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.sets.fill(SpiBucket::default());
        self.used = 0;
    }

    /// Returns whether a free slot was used.
    fn put(&mut self, spi: u32, place: u32) -> bool {
        let at = self.at(spi);
        let set = &mut self.sets[at];
        let way_of = |spi| set.spis.iter().position(|other| *other == spi);
        let (known, free) = (way_of(spi), way_of(0));
        let way = known.or(free).unwrap_or(place as usize % SLOTS);
        (set.spis[way], set.places[way]) = (spi, place);
        known.is_none() && free.is_some()
    }

    #[cold]
    fn grow(&mut self) {
        let more = vec![SpiBucket::default(); 2 * self.sets.len()];
        let old = std::mem::replace(&mut self.sets, more);
        for SpiBucket { spis, places } in old {
            for (spi, place) in spis.into_iter().zip(places).filter(|(spi, _)| *spi != 0) {
                self.put(spi, place);
            }
        }
    }

    #[inline(always)]
    fn set(&self, spi: u32) -> &SpiBucket {
        &self.sets[self.at(spi)]
    }

    #[inline(always)]
    fn at(&self, spi: u32) -> usize {
        spi as usize & (self.sets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map: a found entry is the latest stored, and few are lost.
        #[test]
        fn finds_stored_entries(spis in prop::collection::vec(1_u32.., 1..3000)) {
            let (mut spi_index, mut model) = (SpiIndex::new(), HashMap::new());
            for (spi, place) in spis.iter().zip(0..) {
                spi_index.insert(*spi, place);
                model.insert(*spi, place);
            }
            let found = |spi: &u32| spi_index.get(*spi).inspect(|place| assert_eq!(place, &model[spi]));
            let lost = model.keys().filter(|spi| found(spi).is_none()).count();
            prop_assert!(lost * 50 <= model.len(), "{lost} of {}", model.len());
            spi_index.clear();
            prop_assert!(model.keys().all(|spi| spi_index.get(*spi).is_none()));
        }
    }

    #[test]
    fn removed_entry_frees_its_slot() {
        let mut spi_index = SpiIndex::new();
        (1..=50_000).for_each(|spi| {
            spi_index.insert(spi, spi);
            spi_index.remove(spi, spi + 1);
            assert_eq!(spi_index.get(spi), Some(spi));
            spi_index.remove(spi, spi);
            assert_eq!(spi_index.get(spi), None);
        });
        assert_eq!((spi_index.sets.len(), spi_index.used), (SETS, 0));
    }

    #[test]
    fn consecutive_spis_are_all_kept() {
        let mut spi_index = SpiIndex::new();
        (1..=5000).for_each(|spi| spi_index.insert(spi, spi - 1));
        assert!((1..=5000).all(|spi| spi_index.get(spi) == Some(spi - 1)));
    }
}
