//! Name and number of uxfrm's generic netlink family `fou`, which the server and `uxfrm exec`
//! must agree on.

use crate::RawAttribute;
use crate::genl::{CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME};

/// The family's name.
pub const FAMILY: &str = "fou";
/// The family's message type: above `GENL_MAX_ID` (1023), so that one socket can speak to the
/// kernel's families and to this one.
pub const FAMILY_ID: u16 = 0x4f46;

/// Whether an attribute of `CTRL_CMD_GETFAMILY` names this family; `None` where it names no family.
#[must_use]
pub fn is_named_by(attribute: &RawAttribute<'_>) -> Option<bool> {
    match attribute.kind {
        CTRL_ATTR_FAMILY_ID => Some(attribute.value == FAMILY_ID.to_ne_bytes()),
        CTRL_ATTR_FAMILY_NAME => {
            Some(attribute.value.strip_suffix(&[0]) == Some(FAMILY.as_bytes()))
        }
        _ => None,
    }
}
