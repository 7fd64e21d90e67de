//! Attributes: written one behind the other, read by type.

use uxfrm_netlink::{RawAttributes, Refusal};

/// Types up to here are kept.
const HIGHEST: usize = 64;
/// Bytes before a value.
const HEAD: usize = 4;
/// `ERANGE`
const ERANGE: i32 = 34;

/// Attributes being written.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn put(&mut self, kind: u16, value: &[u8]) {
        // A nest of ours is a few hundred bytes.
        let len = u16::try_from(HEAD + value.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub(super) fn text(&mut self, kind: u16, text: &str) {
        self.put(kind, &[text.as_bytes(), &[0]].concat());
    }

    pub(super) fn word(&mut self, kind: u16, number: u32) {
        self.put(kind, &number.to_ne_bytes());
    }

    pub(super) fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.put(kind, &inner.0);
    }
}

/// Attributes by type; of several of one type the last counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>([Option<&'a [u8]>; HIGHEST]);

impl<'a> Reader<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let mut found = [None; HIGHEST];
        for attribute in RawAttributes::of(bytes) {
            if let Some(place) = found.get_mut(usize::from(attribute.kind)) {
                *place = Some(attribute.value);
            }
        }
        Self(found)
    }

    pub(super) fn value(&self, kind: u16) -> Option<&'a [u8]> {
        *self.0.get(usize::from(kind))?
    }

    /// The first bytes of an attribute.
    ///
    /// # Errors
    /// `ERANGE` when it is shorter.
    pub(super) fn bytes<const N: usize>(&self, kind: u16) -> Result<Option<[u8; N]>, Refusal> {
        let Some(value) = self.value(kind) else { return Ok(None) };
        let short = || Refusal::new(ERANGE, "Attribute failed policy validation");
        value.first_chunk().copied().map(Some).ok_or_else(short)
    }

    pub(super) fn byte(&self, kind: u16) -> Result<Option<u8>, Refusal> {
        Ok(self.bytes(kind)?.map(|[byte]| byte))
    }

    pub(super) fn half(&self, kind: u16) -> Result<Option<u16>, Refusal> {
        Ok(self.bytes(kind)?.map(u16::from_ne_bytes))
    }

    /// A number in network byte order.
    pub(super) fn port(&self, kind: u16) -> Result<Option<u16>, Refusal> {
        Ok(self.bytes(kind)?.map(u16::from_be_bytes))
    }

    pub(super) fn word(&self, kind: u16) -> Result<Option<u32>, Refusal> {
        Ok(self.bytes(kind)?.map(u32::from_ne_bytes))
    }

    /// Text up to its zero byte.
    pub(super) fn text(&self, kind: u16) -> Option<String> {
        let value = self.value(kind)?;
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    }
}
