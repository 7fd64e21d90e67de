//! Destinations in IPv6 routing headers (RFC 8200 §4.4).

use std::net::Ipv6Addr;

use crate::Protocol;
use crate::ipv6::{ExtensionChain, HEADER_LEN, Ipv6};

/// A routing header with unknown destinations: of another type, or malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a routing header of an unknown type, or one that is malformed")]
pub struct UnclearRoute;

/// Source route (RFC 5095 retired it).
const SOURCE_ROUTE: u8 = 0;
/// Home address (RFC 6275 §6.4).
const MOBILE: u8 = 2;
/// Segment routing (RFC 8754).
const SEGMENTS: u8 = 4;
/// Offset of the addresses in all three types.
const ADDRESSES_AT: usize = 8;

/// Visits each address in routing headers with segments left, in no order; any of them may be the
/// final destination.
///
/// A later fragment has no such headers.
///
/// # Errors
/// [`UnclearRoute`], also for bytes that are no IPv6 packet or have a truncated header chain.
pub fn each_stop(bytes: &[u8], mut stop: impl FnMut(Ipv6Addr)) -> Result<(), UnclearRoute> {
    let packet = Ipv6::parse(bytes).map_err(|_| UnclearRoute)?;
    let mut chain = ExtensionChain::begin(packet.header.next_header);
    while chain.goes_on() {
        if chain.upper == Protocol::ROUTING {
            let at = chain.upper_place.offset - HEADER_LEN;
            each_in(packet.payload.get(at..).unwrap_or_default(), &mut stop)?;
        }
        chain.skip(packet.payload).map_err(|_| UnclearRoute)?;
    }
    Ok(())
}

/// Visits the addresses of the routing header at the start of `bytes`.
fn each_in(bytes: &[u8], stop: &mut impl FnMut(Ipv6Addr)) -> Result<(), UnclearRoute> {
    let &[_, len, kind, left, last, ..] = bytes else { return Err(UnclearRoute) };
    if left == 0 {
        return Ok(());
    }
    let len = usize::from(len) * 8;
    let addresses = bytes.get(ADDRESSES_AT..ADDRESSES_AT + len).ok_or(UnclearRoute)?;
    let count = match kind {
        SOURCE_ROUTE | MOBILE if len % 16 == 0 => len / 16,
        SEGMENTS => usize::from(last) + 1,
        _ => return Err(UnclearRoute),
    };
    if usize::from(left) > count || count * 16 > len {
        return Err(UnclearRoute);
    }
    let (addresses, _) = addresses.as_chunks::<16>();
    addresses.iter().take(count).for_each(|address| stop(Ipv6Addr::from(*address)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [&str; 2] = ["fd50::2", "fd88::1"];

    fn address(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().unwrap().octets()
    }

    /// A packet whose payload begins with `first`.
    fn packet(first: u8, headers: &[&[u8]]) -> Vec<u8> {
        let payload = headers.concat();
        let mut bytes = vec![0x60, 0, 0, 0, 0, u8::try_from(payload.len()).unwrap(), first, 64];
        bytes.extend(ENDS.map(address).concat());
        bytes.extend(payload);
        bytes
    }

    fn routing(next: u8, kind: u8, [left, last]: [u8; 2], stops: &[&str]) -> Vec<u8> {
        let len = u8::try_from(stops.len() * 2).unwrap();
        let mut bytes = vec![next, len, kind, left, last, 0, 0, 0];
        stops.iter().for_each(|stop| bytes.extend(address(stop)));
        bytes
    }

    fn found(bytes: &[u8]) -> Result<Vec<String>, UnclearRoute> {
        let mut all = Vec::new();
        each_stop(bytes, |stop| all.push(stop.to_string())).map(|()| all)
    }

    const A: &str = "fd02::1";
    const B: &str = "fd77::1";
    const UDP: [u8; 8] = [0, 7, 0, 9, 0, 8, 0, 0];

    #[test]
    fn remaining_segments_are_visited() {
        let done = routing(43, 4, [0, 0], &["fd99::9"]);
        let to_a = routing(17, 4, [1, 1], &[A, B]);
        let options = [43, 0, 1, 4, 0, 0, 0, 0];
        let atomic = [43, 0, 0, 0, 0, 0, 0, 7];
        let behind_atomic = routing(44, 4, [1, 1], &[A, B]);
        for (name, bytes, expected) in [
            ("none", packet(17, &[&UDP]), vec![]),
            ("done with", packet(43, &[&routing(17, 0, [0, 0], &[A]), &UDP]), vec![]),
            ("segments", packet(43, &[&to_a, &UDP]), vec![A, B]),
            ("two of them", packet(43, &[&done, &to_a, &UDP]), vec![A, B]),
            ("source route", packet(43, &[&routing(17, 0, [2, 0], &[B, A]), &UDP]), vec![B, A]),
            ("home address", packet(43, &[&routing(17, 2, [1, 0], &[A]), &UDP]), vec![A]),
            ("behind options", packet(60, &[&options, &to_a, &UDP]), vec![A, B]),
            ("behind hop-by-hop", packet(0, &[&options, &to_a, &UDP]), vec![A, B]),
            ("behind atomic", packet(44, &[&atomic, &to_a, &UDP]), vec![A, B]),
            (
                "before atomic",
                packet(43, &[&behind_atomic, &[17, 0, 0, 0, 0, 0, 0, 7], &UDP]),
                vec![A, B],
            ),
            ("later fragment", packet(44, &[&[43, 0, 0, 8, 0, 0, 0, 7], &to_a]), vec![]),
        ] {
            assert_eq!(
                found(&bytes),
                Ok(expected.iter().map(ToString::to_string).collect()),
                "{name}"
            );
        }
    }

    #[test]
    fn unknown_routing_headers_are_unclear() {
        for (name, bytes) in [
            ("RPL", packet(43, &[&routing(17, 3, [1, 0], &[A]), &UDP])),
            ("of an experiment", packet(43, &[&routing(17, 253, [1, 0], &[A]), &UDP])),
            ("more left than there are", packet(43, &[&routing(17, 0, [2, 0], &[A]), &UDP])),
            ("fewer than it says", packet(43, &[&routing(17, 4, [1, 4], &[A]), &UDP])),
            ("an odd length", packet(43, &[&[17, 1, 0, 1, 0, 0, 0, 0], &UDP])),
            ("cut short", packet(43, &[&[17, 2, 0, 1, 0, 0, 0, 0]])),
            ("cut at once", packet(43, &[&[17, 2]])),
        ] {
            assert_eq!(found(&bytes), Err(UnclearRoute), "{name}");
        }
    }
}
