//! IV prefixes that were drawn under each key, so that none is drawn twice.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    num::NonZeroU32,
};

/// Where random bits come from.
pub(crate) type Draw = fn() -> io::Result<u32>;

/// The prefixes that are known, by their keys' fingerprints.
#[derive(Debug, Default)]
pub(super) struct IvPrefixes {
    known: BTreeMap<u128, BTreeSet<u32>>,
    count: usize,
}

/// Draws at the most before a key counts as used up: by then nearly all prefixes are known.
const TRIES: usize = 1000;

impl IvPrefixes {
    /// How many are known.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    /// A prefix was drawn under a key.
    pub(super) fn learn(&mut self, key: u128, bits: u32) {
        self.count += usize::from(self.known.entry(key).or_default().insert(bits));
    }

    /// Draws one that was not drawn under this key before.
    ///
    /// # Errors
    /// Those of `draw`; [`io::ErrorKind::QuotaExceeded`] where it gives none that is new.
    pub(super) fn draw(&mut self, key: u128, draw: Draw) -> io::Result<NonZeroU32> {
        for _ in 0..TRIES {
            let bits = draw()?;
            let Some(prefix) = NonZeroU32::new(bits) else { continue };
            if !self.known.get(&key).is_some_and(|known| known.contains(&bits)) {
                self.learn(key, bits);
                return Ok(prefix);
            }
        }
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, "no random bits are new under this key"))
    }

    /// Forgets all of a key that nobody remembers.
    pub(super) fn forget(&mut self, key: u128) {
        self.count -= self.known.remove(&key).map_or(0, |known| known.len());
    }

    /// Keys under which some were drawn.
    pub(super) fn keys(&self) -> impl Iterator<Item = u128> {
        self.known.keys().copied()
    }

    /// All, with their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u128, u32)> {
        self.known.iter().flat_map(|(key, known)| known.iter().map(|bits| (*key, *bits)))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NEXT: Cell<u32> = const { Cell::new(0) };
    }

    /// 0, 0, 1, 1, 2, 2 …
    fn each_twice() -> io::Result<u32> {
        let next = NEXT.get();
        NEXT.set(next + 1);
        Ok(next / 2)
    }

    #[test]
    fn iv_prefix_is_unique_per_key_and_nonzero() {
        let mut prefixes = IvPrefixes::default();
        prefixes.learn(7, 2);
        let drawn: Vec<_> = (0..3).map(|_| prefixes.draw(7, each_twice).unwrap().get()).collect();
        assert_eq!(drawn, [1, 3, 4]);
        assert_eq!(prefixes.draw(8, || Ok(3)).unwrap().get(), 3, "another key");
        assert_eq!(prefixes.len(), 5);
        let error = prefixes.draw(8, || Ok(3)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        prefixes.forget(7);
        assert_eq!(prefixes.iter().collect::<Vec<_>>(), [(8, 3)]);
        assert_eq!(prefixes.len(), 1);
    }
}
