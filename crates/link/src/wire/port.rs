//! A receive port between its attributes and what [`uxfrm_tunnel`] takes.

use uxfrm_netlink::fou::PortAttributes;
use uxfrm_tunnel::{PortRequest, ports::ZeroChecksum6};

/// What a request's attributes ask for. No device has a negative number: such a one is not there.
#[must_use]
pub fn request(attributes: &PortAttributes) -> PortRequest {
    PortRequest {
        family: attributes.family,
        port: attributes.port.unwrap_or(0),
        protocol: attributes.protocol.unwrap_or(0),
        kind: attributes.kind.unwrap_or(0),
        remcsum_nopartial: attributes.remcsum_nopartial,
        zero_checksum6: match attributes.checksum6 {
            true => ZeroChecksum6::Refuse,
            false => ZeroChecksum6::Allow,
        },
        local4: attributes.local4,
        local6: attributes.local6,
        peer4: attributes.peer4,
        peer6: attributes.peer6,
        peer_port: attributes.peer_port,
        device: attributes.ifindex.map(|index| u32::try_from(index).unwrap_or(u32::MAX)),
    }
}

/// Attributes of a request, or all of them for an answer (`net/ipv4/fou_core.c: fou_fill_info`).
#[must_use]
pub fn attributes(request: &PortRequest) -> PortAttributes {
    PortAttributes {
        port: Some(request.port),
        family: request.family,
        protocol: Some(request.protocol),
        kind: Some(request.kind),
        remcsum_nopartial: request.remcsum_nopartial,
        local4: request.local4,
        local6: request.local6,
        peer4: request.peer4,
        peer6: request.peer6,
        peer_port: request.peer_port,
        ifindex: request.device.map(|index| i32::try_from(index).unwrap_or(i32::MAX)),
        statistics: None,
        checksum6: request.zero_checksum6 == ZeroChecksum6::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_attributes_round_trip() {
        let asked = PortRequest {
            family: Some(10),
            port: 5555,
            kind: 2,
            local6: "fd00::1".parse().ok(),
            peer6: "fd00::2".parse().ok(),
            peer_port: Some(7),
            device: Some(3),
            zero_checksum6: ZeroChecksum6::Refuse,
            ..PortRequest::default()
        };
        assert_eq!(request(&attributes(&asked)), asked);
        let nobodys = PortAttributes { ifindex: Some(-1), ..PortAttributes::default() };
        assert_eq!(request(&nobodys).device, Some(u32::MAX));
    }
}
