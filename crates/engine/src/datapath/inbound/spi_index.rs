//! Where states that were used stand, by the SPI that their packets have: a hint, to be believed only if that one is it.

/// Places by SPI, in sets of a cache line; so many sets that hardly one is full.
#[derive(Debug)]
pub(super) struct Names {
    /// A power of two.
    sets: Vec<Set>,
    /// Those that were noted, at the most.
    noted: usize,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Set {
    /// 0 where none is.
    spis: [u32; WAYS],
    places: [u32; WAYS],
}

const WAYS: usize = 8;
/// Sets to begin with, and how many SPIs each has of its own on average when there are to be more.
const SETS: usize = 64;
const FULL: usize = 2;

impl Names {
    pub(super) fn new() -> Self {
        Self { sets: vec![Set::default(); SETS], noted: 0 }
    }

    /// The place that was noted for an SPI.
    #[inline(always)]
    pub(super) fn place(&self, spi: u32) -> Option<u32> {
        let set = self.set(spi);
        set.spis.iter().position(|other| *other == spi).map(|way| set.places[way])
    }

    /// Asks for what [`Names::place`] reads.
    #[inline(always)]
    pub(super) fn prefetch(&self, spi: u32) {
        uxfrm_packet::prefetch_far(self.set(spi));
    }

    /// Notes the place of an SPI, instead of another's if there is no room.
    pub(super) fn note(&mut self, spi: u32, place: u32) {
        if self.noted >= FULL * self.sets.len() {
            self.take_room();
        }
        self.noted += usize::from(self.put(spi, place));
    }

    /// Forgets the place of an SPI, if this is it.
    pub(super) fn forget(&mut self, spi: u32, place: u32) {
        let at = self.at(spi);
        let Set { spis, places } = &mut self.sets[at];
        if let Some(way) = (0..WAYS).find(|way| (spis[*way], places[*way]) == (spi, place)) {
            spis[way] = 0;
            self.noted -= 1;
        }
    }

    /// Forgets all, and keeps its room.
    pub(super) fn clear(&mut self) {
        self.sets.fill(Set::default());
        self.noted = 0;
    }

    /// Whether that takes room which was free.
    fn put(&mut self, spi: u32, place: u32) -> bool {
        let at = self.at(spi);
        let set = &mut self.sets[at];
        let way_of = |spi| set.spis.iter().position(|other| *other == spi);
        let (known, free) = (way_of(spi), way_of(0));
        let way = known.or(free).unwrap_or(place as usize % WAYS);
        (set.spis[way], set.places[way]) = (spi, place);
        known.is_none() && free.is_some()
    }

    #[cold]
    fn take_room(&mut self) {
        let more = vec![Set::default(); 2 * self.sets.len()];
        let old = std::mem::replace(&mut self.sets, more);
        for Set { spis, places } in old {
            for (spi, place) in spis.into_iter().zip(places).filter(|(spi, _)| *spi != 0) {
                self.put(spi, place);
            }
        }
    }

    #[inline(always)]
    fn set(&self, spi: u32) -> &Set {
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
        /// Against a map: what is found was noted last, and hardly anything is lost.
        #[test]
        fn finds_what_was_noted(spis in prop::collection::vec(1_u32.., 1..3000)) {
            let (mut names, mut model) = (Names::new(), HashMap::new());
            for (spi, place) in spis.iter().zip(0..) {
                names.note(*spi, place);
                model.insert(*spi, place);
            }
            let found = |spi: &u32| names.place(*spi).inspect(|place| assert_eq!(place, &model[spi]));
            let lost = model.keys().filter(|spi| found(spi).is_none()).count();
            prop_assert!(lost * 50 <= model.len(), "{lost} of {}", model.len());
            names.clear();
            prop_assert!(model.keys().all(|spi| names.place(*spi).is_none()));
        }
    }

    #[test]
    fn what_is_forgotten_leaves_its_room_to_others() {
        let mut names = Names::new();
        (1..=50_000).for_each(|spi| {
            names.note(spi, spi);
            names.forget(spi, spi + 1);
            assert_eq!(names.place(spi), Some(spi));
            names.forget(spi, spi);
            assert_eq!(names.place(spi), None);
        });
        assert_eq!((names.sets.len(), names.noted), (SETS, 0));
    }

    #[test]
    fn numbers_in_a_row_are_all_kept() {
        let mut names = Names::new();
        (1..=5000).for_each(|spi| names.note(spi, spi - 1));
        assert!((1..=5000).all(|spi| names.place(spi) == Some(spi - 1)));
    }
}
