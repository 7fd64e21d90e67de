//! Encodes a route request byte for byte (`linux/rtnetlink.h`). Each change of a policy makes two
//! requests of a few words: encoding them through attribute lists took longer than all else that a
//! gateway does about a route.

use netlink_packet_core::NLM_F_REQUEST;
use uxfrm_netlink_wire::{AttributeWriter, set_message_len};

use super::{Route, Via};

/// Kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignalRequest {
    /// `RTM_NEWROUTE`
    New = 24,
    /// `RTM_DELROUTE`
    Delete = 25,
}

/// Bytes of an `nlmsghdr` and an `rtmsg`.
const HEAD: usize = 16 + 12;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;
const RTN_BLACKHOLE: u8 = 6;
const RTN_UNREACHABLE: u8 = 7;
const RTN_THROW: u8 = 9;

const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_TABLE: u16 = 15;
const RTAX_MTU: u16 = 2;

/// Appends a request to a datagram.
pub(super) fn append(
    request: SignalRequest,
    flags: u16,
    sequence: u32,
    route: &Route,
    bytes: &mut Vec<u8>,
) {
    let start = bytes.len();
    bytes.extend(head(request, flags, sequence, route));
    let mut out = AttributeWriter::new(bytes);
    out.address(RTA_DST, route.destination.address());
    out.ne32(RTA_TABLE, route.table);
    match route.via {
        Via::Link(link) => out.ne32(RTA_OIF, link),
        Via::Gateway(gateway, link) => {
            out.address(RTA_GATEWAY, gateway);
            link.into_iter().for_each(|link| out.ne32(RTA_OIF, link));
        }
        Via::Unreachable | Via::Blackhole | Via::Throw => {}
    }
    route.source.into_iter().for_each(|source| out.address(RTA_PREFSRC, source));
    route.metric.into_iter().for_each(|metric| out.ne32(RTA_PRIORITY, metric));
    if let Some(mtu) = route.mtu {
        out.nest_unflagged(RTA_METRICS, |metrics| metrics.ne32(RTAX_MTU, mtu));
    }
    set_message_len(&mut bytes[start..]);
}

/// Both headers, without the length.
fn head(request: SignalRequest, flags: u16, sequence: u32, route: &Route) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[4..6].copy_from_slice(&(request as u16).to_ne_bytes());
    head[6..8].copy_from_slice(&(NLM_F_REQUEST | flags).to_ne_bytes());
    head[8..12].copy_from_slice(&sequence.to_ne_bytes());
    let family = if route.destination.address().is_ipv4() { AF_INET } else { AF_INET6 };
    let (scope, kind) = match route.via {
        Via::Link(_) => (RT_SCOPE_LINK, RTN_UNICAST),
        Via::Gateway(..) => (RT_SCOPE_UNIVERSE, RTN_UNICAST),
        Via::Unreachable => (RT_SCOPE_UNIVERSE, RTN_UNREACHABLE),
        Via::Blackhole => (RT_SCOPE_UNIVERSE, RTN_BLACKHOLE),
        Via::Throw => (RT_SCOPE_UNIVERSE, RTN_THROW),
    };
    // A larger table number is only in the attribute.
    let table = u8::try_from(route.table).unwrap_or(0);
    let [no_source, no_tos] = [0, 0];
    head[16..24].copy_from_slice(&[
        family,
        route.destination.length(),
        no_source,
        no_tos,
        table,
        RTPROT_STATIC,
        scope,
        kind,
    ]);
    head
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NLM_F_CREATE, NetlinkMessage, NetlinkPayload};
    use netlink_packet_route::RouteNetlinkMessage;

    use std::net::IpAddr;

    use super::*;
    use crate::rtnetlink::{RoutePrefix, route::read};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn routes() -> Vec<Route> {
        let nets = [("10.1.2.0", 23), ("2001:db8::", 33), ("0.0.0.0", 0), ("::1", 128)];
        let mut routes = Vec::new();
        for (net, length) in nets {
            let net = RoutePrefix::new(address(net), length).unwrap();
            let peer = address(if net.address().is_ipv4() { "192.0.2.1" } else { "2001:db8:7::1" });
            let vias = [
                Via::Link(7),
                Via::Gateway(peer, None),
                Via::Gateway(peer, Some(0x0102_0304)),
                Via::Unreachable,
                Via::Blackhole,
                Via::Throw,
            ];
            for via in vias {
                let plain = Route::new(net, via);
                let full = Route {
                    table: 51_820,
                    source: Some(peer),
                    metric: Some(u32::MAX - 1),
                    mtu: Some(1380),
                    ..plain
                };
                routes.extend([plain, full]);
            }
        }
        routes
    }

    /// The result as another codec reads it.
    #[test]
    fn encoded_route_decodes_by_other_codec() {
        let mut bytes = Vec::new();
        for (route, sequence) in routes().iter().zip(5..) {
            append(SignalRequest::New, NLM_F_CREATE, sequence, route, &mut bytes);
        }
        let mut rest = &bytes[..];
        for (route, sequence) in routes().into_iter().zip(5..) {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).unwrap();
            rest = &rest[message.header.length as usize..];
            assert_eq!(message.header.flags, NLM_F_REQUEST | NLM_F_CREATE);
            assert_eq!(message.header.sequence_number, sequence);
            let NetlinkPayload::InnerMessage(inner) = message.payload else { panic!("{route}") };
            assert_eq!(read(inner), Some(route));
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn deleted_rule_is_reported() {
        let mut bytes = Vec::new();
        append(SignalRequest::Delete, 0, 1, &routes()[0], &mut bytes);
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes).unwrap();
        let is_delete = |payload| {
            matches!(payload, NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelRoute(_)))
        };
        assert!(is_delete(message.payload));
    }
}
