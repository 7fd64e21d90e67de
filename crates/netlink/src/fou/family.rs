//! The controller's answer about the family (`net/netlink/genetlink.c: ctrl_fill_info`), which a client asks before its first request.

use super::{Command, FAMILY, FAMILY_ID, HEAD, HIGHEST, VERSION, put};
use crate::attribute::RawAttributes;
use crate::refusal::{Refusal, number};

/// `GENL_ID_CTRL`: the type of messages to and from the controller.
pub const CONTROL: u16 = 0x10;

/// `CTRL_CMD_NEWFAMILY`, `CTRL_CMD_GETFAMILY`.
const NEW: u8 = 1;
const GET: u8 = 3;
/// The controller's version.
const CONTROL_VERSION: u8 = 2;

/// `CTRL_ATTR_*`.
const ID: u16 = 1;
const NAME: u16 = 2;
const OPERATIONS: u16 = 6;
/// `CTRL_ATTR_OP_*`.
const OPERATION: u16 = 1;
const FLAGS: u16 = 2;

/// `GENL_ADMIN_PERM`, `GENL_CMD_CAP_DO`, `GENL_CMD_CAP_DUMP`, `GENL_CMD_CAP_HASPOL`.
const ADMIN: u32 = 1;
const DO: u32 = 2;
const DUMP: u32 = 4;
const HAS_POLICY: u32 = 8;

/// The one question that the controller is asked here: who is the family `fou`, by name or by number?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question;

impl Question {
    /// Reads a message's body.
    ///
    /// # Errors
    /// `ENOENT` when it is about another family, `EOPNOTSUPP` for another question, `EINVAL` for one about nobody.
    pub fn decode(body: &[u8]) -> Result<Self, Refusal> {
        let Some((head, attributes)) = body.split_first_chunk::<HEAD>() else {
            return Err(Refusal::bare(number::EINVAL));
        };
        if head[0] != GET {
            return Err(Refusal::bare(number::EOPNOTSUPP));
        }
        let mut about = None;
        for attribute in RawAttributes::of(attributes) {
            let is_ours = match attribute.kind {
                ID => attribute.value == FAMILY_ID.to_ne_bytes(),
                NAME => attribute.value.strip_suffix(&[0]) == Some(FAMILY.as_bytes()),
                _ => continue,
            };
            about = Some(about.unwrap_or(true) && is_ours);
        }
        match about {
            Some(true) => Ok(Self),
            Some(false) => Err(Refusal::bare(number::ENOENT)),
            None => Err(Refusal::bare(number::EINVAL)),
        }
    }

    /// Reads the number of the family from the body of an answer.
    #[must_use]
    pub fn answered(body: &[u8]) -> Option<u16> {
        let (_, attributes) = body.split_first_chunk::<HEAD>()?;
        let id = RawAttributes::of(attributes).find(|attribute| attribute.kind == ID)?;
        id.value.first_chunk().map(|id| u16::from_ne_bytes(*id))
    }

    /// The answer's body.
    #[must_use]
    pub fn answer(self) -> Vec<u8> {
        let mut out = vec![NEW, CONTROL_VERSION, 0, 0];
        put(NAME, &[FAMILY.as_bytes(), &[0]].concat(), &mut out);
        put(ID, &FAMILY_ID.to_ne_bytes(), &mut out);
        // Version, size of the family's header, highest attribute.
        for (kind, number) in [(3, u32::from(VERSION)), (4, 0), (5, HIGHEST)] {
            put(kind, &number.to_ne_bytes(), &mut out);
        }
        let mut operations = Vec::new();
        for (command, flags) in [
            (Command::Add, ADMIN | DO | HAS_POLICY),
            (Command::Delete, ADMIN | DO | HAS_POLICY),
            (Command::Get, DO | DUMP | HAS_POLICY),
        ] {
            let mut operation = Vec::new();
            put(OPERATION, &u32::from(command as u8).to_ne_bytes(), &mut operation);
            put(FLAGS, &flags.to_ne_bytes(), &mut operation);
            put(u16::from(command as u8), &operation, &mut operations);
        }
        put(OPERATIONS, &operations, &mut out);
        out
    }

    /// A request's body, by name.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![GET, CONTROL_VERSION, 0, 0];
        put(NAME, &[FAMILY.as_bytes(), &[0]].concat(), &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_family_is_known() {
        assert_eq!(Question::decode(&Question.encode()), Ok(Question));
        assert_eq!(Question::answered(&Question.answer()), Some(FAMILY_ID));
        let about = |kind, value: &[u8]| {
            let mut body = vec![GET, 1, 0, 0];
            put(kind, value, &mut body);
            Question::decode(&body).map_err(|refusal| refusal.errno)
        };
        assert_eq!(about(ID, &FAMILY_ID.to_ne_bytes()), Ok(Question));
        assert_eq!(about(ID, &0x1b_u16.to_ne_bytes()), Err(2));
        assert_eq!(about(NAME, b"nl80211\0"), Err(2));
        assert_eq!(about(NAME, b"fou"), Err(2));
        assert_eq!(about(9, b""), Err(22));
        let errno = |body: &[u8]| Question::decode(body).unwrap_err().errno;
        assert_eq!((errno(&[3]), errno(&[1, 1, 0, 0])), (22, 95));
    }

    #[test]
    fn its_number_is_none_of_the_kernels() {
        const { assert!(FAMILY_ID > 1023, "GENL_MAX_ID") };
    }
}
