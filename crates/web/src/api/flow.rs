//! The parameters of `why`.

use std::net::IpAddr;

use serde::Deserialize;
use utoipa::IntoParams;
use uxfrm_status::explanation::{EspQuery, FlowQuery, FlowWay, PROTOCOLS};

use super::query::{misfit, wrong};
use crate::problem::Problem;

/// A packet whose way is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FlowParameters {
    /// Source address.
    #[param(value_type = uxfrm_status::openapi::AddressText)]
    source: IpAddr,
    /// Destination address; of the same family.
    #[param(value_type = uxfrm_status::openapi::AddressText)]
    destination: IpAddr,
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

impl FlowParameters {
    /// The question.
    ///
    /// # Errors
    /// Parameters that do not go together.
    pub(crate) fn query(self) -> Result<FlowQuery, Problem> {
        let Self { source, destination, source_port, destination_port, way, .. } = self;
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
