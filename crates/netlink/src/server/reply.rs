//! `NLMSG_ERROR`: acknowledgements and refusals (`net/netlink/af_netlink.c: netlink_ack`).

use uxfrm_netlink_wire::{NLMSG_ERROR, NetlinkFlags, NetlinkMessage};
use zerocopy::IntoBytes as _;

use super::client::{ClientId, SocketOptions};
use crate::{NetlinkDatagram, NetlinkError};

const TEXT: u16 = 1;
const OFFSET: u16 = 2;

/// An acknowledgement, without the request's body.
pub(super) fn acknowledge(
    client: ClientId,
    options: SocketOptions,
    message: NetlinkMessage<'_>,
    warning: Option<&'static str>,
) -> NetlinkDatagram {
    let warning = warning.filter(|_| options.contains(SocketOptions::EXT_ACK));
    let tlvs = if warning.is_some() { NetlinkFlags::ACK_TLVS } else { NetlinkFlags::empty() };
    let mut datagram = begin(client, message, NetlinkFlags::CAPPED | tlvs);
    datagram.put(&0_i32).put_bytes(&message.header.to_bytes());
    if let Some(text) = warning {
        put_text(&mut datagram, text);
    }
    datagram
}

/// A refusal: errno, request, and extended ACK, as the client's options say.
pub(super) fn refuse(
    client: ClientId,
    options: SocketOptions,
    message: NetlinkMessage<'_>,
    refusal: &NetlinkError,
) -> NetlinkDatagram {
    let is_wordy = options.contains(SocketOptions::EXT_ACK);
    let (text, offset) = (refusal.text.as_ref(), refusal.offset);
    let (text, offset) = (text.filter(|_| is_wordy), offset.filter(|_| is_wordy));
    let is_capped = options.contains(SocketOptions::CAP_ACK);
    let capped = if is_capped { NetlinkFlags::CAPPED } else { NetlinkFlags::empty() };
    let says_more = text.is_some() || offset.is_some();
    let tlvs = if says_more { NetlinkFlags::ACK_TLVS } else { NetlinkFlags::empty() };
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

fn begin(client: ClientId, message: NetlinkMessage<'_>, flags: NetlinkFlags) -> NetlinkDatagram {
    NetlinkDatagram::new(NLMSG_ERROR, flags.bits(), message.header.seq, client.port)
}

fn put_text(datagram: &mut NetlinkDatagram, text: &str) {
    datagram.raw_attribute(TEXT, &[text.as_bytes(), &[0]]);
}
