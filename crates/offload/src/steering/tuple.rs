//! Fields of a packet that decide its queue.

use std::net::IpAddr;

/// The 5-tuple of a decrypted packet, and other fields for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address; of the same family.
    pub destination: IpAddr,
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Source port; 0 without one and in fragments.
    pub source_port: u16,
    /// Destination port; 0 without one and in fragments.
    pub destination_port: u16,
    /// SPI of its ESP header, decrypted or not.
    pub spi: Option<u32>,
    /// VLAN tag's control information.
    pub vlan: Option<u16>,
    /// The two bytes at [`Steering::flex_offset`](super::Steering::flex_offset).
    pub flex: Option<u16>,
}

impl Tuple {
    /// Whether its protocol has ports.
    pub(super) const fn has_ports(&self) -> bool {
        matches!(self.protocol, 6 | 17 | 132)
    }
}
