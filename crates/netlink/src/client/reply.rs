//! Answers: what a message means to its request, and its attributes.

use std::borrow::Cow;

use uxfrm_netlink_wire::{
    AttributeTable, NLMSG_DONE, NLMSG_ERROR, NetlinkFlags, NetlinkHeader, NetlinkMessage, aligned,
};
use zerocopy::{FromBytes, Immutable};

use crate::refusal::NetlinkError;

/// `NLMSGERR_ATTR_MSG`, `_OFFS`.
const TEXT: u16 = 1;
const OFFSET: u16 = 2;

/// What a message is to its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyStatus {
    /// It was carried out; perhaps with a warning.
    Done {
        /// `NLMSGERR_ATTR_MSG` without an errno.
        warning: Option<String>,
    },
    /// It was refused.
    Refused(NetlinkError),
    /// It is what was asked for, or a part of it.
    Content,
    /// There is no such message: it is too short for its type.
    Broken,
}

impl ReplyStatus {
    /// What `message` is.
    #[must_use]
    pub fn of(message: &NetlinkMessage<'_>) -> Self {
        match (message.header.kind, message.error_code()) {
            (NLMSG_ERROR, Some(errno)) => Self::verdict(errno, attributes_of_error(message)),
            (NLMSG_DONE, Some(errno)) => {
                Self::verdict(errno.min(0), message.body().get(4..).unwrap_or_default())
            }
            (NLMSG_ERROR | NLMSG_DONE, None) => Self::Broken,
            _ => Self::Content,
        }
    }

    fn verdict(errno: i32, attributes: &[u8]) -> Self {
        let found = ReplyAttributes::of(attributes);
        let text = found.value(TEXT).map(|text| {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            String::from_utf8_lossy(&text[..end]).into_owned()
        });
        let text = text.filter(|text| !text.is_empty());
        match errno {
            0 => Self::Done { warning: text },
            _ => Self::Refused(NetlinkError {
                errno: errno.saturating_neg(),
                text: text.map(Cow::Owned),
                offset: found.read(OFFSET),
            }),
        }
    }
}

/// Behind the errno stands the request, whole or only its header, and behind that the attributes.
fn attributes_of_error<'a>(message: &NetlinkMessage<'a>) -> &'a [u8] {
    let flags = message.flags();
    if !flags.contains(NetlinkFlags::ACK_TLVS) {
        return &[];
    }
    let body = message.body();
    let request = body.get(4..).and_then(|rest| u32::read_from_prefix(rest).ok());
    let len = match request {
        Some((len, _)) if !flags.contains(NetlinkFlags::CAPPED) => {
            usize::try_from(len).unwrap_or(usize::MAX)
        }
        Some(_) | None => NetlinkHeader::LEN,
    };
    body.get(len.checked_add(4).map_or(usize::MAX, aligned)..).unwrap_or_default()
}

/// The attributes of an answer by type.
#[derive(Clone, Debug)]
pub struct ReplyAttributes<'a>(AttributeTable<'a>);

impl<'a> ReplyAttributes<'a> {
    /// Those in a run of bytes; ends at the first that is not whole.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(AttributeTable::first_of_each(bytes))
    }

    /// The value of an attribute.
    #[must_use]
    pub fn value(&self, kind: impl Into<u16>) -> Option<&'a [u8]> {
        self.0.value(kind.into())
    }

    /// The structure that an attribute begins with; `None` also when it is shorter.
    #[must_use]
    pub fn read<T: FromBytes + Immutable>(&self, kind: impl Into<u16>) -> Option<T> {
        T::read_from_prefix(self.value(kind)?).ok().map(|(value, _)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uxfrm_netlink_wire::NetlinkMessages;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let len = u32::try_from(16 + body.len()).unwrap();
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    fn reply(bytes: &[u8]) -> ReplyStatus {
        ReplyStatus::of(&NetlinkMessages::of(bytes).next().unwrap())
    }

    fn text(words: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + words.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(TEXT.to_ne_bytes());
        bytes.extend(words);
        bytes
    }

    #[test]
    fn error_reply_text_is_found_behind_whole_or_capped_request() {
        let request = message(0x10, 1, &[7; 20]);
        for (flags, quoted) in [(0x200, &request[..]), (0x300, &request[..16])] {
            let mut body = (-22_i32).to_ne_bytes().to_vec();
            body.extend(quoted);
            body.extend(text(b"Unsupported mode\0"));
            let refused =
                NetlinkError { errno: 22, text: Some("Unsupported mode".into()), offset: None };
            assert_eq!(reply(&message(NLMSG_ERROR, flags, &body)), ReplyStatus::Refused(refused));
        }
    }

    #[test]
    fn reply_without_attributes_or_too_short_is_classified() {
        assert_eq!(reply(&message(NLMSG_ERROR, 0, &[0; 20])), ReplyStatus::Done { warning: None });
        assert_eq!(reply(&message(NLMSG_DONE, 0, &[0; 4])), ReplyStatus::Done { warning: None });
        assert_eq!(reply(&message(NLMSG_ERROR, 0, &[0; 3])), ReplyStatus::Broken);
        assert_eq!(reply(&message(0x10, 0, &[])), ReplyStatus::Content);
        let done = reply(&message(NLMSG_DONE, 2, &(-4_i32).to_ne_bytes()));
        assert_eq!(done, ReplyStatus::Refused(NetlinkError::bare(4)));
        for len in 0..40 {
            let _ = reply(&message(NLMSG_ERROR, 0x200, &vec![0xff; len]));
        }
    }

    #[test]
    fn reply_attributes_keep_the_first() {
        let bytes = [text(b"one\0"), text(b"two\0")].concat();
        assert_eq!(ReplyAttributes::of(&bytes).value(TEXT), Some(&b"one\0"[..]));
        assert!(format!("{:?}", ReplyAttributes::of(&bytes)).contains("1: 4"));
    }
}
