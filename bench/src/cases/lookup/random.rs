//! Random numbers that are the same in every run (SplitMix64). Not for keys.

/// A source of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The source of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next 128 bits.
    pub fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    /// The next 32 bits.
    pub fn word(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap_or(0)
    }

    /// The next 16 bits.
    pub fn short(&mut self) -> u16 {
        u16::try_from(self.next() >> 48).unwrap_or(0)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or(0)
    }

    /// A random element.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A random element, by weight.
    ///
    /// # Panics
    /// If there are none.
    pub fn weighted<T: Copy>(&mut self, from: &[(usize, T)]) -> T {
        let all = from.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(all);
        for (weight, thing) in from {
            match at.checked_sub(*weight) {
                None => return *thing,
                Some(rest) => at = rest,
            }
        }
        from[0].1
    }
}
