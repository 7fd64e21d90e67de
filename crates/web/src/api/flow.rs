//! The parameters of `why`: a packet by its addresses, or one that was dropped by its number.

use std::net::IpAddr;

use serde::Deserialize;
use utoipa::IntoParams;
use uxfrm_status::explanation::{EspQuery, FlowQuery, FlowWay, PROTOCOLS};

use super::query::{misfit, missing, wrong};
use crate::problem::Problem;

/// A packet whose way is asked for, or the number of one that was dropped.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FlowParameters {
    /// A packet that was dropped, by the number of its record; then no other parameter.
    drop: Option<u64>,
    /// Source address; needed unless `drop` is there.
    #[param(value_type = Option<uxfrm_status::openapi::AddressText>)]
    source: Option<IpAddr>,
    /// Destination address, of the same family; needed unless `drop` is there.
    #[param(value_type = Option<uxfrm_status::openapi::AddressText>)]
    destination: Option<IpAddr>,
    /// IP protocol, by number or name.
    #[param(
        pattern = "^([0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5]|icmp|ipip|tcp|udp|gre|esp|ipv6-icmp|sctp)$"
    )]
    protocol: Option<String>,
    /// Source port, or ICMP type.
    #[param(maximum = 65535)]
    source_port: Option<u16>,
    /// Destination port, or ICMP code.
    #[param(maximum = 65535)]
    destination_port: Option<u16>,
    /// Packet mark, in decimal or, behind `0x`, in hexadecimal.
    #[param(pattern = "^(0x[0-9a-fA-F]{1,8}|[0-9]{1,9})$")]
    mark: Option<String>,
    /// Which way it goes; without, in if the gateway has the destination address or there is ESP.
    way: Option<FlowWay>,
    /// SPI of the ESP packet that it comes in, in decimal or, behind `0x`, in hexadecimal.
    #[param(pattern = "^(0x[0-9a-fA-F]{1,8}|[0-9]{1,9})$")]
    spi: Option<String>,
    /// Outer source of that; without, any.
    #[param(value_type = Option<uxfrm_status::openapi::AddressText>)]
    esp_source: Option<IpAddr>,
    /// Outer destination of that; without, that of the state with this SPI.
    #[param(value_type = Option<uxfrm_status::openapi::AddressText>)]
    esp_destination: Option<IpAddr>,
}

/// What is asked for.
#[derive(Debug)]
pub(crate) enum FlowQuestion {
    /// A packet.
    Flow(FlowQuery),
    /// One that was dropped, by the number of its record.
    Drop(u64),
}

impl FlowParameters {
    /// The question.
    ///
    /// # Errors
    /// Parameters that do not go together.
    pub(crate) fn question(self) -> Result<FlowQuestion, Problem> {
        match self.drop {
            None => self.query().map(FlowQuestion::Flow),
            Some(number) if self.is_drop_alone() => Ok(FlowQuestion::Drop(number)),
            Some(_) => Err(wrong("drop names the packet: leave out the other parameters")),
        }
    }

    const fn is_drop_alone(&self) -> bool {
        let Self { source, destination, protocol, source_port, destination_port, .. } = self;
        let Self { mark, way, spi, esp_source, esp_destination, .. } = self;
        let flow = source.is_some() || destination.is_some() || protocol.is_some();
        let ports = source_port.is_some() || destination_port.is_some();
        let esp = spi.is_some() || esp_source.is_some() || esp_destination.is_some();
        !(flow || ports || esp || mark.is_some() || way.is_some())
    }

    fn query(self) -> Result<FlowQuery, Problem> {
        let (source, destination) = (self.source, self.destination);
        let source = source.ok_or_else(|| missing("source"))?;
        let destination = destination.ok_or_else(|| missing("destination"))?;
        let Self { source_port, destination_port, way, .. } = self;
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(wrong(format!("{source} and {destination} are of different families")));
        }
        let protocol = self.protocol.as_deref().map(protocol).transpose()?;
        let spi = self.spi.as_deref().map(|text| number("spi", text)).transpose()?;
        let mark = self.mark.as_deref().map(|text| number("mark", text)).transpose()?;
        if spi.is_none() && (self.esp_source.is_some() || self.esp_destination.is_some()) {
            return Err(wrong(
                "esp_source and esp_destination are the ends of an ESP packet: say its spi, too",
            ));
        }
        if spi.is_some() && way == Some(FlowWay::Out) {
            return Err(wrong("a packet with spi comes in: leave out way=out"));
        }
        let (source_of_esp, destination_of_esp) = (self.esp_source, self.esp_destination);
        let esp =
            spi.map(|spi| EspQuery { spi, source: source_of_esp, destination: destination_of_esp });
        Ok(FlowQuery {
            source,
            destination,
            protocol,
            source_port,
            destination_port,
            mark,
            way,
            esp,
        })
    }
}

/// In decimal or, behind `0x`, in hexadecimal.
fn number(name: &str, text: &str) -> Result<u32, Problem> {
    let read = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    read.map_err(|_| wrong(misfit(name, text)))
}

/// By number or name.
fn protocol(text: &str) -> Result<u8, Problem> {
    let named = PROTOCOLS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    let number = named.or_else(|| text.parse().ok());
    number.ok_or_else(|| wrong(misfit("protocol", text)))
}
