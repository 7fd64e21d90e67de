//! A field of a packet under a mask, as part of the key of a set.

use super::condition::Condition;
use super::field::{Field, RegisterValue};
use super::simulated_table::SamplePacket;
use uxfrm_netlink_wire::AttributeWriter;

/// A field of a packet, under a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SetKeyField {
    field: Field,
    mask: Option<RegisterValue>,
    length: u8,
}

/// The value of such a field, in whole registers of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyValue(RegisterValue);

impl SetKeyField {
    pub(super) fn new(
        field: Field,
        mask: Option<RegisterValue>,
        value: RegisterValue,
    ) -> (Self, KeyValue) {
        (Self { field, mask, length: value.length() }, KeyValue(value))
    }

    /// The condition that a packet's field has this value, which must have full length.
    #[must_use]
    pub fn answered(&self, reply: &[u8]) -> Condition {
        let value = RegisterValue::of(&reply[..usize::from(self.length).min(reply.len())]);
        Condition::answered(self.field, self.mask, value)
    }

    /// Bytes of its values.
    #[must_use]
    pub fn size(&self) -> usize {
        usize::from(self.length).next_multiple_of(REGISTER)
    }

    /// Loads the field into registers from this one on, counted by 32 bits.
    pub(super) fn describe(&self, register: usize, list: &mut AttributeWriter<'_>) {
        let register = FIRST + u32::try_from(register).unwrap_or(u32::MAX);
        self.field.load(register, self.length.into(), list);
        if let Some(mask) = &self.mask {
            mask.mask(register, list);
        }
    }

    /// The field's value in a packet, if it has the field.
    pub(super) fn answer(&self, packet: &SamplePacket<'_>) -> Option<Vec<u8>> {
        let mut found = packet.load(self.field, self.length.into())?;
        if let Some(mask) = &self.mask {
            found.iter_mut().zip(mask.as_slice()).for_each(|(found, mask)| *found &= mask);
        }
        found.resize(self.size(), 0);
        Some(found)
    }
}

impl KeyValue {
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
