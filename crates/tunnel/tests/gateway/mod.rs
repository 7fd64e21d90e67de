//! A gateway with a tunnel of every kind and a receive port of every sort.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Pool, UdpPath, Version};
use uxfrm_tunnel::config::{
    CarriedVersions, GreField, GreOptions, RemoteOffload, TunnelUdpEncap, UdpChecksum, UdpFraming,
};
use uxfrm_tunnel::{
    ALL_PORTS, DecapPort, DecapPorts, Decapsulation, DropReason, Egress, HashSeed, Outer,
    PortRequest, Tunnel, TunnelConfig, TunnelKind, Tunnels,
};

/// Receive ports: for each protocol of a tunnel, for ESP, for UDP itself, and for GUE.
pub(crate) const PORTS: [(u16, u8); 7] =
    [(5504, 4), (5541, 41), (5547, 47), (5550, 50), (5517, 17), (5600, 0), (5601, 0)];

/// One end of all tunnels.
pub(crate) struct Gateway {
    pub(crate) tunnels: Tunnels,
    pub(crate) ports: DecapPorts,
}

/// Which end of the tunnels a gateway is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Left,
    Right,
}

impl Gateway {
    pub(crate) fn new(end: End) -> Self {
        let mut tunnels = Tunnels::new();
        for config in configs(end) {
            let name = format!("t{}", tunnels.iter().count());
            tunnels.add(Tunnel::new(&name, config).expect("can be")).expect("is another");
        }
        Self { tunnels, ports: ports() }
    }

    /// Receives a packet of the network, and checks the result.
    pub(crate) fn receive(&self, packet: &mut PacketBuf) -> Result<(), DropReason> {
        let before = packet.len();
        let inside = self.tunnels.receive(packet, 1, &self.ports)?;
        assert!(packet.len() <= before + 40, "nothing is added but an IP header");
        let ip = IpPacket::parse(packet.bytes()).expect("what comes out is an IP packet");
        assert_eq!(ip.trailing, 0);
        match inside {
            Decapsulation::Tunnel(tunnel) => assert!(tunnel.config().carries.takes(ip.version)),
            Decapsulation::Other(protocol) => assert_eq!(ip.protocol, protocol),
        }
        if let Checksum::Partial { start, offset } = packet.checksum {
            assert!(usize::from(start) + usize::from(offset) + 2 <= packet.len());
        }
        Ok(())
    }

    /// Sends a packet of the host through tunnel `index`.
    pub(crate) fn send(&self, index: usize, packet: &mut PacketBuf) -> Result<Outer, DropReason> {
        let tunnel = self.tunnels.iter().nth(index % configs(End::Left).len()).expect("below");
        let before = packet.bytes().to_vec();
        let (outer, pushed) = match tunnel.encapsulate(packet, &egress()) {
            Ok(outer) => (outer, outer.push(packet)),
            Err(refused) => {
                if let Some(message) = refused.tell {
                    assert_eq!(packet.bytes(), before, "what is quoted is as it was");
                    let _ = message.about(packet.bytes(), &mut Pool::new());
                }
                return Err(refused.reason);
            }
        };
        pushed?;
        assert_eq!(IpPacket::parse(packet.bytes()).expect("a packet").trailing, 0);
        Ok(outer)
    }
}

fn egress() -> Egress {
    Egress { path_mtu: 1500, device_mtu: 1400, seed: HashSeed(1), source_ports: ALL_PORTS }
}

fn ends(version: Version, number: usize, end: End) -> [IpAddr; 2] {
    let number = u8::try_from(number).expect("few tunnels");
    let ends: [IpAddr; 2] = match version {
        Version::V4 => [[192, 0, 2, number].into(), [198, 51, 100, number].into()],
        Version::V6 => [
            [0x2001, 0xdb8, 0, 0, 0, 0, 1, number.into()].into(),
            [0x2001, 0xdb8, 0, 0, 0, 0, 2, number.into()].into(),
        ],
    };
    let [left, right] = ends;
    if end == End::Left { [left, right] } else { [right, left] }
}

/// Each kind without UDP, in FOU and in GUE, some with all GRE options.
fn configs(end: End) -> Vec<TunnelConfig> {
    let mut configs = Vec::new();
    for kind in TunnelKind::ALL {
        for framing in [None, Some(UdpFraming::Fou), Some(UdpFraming::Gue)] {
            let [local, remote] = ends(kind.outer(), configs.len() + 1, end);
            let mut config = TunnelConfig::new(kind, local, remote);
            config.udp = framing.map(|framing| in_udp(kind, framing));
            if kind.is_gre() && framing.is_none() {
                let all =
                    GreOptions { key: Some(1), sequence: GreField::With, checksum: GreField::With };
                (config.input, config.output) = (all, all);
            }
            if kind == TunnelKind::Sit {
                config.carries = CarriedVersions::Both;
            }
            configs.push(config);
        }
    }
    let any = TunnelConfig::any(Version::V4);
    configs.push(TunnelConfig::new(TunnelKind::Sit, any, any));
    configs
}

fn in_udp(kind: TunnelKind, framing: UdpFraming) -> TunnelUdpEncap {
    let (port, remote_checksum) = match (framing, kind) {
        (UdpFraming::Gue, _) => (5600, RemoteOffload::On),
        (UdpFraming::Fou, TunnelKind::Gre | TunnelKind::Ip6gre) => (5547, RemoteOffload::Off),
        (UdpFraming::Fou, TunnelKind::Ipip) => (5504, RemoteOffload::Off),
        (UdpFraming::Fou, TunnelKind::Sit | TunnelKind::Ip6tnl) => (5541, RemoteOffload::Off),
    };
    TunnelUdpEncap {
        remote_checksum,
        checksum6: UdpChecksum::Computed,
        ..TunnelUdpEncap::new(framing, NonZeroU16::new(port).expect("not 0"))
    }
}

fn ports() -> DecapPorts {
    let mut ports = DecapPorts::new();
    for family in [2, 10] {
        for (port, protocol) in PORTS {
            let request = PortRequest {
                family: Some(family),
                port,
                protocol,
                kind: if protocol == 0 { 2 } else { 1 },
                remcsum_nopartial: port == 5601,
                ..PortRequest::default()
            };
            ports.add(DecapPort::of(&request).expect("can be")).expect("is another");
        }
    }
    ports
}

/// Addresses of a socket on port `number`.
pub(crate) fn path(number: usize) -> UdpPath {
    let (port, _) = PORTS[number % PORTS.len()];
    let version = if (number / PORTS.len()).is_multiple_of(2) { Version::V4 } else { Version::V6 };
    let [local, remote] = ends(version, number / 16 % 16, End::Right);
    UdpPath {
        local: SocketAddr::new(local, port),
        remote: SocketAddr::new(remote, 4444),
        tos: 1,
        dont_fragment: false,
    }
}
