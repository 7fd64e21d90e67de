//! `NLMSG_ERROR`: acknowledgements and refusals (`net/netlink/af_netlink.c: netlink_ack`).

use zerocopy::IntoBytes as _;

use super::client::ClientId;
use crate::{
    Datagram, Refusal,
    message::{ERROR, Flags, Message},
};

const TEXT: u16 = 1;
const OFFSET: u16 = 2;

/// All is well; the request's body is left out.
pub(super) fn acknowledge(
    client: ClientId,
    message: Message<'_>,
    warning: Option<&'static str>,
) -> Datagram {
    let mut datagram = begin(client, message, Flags::CAPPED | tlvs(warning.is_some()));
    datagram.put(&0_i32).put(&message.header);
    if let Some(text) = warning {
        put_text(&mut datagram, text);
    }
    datagram
}

/// An errno, the whole request, and the extended ACK.
pub(super) fn refuse(client: ClientId, message: Message<'_>, refusal: &Refusal) -> Datagram {
    let has_words = refusal.text.is_some() || refusal.offset.is_some();
    let mut datagram = begin(client, message, tlvs(has_words));
    datagram.put(&-refusal.errno).put_bytes(message.bytes);
    if let Some(text) = &refusal.text {
        put_text(&mut datagram, text);
    }
    if let Some(offset) = refusal.offset {
        datagram.raw_attribute(OFFSET, &[offset.as_bytes()]);
    }
    datagram
}

fn begin(client: ClientId, message: Message<'_>, flags: Flags) -> Datagram {
    let mut datagram = Datagram::new();
    datagram.begin(ERROR, flags.bits(), message.header.seq, client.port);
    datagram
}

const fn tlvs(there: bool) -> Flags {
    if there { Flags::ACK_TLVS } else { Flags::empty() }
}

fn put_text(datagram: &mut Datagram, text: &str) {
    datagram.raw_attribute(TEXT, &[text.as_bytes(), &[0]]);
}
