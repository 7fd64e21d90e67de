//! The link-layer header of a received frame, and the two bytes that flow director rules may match.

use uxfrm_packet::PacketBuf;
use uxfrm_packet::ethernet::{EtherType, EthernetFrame};

use super::Framing;

/// The header before the IP packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkHeader {
    bytes: [u8; Self::MOST],
    len: usize,
    pub(super) vlan: Option<u16>,
}

/// Bytes of an Ethernet header without tags.
const UNTAGGED: usize = 14;

impl LinkHeader {
    /// Addresses, two VLAN tags, EtherType.
    const MOST: usize = 22;

    /// Removes the header; without one, assumes Ethernet's length. `None` if no IP packet follows.
    pub(super) fn take(packet: &mut PacketBuf, framing: Framing) -> Option<Self> {
        let mut header = Self { bytes: [0; Self::MOST], len: UNTAGGED, vlan: None };
        if framing == Framing::Ip {
            return Some(header);
        }
        let frame = EthernetFrame::parse(packet.bytes()).ok()?;
        if !matches!(frame.ether_type, EtherType::IPV4 | EtherType::IPV6) {
            return None;
        }
        header.vlan = frame.tags.first().map(|tag| tag.control.get());
        header.len = frame.header_len().min(Self::MOST);
        header.bytes[..header.len].copy_from_slice(packet.bytes().get(..header.len)?);
        packet.pull(header.len);
        Some(header)
    }

    /// The two bytes of the frame at `offset`, which is even: of the link-layer header, or of
    /// `packet` as it goes to the host.
    pub(super) fn flex(&self, packet: &[u8], offset: u16) -> Option<u16> {
        let offset = usize::from(offset);
        let bytes = match offset.checked_sub(self.len) {
            Some(behind) => packet.get(behind..behind + 2)?,
            None => self.bytes.get(offset..offset + 2)?,
        };
        bytes.try_into().ok().map(u16::from_be_bytes)
    }
}
