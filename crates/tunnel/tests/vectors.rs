//! Every kind and encapsulation byte for byte as scapy builds them (`vectors/generate.py`), both
//! directions.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails so; clippy.toml does not reach helpers of integration tests"
)]

use std::num::NonZeroU16;

use uxfrm_packet::{PacketBuf, Version};
use uxfrm_tunnel::config::{
    CarriedVersions, FlowLabel, GreField, GreOptions, HeaderByte, SourcePort, TunnelUdpEncap,
    UdpChecksum, UdpFraming,
};
use uxfrm_tunnel::{
    ALL_PORTS, DecapPort, DecapPorts, Decapsulation, Egress, HashSeed, PortRequest, Tunnel,
    TunnelConfig, TunnelKind, Tunnels,
};

/// A line of `scapy.txt`.
struct Vector {
    config: TunnelConfig,
    inner: Vec<u8>,
    outer: Vec<u8>,
}

impl Vector {
    fn of(line: &str) -> Self {
        let words: Vec<&str> = line.split(' ').collect();
        let &[kind, encap, options, inner, outer] = &words[..] else {
            panic!("five words: {line}")
        };
        let kind = TunnelKind::ALL.into_iter().find(|known| known.name() == kind).unwrap();
        Self { config: config(kind, encap, options), inner: bytes(inner), outer: bytes(outer) }
    }

    fn ports(&self) -> DecapPorts {
        let mut ports = DecapPorts::new();
        if let Some(encap) = self.config.udp {
            let carried = if self.inner[0] >> 4 == 4 { Version::V4 } else { Version::V6 };
            let request = PortRequest {
                family: Some(if self.config.kind.outer() == Version::V4 { 2 } else { 10 }),
                port: encap.destination_port.get(),
                kind: if encap.framing == UdpFraming::Fou { 1 } else { 2 },
                protocol: self.config.kind.protocol(carried).0,
                ..PortRequest::default()
            };
            ports.add(DecapPort::of(&request).unwrap()).unwrap();
        }
        ports
    }
}

fn config(kind: TunnelKind, encap: &str, options: &str) -> TunnelConfig {
    let ends = match kind.outer() {
        Version::V4 => ["192.0.2.1", "192.0.2.2"],
        Version::V6 => ["2001:db8::1", "2001:db8::2"],
    };
    let [local, remote] = ends.map(|end| end.parse().unwrap());
    let has = |option| options.split(',').any(|word| word == option);
    let field = |option| if has(option) { GreField::With } else { GreField::Without };
    let mut config = TunnelConfig::new(kind, local, remote);
    config.ttl = HeaderByte::Fixed(225);
    config.tos = HeaderByte::Fixed(0x10);
    config.flow_label = FlowLabel::Fixed(0x12345);
    config.encap_limit = has("limit").then_some(4);
    config.output = GreOptions {
        key: has("key").then_some(0xc0_ffee),
        sequence: field("seq"),
        checksum: field("csum"),
    };
    if kind == TunnelKind::Sit {
        config.carries = CarriedVersions::Both;
    }
    config.udp = match encap.split_once('-').unwrap_or((encap, "")) {
        ("none", _) => None,
        (framing, checksum) => {
            let framing = if framing == "fou" { UdpFraming::Fou } else { UdpFraming::Gue };
            let checksum =
                if checksum == "csum" { UdpChecksum::Computed } else { UdpChecksum::Zero };
            Some(TunnelUdpEncap {
                source_port: SourcePort::Fixed(NonZeroU16::new(4444).unwrap()),
                checksum4: checksum,
                checksum6: checksum,
                ..TunnelUdpEncap::new(framing, NonZeroU16::new(5555).unwrap())
            })
        }
    };
    config
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn vectors() -> impl Iterator<Item = (&'static str, Vector)> {
    include_str!("vectors/scapy.txt").lines().map(|line| (line, Vector::of(line)))
}

#[test]
fn out_as_scapy_builds_them() {
    let egress =
        Egress { path_mtu: 1500, device_mtu: 1400, seed: HashSeed(1), source_ports: ALL_PORTS };
    let mut count = 0;
    for (line, Vector { config, inner, outer }) in vectors() {
        let tunnel = Tunnel::new("t", config).unwrap();
        let mut packet = PacketBuf::from_slice(&inner);
        tunnel.encapsulate(&mut packet, &egress).unwrap().push(&mut packet).unwrap();
        assert_eq!(packet.bytes(), outer, "{line}");
        count += 1;
    }
    assert!(count > 150, "{count} vectors");
}

#[test]
fn in_as_scapy_builds_them() {
    for (line, vector) in vectors() {
        let config = &vector.config;
        let (local, remote) = (config.remote, config.local);
        let far = TunnelConfig { local, remote, input: config.output, ..config.clone() };
        let mut tunnels = Tunnels::new();
        tunnels.add(Tunnel::new("t", far).unwrap()).unwrap();
        let mut packet = PacketBuf::from_slice(&vector.outer);
        let inside = tunnels.receive(&mut packet, 0, &vector.ports()).unwrap();
        assert!(matches!(inside, Decapsulation::Tunnel(_)), "{line}");
        assert_eq!(packet.bytes(), vector.inner, "{line}");
    }
}
