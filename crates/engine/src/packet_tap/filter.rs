//! Which packets are wanted.

use std::net::IpAddr;

use super::headers::{EspStart, PacketHeaders};
use crate::{FlowKey, Prefix, Spi};

/// Which packets are wanted: those for which all holds that is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapFilter {
    /// An address of the packet's IP header.
    pub host: Option<Prefix>,
    /// Its IP protocol.
    pub protocol: Option<u8>,
    /// One of its ports; of ICMP the type.
    pub port: Option<u16>,
    /// An outer address of the ESP packet.
    pub peer: Option<Prefix>,
    /// The SPI of the ESP packet.
    pub spi: Option<Spi>,
}

impl TapFilter {
    /// Whether it selects everything.
    #[must_use]
    pub fn is_open(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it asks for something of an ESP packet.
    #[must_use]
    pub const fn names_esp(&self) -> bool {
        self.peer.is_some() || self.spi.is_some()
    }

    /// Whether it asks for something of the IP header and behind it.
    #[must_use]
    pub const fn names_flow(&self) -> bool {
        self.host.is_some() || self.protocol.is_some() || self.port.is_some()
    }

    /// Whether address, protocol and port fit. What can't be read fits only an open filter.
    #[must_use]
    pub fn selects_flow(&self, flow: Option<&FlowKey>) -> bool {
        let Some(flow) = flow else { return !self.names_flow() };
        let either = |prefix: Prefix| holds(prefix, flow.source, flow.destination);
        self.host.is_none_or(either)
            && self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self
                .port
                .is_none_or(|port| [flow.source_port, flow.destination_port].contains(&port))
    }

    /// Whether outer addresses and SPI of an ESP packet fit.
    #[must_use]
    pub fn selects_esp(&self, source: IpAddr, destination: IpAddr, spi: Spi) -> bool {
        self.peer.is_none_or(|prefix| holds(prefix, source, destination))
            && self.spi.is_none_or(|wanted| wanted == spi)
    }

    /// Whether these headers fit: ESP has to be there if it is asked for.
    #[must_use]
    pub fn selects(&self, headers: &PacketHeaders) -> bool {
        let esp = || match (headers.esp, headers.flow) {
            (Some(EspStart { spi, .. }), Some(outer)) => {
                self.selects_esp(outer.source, outer.destination, spi)
            }
            (Some(_), None) | (None, _) => !self.names_esp(),
        };
        self.selects_flow(headers.flow.as_ref()) && esp()
    }
}

fn holds(prefix: Prefix, source: IpAddr, destination: IpAddr) -> bool {
    prefix.contains(source) || prefix.contains(destination)
}
