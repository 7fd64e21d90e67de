//! Masks given by the prefix length of each field.

use crate::key::{Words, upper};

/// Prefix length of each field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PrefixLengths(pub(super) [u32; 5]);

/// Addresses, ports and protocol.
pub(super) const FIELDS: usize = 5;

impl PrefixLengths {
    /// Leading ones of each field of a mask.
    pub(super) fn of<W: Words>(mask: &W) -> Self {
        let [destination, source] = mask.ends();
        let address = |[high, low]: [u64; 2]| match high.leading_ones() {
            64 => 64 + low.leading_ones(),
            ones => ones,
        };
        let upper = mask.word(W::COUNT - 1);
        let field = |low: u32, len: u32| (upper << (64 - low - len)).leading_ones().min(len);
        Self([address(destination), address(source), field(48, 16), field(32, 16), field(24, 8)])
    }

    /// Replaces the length of one field.
    pub(super) const fn with(mut self, field: usize, length: u32) -> Self {
        self.0[field] = length;
        self
    }

    /// The mask with these lengths.
    pub(super) fn mask<W: Words>(self) -> W {
        let Self([destination, source, source_port, destination_port, protocol]) = self;
        let ones = |len: u32| u64::MAX.checked_shl(64 - len.min(64)).unwrap_or(0);
        let address = |len: u32| [ones(len), ones(len.saturating_sub(64))];
        let short = |len: u32| ones(len).to_be_bytes();
        let port = |len: u32| u16::from_be_bytes([short(len)[0], short(len)[1]]);
        let upper = upper([port(source_port), port(destination_port)], short(protocol)[0]);
        W::new(address(destination), address(source), upper)
    }
}
