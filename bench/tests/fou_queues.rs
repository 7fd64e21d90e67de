//! Four parallel flows through one tunnel, on a NIC with four receive queues (Toeplitz hash, as in
//! the model NICs): plain IPIP uses one queue, FOU several.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use uxfrm_offload::{RssKey, Steering, SteeringLimits, Tuple};
use uxfrm_packet::{FlowPorts, IpPacket};
use uxfrm_testkit::packets;
use uxfrm_tunnel::config::{TunnelUdpEncap, UdpFraming};
use uxfrm_tunnel::{ALL_PORTS, Egress, HashSeed, Tunnel, TunnelConfig, TunnelKind};

const QUEUES: u16 = 4;
const FLOWS: u16 = 4;
const SEEDS: u64 = 64;

/// The number of queues that the encapsulated flows use.
fn queues(udp: Option<TunnelUdpEncap>, seed: u64) -> usize {
    let config = TunnelConfig::new(TunnelKind::Ipip, [192, 0, 2, 1].into(), [192, 0, 2, 2].into());
    let tunnel = Tunnel::new("t", TunnelConfig { udp, ..config }).unwrap();
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
fn fou_spreads_flows_over_queues_and_plain_ipip_does_not() {
    let fou = TunnelUdpEncap::new(UdpFraming::Fou, NonZeroU16::new(5555).unwrap());
    assert!((0..SEEDS).all(|seed| queues(None, seed) == 1));
    let spread: Vec<usize> = (0..SEEDS).map(|seed| queues(Some(fou), seed)).collect();
    // Four random choices of four queues use 2.73 on average.
    let all: usize = spread.iter().sum();
    assert!((SEEDS * 5 / 2..SEEDS * 3).contains(&(all as u64)), "{spread:?}");
}
