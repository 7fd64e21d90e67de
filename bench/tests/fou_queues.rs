//! Four parallel flows through one tunnel, on a card with four receive queues (Toeplitz hash, as the model NICs have it): plain IPIP lands on
//! one, FOU spreads.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use uxfrm_offload::{RssKey, Steering, SteeringLimits, Tuple};
use uxfrm_packet::{FlowPorts, IpPacket};
use uxfrm_testkit::packets;
use uxfrm_tunnel::config::{Framing, UdpEncap};
use uxfrm_tunnel::{ALL_PORTS, Config, Egress, HashSeed, Kind, Tunnel};

const QUEUES: u16 = 4;
const FLOWS: u16 = 4;
const SEEDS: u64 = 64;

/// How many queues the flows are on, once they are in the tunnel.
fn queues(udp: Option<UdpEncap>, seed: u64) -> usize {
    let config = Config::new(Kind::Ipip, [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let tunnel = Tunnel::new("t", Config { udp, ..config }).unwrap();
    let egress =
        Egress { path_mtu: 1500, device_mtu: 1472, seed: HashSeed(seed), source_ports: ALL_PORTS };
    let limits = SteeringLimits { queues: QUEUES, rules: 0, flex_field: false };
    let card = Steering::new(limits, RssKey::default());
    let queue = |flow: u16| {
        let mut packet = packets::udp(&format!("10.0.0.1:{}", 1000 + flow), "10.0.0.2:9", b"");
        let outer = tunnel.encapsulate(&mut packet, &egress).unwrap();
        outer.push(&mut packet).unwrap();
        let target = card.steer(&tuple(packet.bytes()));
        format!("{target:?}")
    };
    (0..FLOWS).map(queue).collect::<BTreeSet<_>>().len()
}

fn tuple(bytes: &[u8]) -> Tuple {
    let ip = IpPacket::parse(bytes).unwrap();
    let ports = FlowPorts::of(&ip, bytes);
    Tuple {
        source: ip.source,
        destination: ip.destination,
        protocol: ip.protocol.0,
        source_port: ports.source,
        destination_port: ports.destination,
        spi: None,
        vlan: None,
        flex: None,
    }
}

#[test]
fn four_flows_spread_over_queues_in_fou_and_not_in_plain_ipip() {
    let fou = UdpEncap::new(Framing::Fou, NonZeroU16::new(5555).unwrap());
    assert!((0..SEEDS).all(|seed| queues(None, seed) == 1));
    let spread: Vec<usize> = (0..SEEDS).map(|seed| queues(Some(fou), seed)).collect();
    // Four throws at four queues hit 2.73 of them.
    let all: usize = spread.iter().sum();
    assert!((SEEDS * 5 / 2..SEEDS * 3).contains(&(all as u64)), "{spread:?}");
}
