//! Generic netlink: the header behind the message header, and the controller's numbers
//! (`include/uapi/linux/genetlink.h`).

/// Bytes of `struct genlmsghdr`, and of netfilter's `struct nfgenmsg` in its place.
pub const FAMILY_HEADER_LEN: usize = 4;

/// Message type of the controller, which maps a family's name to its message type.
pub const GENL_ID_CTRL: u16 = 0x10;
/// Command of the controller's answers.
pub const CTRL_CMD_NEWFAMILY: u8 = 1;
/// Command that asks the controller about a family.
pub const CTRL_CMD_GETFAMILY: u8 = 3;
/// Attribute: a family's message type.
pub const CTRL_ATTR_FAMILY_ID: u16 = 1;
/// Attribute: a family's name, zero-terminated.
pub const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// `struct genlmsghdr` without its two reserved bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenlHeader {
    /// The family's command.
    pub command: u8,
    /// The family's version.
    pub version: u8,
}

impl GenlHeader {
    /// Splits a message's body into this header and the attributes behind it.
    #[must_use]
    pub fn split(body: &[u8]) -> Option<(Self, &[u8])> {
        let (&[command, version, ..], attributes) =
            body.split_first_chunk::<FAMILY_HEADER_LEN>()?;
        Some((Self { command, version }, attributes))
    }

    /// The header's bytes, reserved ones 0.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; FAMILY_HEADER_LEN] {
        [self.command, self.version, 0, 0]
    }
}
