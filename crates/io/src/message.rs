//! Answers of netlink families whose messages begin with a header of their own (generic netlink,
//! netfilter).

use uxfrm_netlink_wire::genl::FAMILY_HEADER_LEN;
use uxfrm_netlink_wire::{
    NLMSG_DONE, NLMSG_ERROR, NLMSG_MIN_TYPE, NetlinkMessage, NetlinkMessages,
};

/// One message of an answer.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub(crate) sequence: u32,
    pub(crate) payload: Payload<'a>,
}

/// The content of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Payload<'a> {
    /// `NLMSG_ERROR`: 0 for success, else a positive errno.
    Result(i32),
    /// `NLMSG_DONE`
    Done,
    /// A message of the family that was asked: its attributes.
    Attributes(&'a [u8]),
    /// A message without meaning here.
    Other,
}

/// The messages of a datagram, up to the first that is cut short.
pub(crate) fn answers(datagram: &[u8]) -> impl Iterator<Item = Answer<'_>> {
    NetlinkMessages::of(datagram)
        .map(|message| Answer { sequence: message.header.seq, payload: payload(message) })
}

fn payload(message: NetlinkMessage<'_>) -> Payload<'_> {
    match (message.header.kind, message.error_code()) {
        (NLMSG_ERROR, Some(code)) => Payload::Result(code.saturating_neg()),
        (NLMSG_DONE, _) => Payload::Done,
        (NLMSG_MIN_TYPE.., _) => {
            Payload::Attributes(message.body().get(FAMILY_HEADER_LEN..).unwrap_or_default())
        }
        _ => Payload::Other,
    }
}
