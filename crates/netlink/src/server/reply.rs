//! `NLMSG_ERROR`: acknowledgements and refusals (`net/netlink/af_netlink.c: netlink_ack`).

use uxfrm_netlink_wire::{Flags, Message, NLMSG_ERROR};
use zerocopy::IntoBytes as _;

use super::client::{ClientId, Options};
use crate::{Datagram, Refusal};

const TEXT: u16 = 1;
const OFFSET: u16 = 2;

/// An acknowledgement, without the request's body.
pub(super) fn acknowledge(
    client: ClientId,
    options: Options,
    message: Message<'_>,
    warning: Option<&'static str>,
) -> Datagram {
    let warning = warning.filter(|_| options.contains(Options::EXT_ACK));
    let tlvs = if warning.is_some() { Flags::ACK_TLVS } else { Flags::empty() };
    let mut datagram = begin(client, message, Flags::CAPPED | tlvs);
    datagram.put(&0_i32).put_bytes(&message.header.to_bytes());
    if let Some(text) = warning {
        put_text(&mut datagram, text);
    }
    datagram
}

/// A refusal: errno, request, and extended ACK, as the client's options say.
pub(super) fn refuse(
    client: ClientId,
    options: Options,
    message: Message<'_>,
    refusal: &Refusal,
) -> Datagram {
    let is_wordy = options.contains(Options::EXT_ACK);
    let (text, offset) = (refusal.text.as_ref(), refusal.offset);
    let (text, offset) = (text.filter(|_| is_wordy), offset.filter(|_| is_wordy));
    let is_capped = options.contains(Options::CAP_ACK);
    let capped = if is_capped { Flags::CAPPED } else { Flags::empty() };
    let says_more = text.is_some() || offset.is_some();
    let tlvs = if says_more { Flags::ACK_TLVS } else { Flags::empty() };
    let mut datagram = begin(client, message, capped | tlvs);
    datagram.put(&-refusal.errno);
    if is_capped {
        datagram.put_bytes(&message.header.to_bytes());
    } else {
        datagram.put_bytes(message.bytes);
    }
    if let Some(text) = text {
        put_text(&mut datagram, text);
    }
    if let Some(offset) = offset {
        datagram.raw_attribute(OFFSET, &[offset.as_bytes()]);
    }
    datagram
}

fn begin(client: ClientId, message: Message<'_>, flags: Flags) -> Datagram {
    Datagram::new(NLMSG_ERROR, flags.bits(), message.header.seq, client.port)
}

fn put_text(datagram: &mut Datagram, text: &str) {
    datagram.raw_attribute(TEXT, &[text.as_bytes(), &[0]]);
}
