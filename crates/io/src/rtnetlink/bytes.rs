//! Decodes arbitrary bytes as answers and notices of rtnetlink, for fuzzers and tests.

use netlink_packet_route::RouteNetlinkMessage;
use uxfrm_packet::Version;

use super::{address, failure, link, monitor, neighbour, route, route_monitor, rule, take};

/// Sequence number of the answered request.
const NUMBER: u32 = 7;

/// Decodes bytes as a datagram: of a dump, an error, a notice, the head of a notice.
///
/// # Panics
/// When reading does, or accepts an impossible value.
pub(crate) fn decode(bytes: &[u8]) {
    let mut answers = Vec::new();
    let _ = take(bytes, NUMBER, "fuzz", &mut answers);
    answers.into_iter().for_each(read);
    if let Some((_, errno)) = failure(bytes, NUMBER) {
        assert_ne!(errno, 0);
    }
    let _ = route_monitor::read(bytes);
    if let Some(head) = bytes.first_chunk() {
        let _ = monitor::read(head, 3);
    }
}

fn read(answer: RouteNetlinkMessage) {
    let _ = link::read(answer.clone());
    if let Some(found) = address::read(answer.clone()) {
        check(found.prefix);
    }
    let _ = neighbour::read(&answer);
    if let Some(found) = route::read(answer.clone()) {
        check(found.destination);
        let _ = found.to_string();
    }
    let _ = route::choose(answer.clone());
    for version in [Version::V4, Version::V6] {
        if let Some(found) = rule::read(version, answer.clone()) {
            found.source.into_iter().chain(found.destination).for_each(check);
            let _ = found.to_string();
        }
    }
}

fn check(prefix: super::RoutePrefix) {
    let most = if prefix.address().is_ipv4() { 32 } else { 128 };
    assert!(prefix.length() <= most);
}

/// Seeds of the corpus: one of each kind, as the library writes it, and an error.
#[cfg(test)]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    use netlink_packet_route::link::LinkAttribute;
    use netlink_packet_route::route::RouteAttribute;
    use netlink_packet_route::rule::RuleAttribute;
    use netlink_packet_route::{AddressFamily, address, link, neighbour, route, rule};
    use std::net::IpAddr;

    let v4: IpAddr = [192, 0, 2, 1].into();
    let mut new_link = link::LinkMessage::default();
    new_link.header.index = 3;
    new_link.attributes = vec![
        LinkAttribute::IfName("eth0".to_owned()),
        LinkAttribute::Mtu(1500),
        LinkAttribute::Address(vec![2; 6]),
    ];
    let mut new_address = address::AddressMessage::default();
    (new_address.header.family, new_address.header.prefix_len) = (AddressFamily::Inet, 24);
    new_address.attributes.push(address::AddressAttribute::Local(v4));
    let mut new_neighbour = neighbour::NeighbourMessage::default();
    new_neighbour.header.family = AddressFamily::Inet;
    new_neighbour.attributes = vec![
        neighbour::NeighbourAttribute::Destination(v4.into()),
        neighbour::NeighbourAttribute::LinkLayerAddress(vec![2; 6]),
    ];
    let mut new_route = route::RouteMessage::default();
    (new_route.header.address_family, new_route.header.destination_prefix_length) =
        (AddressFamily::Inet, 32);
    new_route.header.kind = route::RouteType::Unicast;
    new_route.attributes = vec![
        RouteAttribute::Destination(v4.into()),
        RouteAttribute::Oif(3),
        RouteAttribute::Gateway(v4.into()),
        RouteAttribute::Metrics(vec![route::RouteMetric::Mtu(1400)]),
        RouteAttribute::Table(254),
    ];
    let mut new_rule = rule::RuleMessage::default();
    (new_rule.header.family, new_rule.header.src_len) = (AddressFamily::Inet, 32);
    new_rule.header.action = rule::RuleAction::ToTable;
    new_rule.attributes =
        vec![RuleAttribute::Source(v4), RuleAttribute::FwMark(1), RuleAttribute::Table(7)];
    let mut seeds: Vec<Vec<u8>> = [
        RouteNetlinkMessage::NewLink(new_link),
        RouteNetlinkMessage::NewAddress(new_address),
        RouteNetlinkMessage::NewNeighbour(new_neighbour),
        RouteNetlinkMessage::NewRoute(new_route),
        RouteNetlinkMessage::NewRule(new_rule),
    ]
    .into_iter()
    .map(written)
    .collect();
    seeds.push(seeds.concat());
    let error = [36_u32, 2, NUMBER, 0, (-2_i32).cast_unsigned(), 20, 0, NUMBER, 0];
    seeds.push(error.into_iter().flat_map(u32::to_ne_bytes).collect());
    seeds
}

#[cfg(test)]
fn written(message: RouteNetlinkMessage) -> Vec<u8> {
    use netlink_packet_core::{NetlinkHeader, NetlinkMessage, NetlinkPayload};
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
    message.header.sequence_number = NUMBER;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
    message.serialize(&mut bytes);
    bytes
}
