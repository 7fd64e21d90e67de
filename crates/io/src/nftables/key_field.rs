//! A question to a packet: what stands in one of its fields, under a mask. Packets are sorted by their answers: a set holds some of them.

use super::condition::Condition;
use super::field::{Field, RegisterValue};
use super::simulated_table::Sample;
use crate::message::Attributes;

/// A field of a packet, under a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    field: Field,
    mask: Option<RegisterValue>,
    length: u8,
}

/// What stands there: a part of a set's keys, in whole registers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reply(RegisterValue);

impl Question {
    pub(super) fn new(
        field: Field,
        mask: Option<RegisterValue>,
        value: RegisterValue,
    ) -> (Self, Reply) {
        (Self { field, mask, length: value.length() }, Reply(value))
    }

    /// The condition that a packet gives this answer, which has as many bytes as all of its answers.
    #[must_use]
    pub fn answered(&self, reply: &[u8]) -> Condition {
        let value = RegisterValue::of(&reply[..usize::from(self.length).min(reply.len())]);
        Condition::answered(self.field, self.mask, value)
    }

    /// Bytes of its answers.
    #[must_use]
    pub fn size(&self) -> usize {
        usize::from(self.length).next_multiple_of(REGISTER)
    }

    /// Brings a packet's answer into the registers from this one on, counted by 32 bits.
    pub(super) fn describe(&self, register: usize, list: &mut Attributes<'_>) {
        let register = FIRST + u32::try_from(register).unwrap_or(u32::MAX);
        self.field.load(register, self.length.into(), list);
        if let Some(mask) = &self.mask {
            mask.mask(register, list);
        }
    }

    /// What a packet answers, if it has the field.
    pub(super) fn answer(&self, packet: &Sample<'_>) -> Option<Vec<u8>> {
        let mut found = packet.load(self.field, self.length.into())?;
        if let Some(mask) = &self.mask {
            found.iter_mut().zip(mask.as_slice()).for_each(|(found, mask)| *found &= mask);
        }
        found.resize(self.size(), 0);
        Some(found)
    }
}

impl Reply {
    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.padded()
    }
}

/// Bytes of one register.
pub(super) const REGISTER: usize = 4;

/// `NFT_REG32_00`
const FIRST: u32 = 8;
