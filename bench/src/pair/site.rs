//! The two ends and their addresses.

use std::net::Ipv4Addr;

/// One end: a gateway with a network behind it, all in one network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewaySite {
    /// Its name on the screen and in file names.
    pub name: &'static str,
    /// The address in the protected network, on the loopback device.
    pub lan: Ipv4Addr,
    /// The protected network's first address; it has 24 bits.
    pub lan_net: Ipv4Addr,
    /// The address on the wire, the source of ESP.
    pub wire: Ipv4Addr,
    /// The SPI of inbound packets.
    pub spi: u32,
}

impl GatewaySite {
    /// The gateway's address in the protected network, if the hosts there are others.
    #[must_use]
    pub fn lan_gateway(&self) -> Ipv4Addr {
        let [a, b, c, _] = self.lan_net.octets();
        Ipv4Addr::new(a, b, c, 254)
    }
}

/// Bits of the prefixes: those behind the sites and the one between them.
pub const PREFIX_LEN: u8 = 24;

/// The name of the interface between the sites, at either end.
pub const WIRE: &str = "wire";

/// The name of the interface between a gateway and a host behind it, at either end.
pub const LAN: &str = "lan";

/// What the wire carries at most, in bytes of IP packet.
pub const WIRE_MTU: u32 = 1500;

/// The UDP port of ESP and IKE (RFC 3948).
pub const ESP_IN_UDP: u16 = 4500;

/// From where ping and TCP go.
pub const A: GatewaySite = GatewaySite {
    name: "a",
    lan: Ipv4Addr::new(10, 1, 0, 1),
    lan_net: Ipv4Addr::new(10, 1, 0, 0),
    wire: Ipv4Addr::new(192, 0, 2, 1),
    spi: 0xa000,
};

/// To where they go.
pub const B: GatewaySite = GatewaySite {
    name: "b",
    lan: Ipv4Addr::new(10, 2, 0, 1),
    lan_net: Ipv4Addr::new(10, 2, 0, 0),
    wire: Ipv4Addr::new(192, 0, 2, 2),
    spi: 0xb000,
};
