//! Attribute values of a request, with the kernel's error for those that are too short.

use uxfrm_netlink::NetlinkError;
use uxfrm_netlink_wire::AttributeTable;

/// `ERANGE`
const ERANGE: i32 = 34;

/// Attributes by type; of several of one type the last counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(AttributeTable<'a>);

impl<'a> Reader<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self(AttributeTable::last_of_each(bytes))
    }

    pub(super) fn value(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.value(kind)
    }

    /// The first bytes of an attribute.
    ///
    /// # Errors
    /// `ERANGE` when it is shorter.
    pub(super) fn bytes<const N: usize>(&self, kind: u16) -> Result<Option<[u8; N]>, NetlinkError> {
        let Some(value) = self.value(kind) else { return Ok(None) };
        let short = || NetlinkError::new(ERANGE, "Attribute failed policy validation");
        value.first_chunk().copied().map(Some).ok_or_else(short)
    }

    pub(super) fn byte(&self, kind: u16) -> Result<Option<u8>, NetlinkError> {
        Ok(self.bytes(kind)?.map(|[byte]| byte))
    }

    pub(super) fn half(&self, kind: u16) -> Result<Option<u16>, NetlinkError> {
        Ok(self.bytes(kind)?.map(u16::from_ne_bytes))
    }

    /// A number in network byte order.
    pub(super) fn port(&self, kind: u16) -> Result<Option<u16>, NetlinkError> {
        Ok(self.bytes(kind)?.map(u16::from_be_bytes))
    }

    pub(super) fn word(&self, kind: u16) -> Result<Option<u32>, NetlinkError> {
        Ok(self.bytes(kind)?.map(u32::from_ne_bytes))
    }

    /// Text up to its zero byte.
    pub(super) fn text(&self, kind: u16) -> Option<String> {
        let value = self.value(kind)?;
        let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
        Some(String::from_utf8_lossy(&value[..end]).into_owned())
    }
}
