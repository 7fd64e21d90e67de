//! Reading attributes (`struct nlattr`: length, type, value, padding).

use std::fmt;

use crate::aligned;

/// Bytes of `struct nlattr`, before the value.
pub(crate) const HEADER_LEN: usize = 4;
/// A type without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER` (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;

/// One attribute, not yet validated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawAttribute<'a> {
    /// Its type, without the two flag bits.
    pub kind: u16,
    /// Its value, without padding.
    pub value: &'a [u8],
    /// Where the attribute begins in the bytes that were read.
    pub offset: usize,
}

/// Shows lengths only: the value may be a key.
impl fmt::Debug for RawAttribute<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RawAttribute({}, {} bytes)", self.kind, self.value.len())
    }
}

/// The attributes in some bytes, up to the first that is cut short.
#[derive(Clone)]
pub struct RawAttributes<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> RawAttributes<'a> {
    /// Reads a message's attributes, or a nest's value.
    #[must_use]
    pub const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Bytes behind the attributes that were read; after the last, bytes that are no attribute.
    #[must_use]
    pub fn leftover(&self) -> usize {
        self.bytes.len().saturating_sub(self.offset)
    }
}

impl fmt::Debug for RawAttributes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "RawAttributes({} bytes)", self.leftover())
    }
}

impl<'a> Iterator for RawAttributes<'a> {
    type Item = RawAttribute<'a>;

    fn next(&mut self) -> Option<RawAttribute<'a>> {
        let rest = self.bytes.get(self.offset..)?;
        let [a, b, c, d] = *rest.first_chunk::<HEADER_LEN>()?;
        let (len, kind) = (usize::from(u16::from_ne_bytes([a, b])), u16::from_ne_bytes([c, d]));
        let value = rest.get(HEADER_LEN..len)?;
        let attribute = RawAttribute { kind: kind & TYPE_MASK, value, offset: self.offset };
        self.offset = (self.offset + aligned(len)).min(self.bytes.len());
        Some(attribute)
    }
}

/// The value of the first attribute of a type.
#[must_use]
pub fn find_attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    RawAttributes::of(bytes).find(|found| found.kind == kind).map(|found| found.value)
}

/// Types below this are kept in an [`AttributeTable`].
const TABLE_LEN: usize = 64;

/// Attribute values by type; unknown types from 64 on are skipped.
#[derive(Clone, Copy)]
pub struct AttributeTable<'a>([Option<&'a [u8]>; TABLE_LEN]);

impl<'a> AttributeTable<'a> {
    /// Keeps the first attribute of each type, as iproute2's `parse_rtattr` does.
    #[must_use]
    pub fn first_of_each(bytes: &'a [u8]) -> Self {
        Self::collect(bytes, |old, new| old.or(Some(new)))
    }

    /// Keeps the last attribute of each type, as the kernel's `nla_parse` does.
    #[must_use]
    pub fn last_of_each(bytes: &'a [u8]) -> Self {
        Self::collect(bytes, |_, new| Some(new))
    }

    fn collect(
        bytes: &'a [u8],
        keep: impl Fn(Option<&'a [u8]>, &'a [u8]) -> Option<&'a [u8]>,
    ) -> Self {
        let mut table = [None; TABLE_LEN];
        for attribute in RawAttributes::of(bytes) {
            if let Some(slot) = table.get_mut(usize::from(attribute.kind)) {
                *slot = keep(*slot, attribute.value);
            }
        }
        Self(table)
    }

    /// The value of an attribute.
    #[must_use]
    pub fn value(&self, kind: u16) -> Option<&'a [u8]> {
        *self.0.get(usize::from(kind))?
    }
}

/// Shows types and lengths only: a value may be a key.
impl fmt::Debug for AttributeTable<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lens =
            self.0.iter().enumerate().filter_map(|(kind, value)| Some((kind, (*value)?.len())));
        out.debug_map().entries(lens).finish()
    }
}
