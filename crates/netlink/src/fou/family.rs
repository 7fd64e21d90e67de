//! The controller's answer about the family, which a client asks for first
//! (`net/netlink/genetlink.c: ctrl_fill_info`).

pub use uxfrm_netlink_wire::genl::GENL_ID_CTRL as CONTROL;
use uxfrm_netlink_wire::genl::{
    CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME, CTRL_CMD_GETFAMILY, CTRL_CMD_NEWFAMILY, GenlHeader,
};
use uxfrm_netlink_wire::{AttributeWriter, RawAttributes, find_attribute, fou::is_named_by};

use super::{FAMILY, FAMILY_ID, FouCommand, HIGHEST, VERSION};
use crate::refusal::{NetlinkError, number};

/// The controller's version.
const CONTROL_VERSION: u8 = 2;

/// `CTRL_ATTR_*`.
const OPERATIONS: u16 = 6;
/// `CTRL_ATTR_OP_*`.
const OPERATION: u16 = 1;
const FLAGS: u16 = 2;

/// `GENL_ADMIN_PERM`, `GENL_CMD_CAP_DO`, `GENL_CMD_CAP_DUMP`, `GENL_CMD_CAP_HASPOL`.
const ADMIN: u32 = 1;
const DO: u32 = 2;
const DUMP: u32 = 4;
const HAS_POLICY: u32 = 8;

/// `CTRL_CMD_GETFAMILY` for the family `fou`, by name or by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyQuery;

impl FamilyQuery {
    /// Reads a message's body.
    ///
    /// # Errors
    /// `ENOENT` for another family, `EOPNOTSUPP` for another command, `EINVAL` where no family is
    /// named.
    pub fn decode(body: &[u8]) -> Result<Self, NetlinkError> {
        let (header, attributes) =
            GenlHeader::split(body).ok_or(NetlinkError::bare(number::EINVAL))?;
        if header.command != CTRL_CMD_GETFAMILY {
            return Err(NetlinkError::bare(number::EOPNOTSUPP));
        }
        let named = RawAttributes::of(attributes).filter_map(|attribute| is_named_by(&attribute));
        let about = named.reduce(|all, one| all && one);
        match about {
            Some(true) => Ok(Self),
            Some(false) => Err(NetlinkError::bare(number::ENOENT)),
            None => Err(NetlinkError::bare(number::EINVAL)),
        }
    }

    /// Reads the number of the family from the body of an answer.
    #[must_use]
    pub fn answered(body: &[u8]) -> Option<u16> {
        let (_, attributes) = GenlHeader::split(body)?;
        let id = find_attribute(attributes, CTRL_ATTR_FAMILY_ID)?;
        id.first_chunk().map(|id| u16::from_ne_bytes(*id))
    }

    /// The answer's body.
    #[must_use]
    pub fn answer(self) -> Vec<u8> {
        let mut bytes = head(CTRL_CMD_NEWFAMILY);
        let mut out = AttributeWriter::new(&mut bytes);
        out.text(CTRL_ATTR_FAMILY_NAME, FAMILY);
        out.bytes(CTRL_ATTR_FAMILY_ID, &FAMILY_ID.to_ne_bytes());
        // Version, size of the family's header, highest attribute.
        for (kind, number) in [(3, u32::from(VERSION)), (4, 0), (5, HIGHEST)] {
            out.ne32(kind, number);
        }
        out.nest_unflagged(OPERATIONS, |operations| {
            for (command, flags) in [
                (FouCommand::Add, ADMIN | DO | HAS_POLICY),
                (FouCommand::Delete, ADMIN | DO | HAS_POLICY),
                (FouCommand::Get, DO | DUMP | HAS_POLICY),
            ] {
                operations.nest_unflagged(u16::from(command as u8), |operation| {
                    operation.ne32(OPERATION, u32::from(command as u8));
                    operation.ne32(FLAGS, flags);
                });
            }
        });
        bytes
    }

    /// A request's body, by name.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut bytes = head(CTRL_CMD_GETFAMILY);
        AttributeWriter::new(&mut bytes).text(CTRL_ATTR_FAMILY_NAME, FAMILY);
        bytes
    }
}

fn head(command: u8) -> Vec<u8> {
    GenlHeader { command, version: CONTROL_VERSION }.to_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn family_query_accepts_fou_only() {
        assert_eq!(FamilyQuery::decode(&FamilyQuery.encode()), Ok(FamilyQuery));
        assert_eq!(FamilyQuery::answered(&FamilyQuery.answer()), Some(FAMILY_ID));
        let about = |kind, value: &[u8]| {
            let mut body = vec![CTRL_CMD_GETFAMILY, 1, 0, 0];
            AttributeWriter::new(&mut body).bytes(kind, value);
            FamilyQuery::decode(&body).map_err(|refusal| refusal.errno)
        };
        assert_eq!(about(CTRL_ATTR_FAMILY_ID, &FAMILY_ID.to_ne_bytes()), Ok(FamilyQuery));
        assert_eq!(about(CTRL_ATTR_FAMILY_ID, &0x1b_u16.to_ne_bytes()), Err(2));
        assert_eq!(about(CTRL_ATTR_FAMILY_NAME, b"nl80211\0"), Err(2));
        assert_eq!(about(CTRL_ATTR_FAMILY_NAME, b"fou"), Err(2));
        assert_eq!(about(9, b""), Err(22));
        let errno = |body: &[u8]| FamilyQuery::decode(body).unwrap_err().errno;
        assert_eq!((errno(&[3]), errno(&[1, 1, 0, 0])), (22, 95));
    }

    #[test]
    fn fou_family_id_is_above_the_kernels() {
        const { assert!(FAMILY_ID > 1023, "GENL_MAX_ID") };
    }
}
