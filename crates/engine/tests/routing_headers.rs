//! An IPv6 routing header leads no plain packet to a protected destination.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::net::Ipv6Addr;

use uxfrm_engine::{Direction, DropReason, Family, Mode, PolicyKind, PortMask, Prefix};
use uxfrm_packet::{PacketBuf, Protocol};
use uxfrm_testkit::{IpsecSetup, PairDirection, TestGatewayPair, packets};

/// A datagram by way of `fd88::1` behind this chain of headers, of which the first is of this kind.
fn led_on(first: u8, headers: &[&[u8]]) -> PacketBuf {
    let upper = [&headers.concat()[..], &[0, 7, 0, 9, 0, 8, 0, 0]].concat();
    let (source, by) = ("fd00:1::5".parse().unwrap(), "fd88::1".parse().unwrap());
    PacketBuf::from_slice(&packets::ip(source, by, Protocol(first), &upper))
}

fn routing(next: u8, kind: u8, [left, last]: [u8; 2], stops: &[&str]) -> Vec<u8> {
    let mut bytes = vec![next, u8::try_from(2 * stops.len()).unwrap(), kind, left, last, 0, 0, 0];
    for stop in stops {
        bytes.extend(stop.parse::<Ipv6Addr>().unwrap().octets());
    }
    bytes
}

#[test]
fn routing_header_cannot_reach_protected_destination() {
    let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    let (end, by) = ("fd00:2::1", "fd88::1");
    let segments = routing(17, 4, [1, 1], &[end, by]);
    let before_atomic = routing(44, 4, [1, 1], &[end, by]);
    let done = routing(43, 0, [0, 0], &[by]);
    let (options, atomic) = ([43, 0, 1, 4, 0, 0, 0, 0], [17, 0, 0, 0, 0, 0, 0, 7]);
    let unknown = routing(17, 253, [1, 0], &["fd99::1"]);
    let elsewhere = routing(17, 4, [1, 1], &["fd99::1", by]);
    let no_more = routing(17, 0, [0, 0], &[end]);
    let cases: [(&str, u8, &[&[u8]], bool); 10] = [
        ("segments", 43, &[&segments], false),
        ("behind one that is done with", 43, &[&done, &segments], false),
        ("source route of two", 43, &[&routing(17, 0, [2, 0], &["fd77::1", end])], false),
        ("home address", 43, &[&routing(17, 2, [1, 0], &[end])], false),
        ("before an atomic fragment", 43, &[&before_atomic, &atomic], false),
        (
            "behind options, before an atomic fragment",
            0,
            &[&options, &before_atomic, &atomic],
            false,
        ),
        ("of a type that nobody knows", 43, &[&unknown], false),
        ("to elsewhere", 43, &[&elsewhere], true),
        ("that is done with", 43, &[&no_more], true),
        ("none", 17, &[], true),
    ];
    // Where a policy asks for ports, fragments wait for the whole.
    for beside_ports in [false, true] {
        for (name, first, headers, passes) in cases {
            let mut left = TestGatewayPair::new(&setup).left;
            if beside_ports {
                let mut other = setup.policy(Direction::Out, PairDirection::LeftToRight);
                other.selector.destination = "fd66::1".parse().map(Prefix::host).unwrap();
                other.selector.protocol = 6;
                other.selector.destination_port = PortMask::exactly(7000);
                left.add_policy(other);
            }
            let (wire, _) = left.outbound(vec![led_on(first, headers)]);
            let reasons = if passes { vec![] } else { vec![(DropReason::OutUnprotected, 1)] };
            assert_eq!((wire.len(), left.reasons()), (usize::from(passes), reasons), "{name}");
            left.assert_packets_accounted();
        }
    }
}

#[test]
fn routing_headers_pass_without_protect_policy() {
    let setup = IpsecSetup::new(Mode::Tunnel, Family::V6, Family::V4);
    for header in [routing(17, 4, [1, 0], &["fd00:2::1"]), routing(17, 253, [1, 0], &["fd99::1"])] {
        let mut left = TestGatewayPair::new(&setup).left;
        left.database.apply(left.now, |change| change.flush_policies(PolicyKind::Main));
        assert_eq!(left.outbound(vec![led_on(43, &[&header])]).0.len(), 1);
    }
}
