//! Receive ports: which datagrams are decapsulated, and how (`net/ipv4/fou_core.c`).
//!
//! A port's identity is its family, UDP port, peer port, device, local and peer address, whatever
//! it decapsulates (`fou_cfg_cmp`). Of several matching ports the kernel's socket lookup decides
//! (`net/ipv4/udp.c: compute_score`): one at the datagram's own address comes before one at any,
//! then peer address, peer port and device count.
//!
//! A duplicate is `-EALREADY`. Another port that would share the UDP port at an address, and so
//! could not be bound beside the first, is `-EADDRINUSE`. (Linux binds first, so a duplicate with a
//! port number gives `-EADDRINUSE` there too.)

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use uxfrm_packet::{Protocol, Version};

use crate::config::UdpFraming;
use crate::{Error, TunnelConfig};

/// `AF_INET`.
const AF_INET: u8 = 2;
/// `AF_INET6`.
const AF_INET6: u8 = 10;

/// A request for a port: the attributes of `FOU_CMD_…`, unchecked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortRequest {
    /// `FOU_ATTR_AF`; IPv4 without.
    pub family: Option<u8>,
    /// `FOU_ATTR_PORT`.
    pub port: u16,
    /// `FOU_ATTR_IPPROTO`.
    pub protocol: u8,
    /// `FOU_ATTR_TYPE`.
    pub kind: u8,
    /// `FOU_ATTR_REMCSUM_NOPARTIAL` is present.
    pub remcsum_nopartial: bool,
    /// Not an attribute of the kernel's.
    pub zero_checksum6: ZeroChecksum6,
    /// `FOU_ATTR_LOCAL_V4`.
    pub local4: Option<Ipv4Addr>,
    /// `FOU_ATTR_LOCAL_V6`.
    pub local6: Option<Ipv6Addr>,
    /// `FOU_ATTR_PEER_V4`.
    pub peer4: Option<Ipv4Addr>,
    /// `FOU_ATTR_PEER_V6`.
    pub peer6: Option<Ipv6Addr>,
    /// `FOU_ATTR_PEER_PORT`.
    pub peer_port: Option<u16>,
    /// `FOU_ATTR_IFINDEX`.
    pub device: Option<u32>,
}

/// Identity of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortIdentity {
    /// The family of the datagrams; both addresses are of it.
    pub version: Version,
    /// The UDP port.
    pub port: u16,
    /// The other end's UDP port; 0 for any.
    pub peer_port: u16,
    /// Index of the device that datagrams must come through; 0 for any.
    pub device: u32,
    /// The address that datagrams must come to; unspecified for any.
    pub local: IpAddr,
    /// The address that datagrams must come from; unspecified for any.
    pub peer: IpAddr,
}

/// What a port decapsulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// What follows the UDP header is of this protocol: never 0.
    Direct(Protocol),
    /// A header follows that names the protocol.
    Framed(UdpFraming, RemoteChecksumMode),
}

/// Treatment of remote checksum offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteChecksumMode {
    /// The checksum stays open for the host
    /// ([`Checksum::Partial`](uxfrm_packet::Checksum::Partial)): packets that stay here are not
    /// summed.
    Partial,
    /// It is completed at once (`FOU_ATTR_REMCSUM_NOPARTIAL`).
    Filled,
}

/// Treatment of IPv6 datagrams without UDP checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroChecksum6 {
    /// Accepted, as by the kernel's FOU (`udp_port_cfg.use_udp6_rx_checksums` is not set).
    #[default]
    Allow,
    /// Dropped (RFC 8200 §8.1).
    Refuse,
}

/// A receive port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecapPort {
    /// Which datagrams it takes.
    pub identity: PortIdentity,
    /// Its encapsulation.
    pub encapsulation: Encapsulation,
    /// Its rule for datagrams over IPv6 without checksum.
    pub zero_checksum6: ZeroChecksum6,
}

impl DecapPort {
    /// Checks a request to add a port, in the kernel's order (`parse_nl_config`, `fou_create`).
    ///
    /// # Errors
    /// As [`PortIdentity::of`], then [`Error::PortZero`], [`Error::PortType`],
    /// [`Error::PortProtocol`].
    pub fn of(request: &PortRequest) -> Result<Self, Error> {
        let identity = PortIdentity::of(request)?;
        if identity.port == 0 {
            return Err(Error::PortZero);
        }
        let framing = UdpFraming::from_number(request.kind.into()).ok_or(Error::PortType)?;
        let encapsulation = match request.protocol {
            _ if framing.properties().names_protocol => Encapsulation::Framed(
                framing,
                if request.remcsum_nopartial {
                    RemoteChecksumMode::Filled
                } else {
                    RemoteChecksumMode::Partial
                },
            ),
            0 => return Err(Error::PortProtocol),
            protocol => Encapsulation::Direct(Protocol(protocol)),
        };
        Ok(Self { identity, encapsulation, zero_checksum6: request.zero_checksum6 })
    }

    /// The request that creates this port, as `FOU_CMD_GET` returns it (`fou_fill_info`).
    #[must_use]
    pub fn request(&self) -> PortRequest {
        let PortIdentity { version, port, peer_port, device, local, peer } = self.identity;
        let (framing, protocol, mode) = match self.encapsulation {
            Encapsulation::Direct(protocol) => (UdpFraming::Fou, protocol.0, None),
            Encapsulation::Framed(framing, mode) => (framing, 0, Some(mode)),
        };
        let mut request = PortRequest {
            family: Some(match version {
                Version::V4 => AF_INET,
                Version::V6 => AF_INET6,
            }),
            port,
            protocol,
            kind: framing.properties().number,
            remcsum_nopartial: mode == Some(RemoteChecksumMode::Filled),
            zero_checksum6: self.zero_checksum6,
            peer_port: Some(peer_port),
            device: Some(device),
            ..PortRequest::default()
        };
        match (local, peer) {
            (IpAddr::V4(local), IpAddr::V4(peer)) => {
                (request.local4, request.peer4) = (Some(local), Some(peer));
            }
            (IpAddr::V6(local), IpAddr::V6(peer)) => {
                (request.local6, request.peer6) = (Some(local), Some(peer));
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => {}
        }
        request
    }

    /// Match score of a datagram to its UDP port; `None` if it does not match.
    fn score(&self, datagram: &Datagram) -> Option<u8> {
        let PortIdentity { version: _, port: _, peer_port, device, local, peer } = self.identity;
        let wanted = |asked: bool, there: bool, worth: u8| match (asked, there) {
            (false, _) => Some(0),
            (true, true) => Some(worth),
            (true, false) => None,
        };
        if local.is_ipv4() != datagram.to.is_ipv4() {
            return None;
        }
        Some(
            wanted(!local.is_unspecified(), local == datagram.to.ip(), 4)?
                + wanted(!peer.is_unspecified(), peer == datagram.from.ip(), 1)?
                + wanted(peer_port != 0, peer_port == datagram.from.port(), 1)?
                + wanted(device != 0, device == datagram.device, 1)?,
        )
    }

    /// Whether two sockets for these could not be bound together.
    fn clashes(&self, other: &PortIdentity) -> bool {
        let ours = &self.identity;
        let overlap = |a: IpAddr, b: IpAddr| a == b || a.is_unspecified() || b.is_unspecified();
        ours.version == other.version
            && ours.port == other.port
            && (ours.device == other.device || ours.device == 0 || other.device == 0)
            && overlap(ours.local, other.local)
    }
}

impl PortIdentity {
    /// Parses a port's identity from a request (`parse_nl_config`).
    ///
    /// # Errors
    /// [`Error::PortFamily`], [`Error::PeerPort`], [`Error::DeviceLocal`].
    pub fn of(request: &PortRequest) -> Result<Self, Error> {
        let (version, local, peer) = match request.family.unwrap_or(AF_INET) {
            AF_INET => {
                let [local, peer] = [request.local4, request.peer4].map(|ip| ip.map(IpAddr::V4));
                (Version::V4, local, peer)
            }
            AF_INET6 => {
                let [local, peer] = [request.local6, request.peer6].map(|ip| ip.map(IpAddr::V6));
                (Version::V6, local, peer)
            }
            _ => return Err(Error::PortFamily),
        };
        // Without a peer, the kernel reads no peer port.
        let peer_port = match (peer, request.peer_port) {
            (Some(_), Some(port)) => port,
            (Some(_), None) => return Err(Error::PeerPort),
            (None, _) => 0,
        };
        let device = match (request.device, local) {
            (Some(_), None) => return Err(Error::DeviceLocal),
            (device, _) => device.unwrap_or(0),
        };
        let any = TunnelConfig::any(version);
        let (local, peer) = (local.unwrap_or(any), peer.unwrap_or(any));
        Ok(Self { version, port: request.port, peer_port, device, local, peer })
    }
}

/// Addresses, ports and device of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) device: u32,
}

/// The receive ports of a gateway.
#[derive(Clone, Debug, Default)]
pub struct DecapPorts {
    /// Latest first, as the kernel lists them.
    ports: Vec<DecapPort>,
}

impl DecapPorts {
    /// No ports.
    #[must_use]
    pub const fn new() -> Self {
        Self { ports: Vec::new() }
    }

    /// Adds one.
    ///
    /// # Errors
    /// [`Error::PortAlready`], [`Error::PortInUse`].
    pub fn add(&mut self, port: DecapPort) -> Result<(), Error> {
        if self.ports.iter().any(|other| other.identity == port.identity) {
            return Err(Error::PortAlready);
        }
        if self.ports.iter().any(|other| other.clashes(&port.identity)) {
            return Err(Error::PortInUse);
        }
        self.ports.insert(0, port);
        Ok(())
    }

    /// Deletes one and returns it.
    ///
    /// # Errors
    /// [`Error::PortMissing`].
    pub fn delete(&mut self, identity: &PortIdentity) -> Result<DecapPort, Error> {
        let at = self.ports.iter().position(|port| port.identity == *identity);
        at.map(|at| self.ports.remove(at)).ok_or(Error::PortMissing)
    }

    /// The port of this identity (`fou_nl_get_doit`).
    ///
    /// # Errors
    /// [`Error::PortZero`], [`Error::PortUnknown`].
    pub fn find(&self, identity: &PortIdentity) -> Result<&DecapPort, Error> {
        if identity.port == 0 {
            return Err(Error::PortZero);
        }
        let port = self.ports.iter().find(|port| port.identity == *identity);
        port.ok_or(Error::PortUnknown)
    }

    /// All, the latest first.
    pub fn iter(&self) -> impl Iterator<Item = &DecapPort> {
        self.ports.iter()
    }

    /// The port that takes a datagram. Gateways have few ports, and comparing few is faster than
    /// hashing.
    pub(crate) fn of(&self, datagram: &Datagram) -> Option<&DecapPort> {
        let number = datagram.to.port();
        let there = self.ports.iter().filter(|port| port.identity.port == number);
        let scored = there.filter_map(|port| Some((port.score(datagram)?, port)));
        // Of equals the earliest: the kernel's list is in order of binding.
        scored.max_by_key(|(score, _)| *score).map(|(_, port)| port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECT: u8 = UdpFraming::Fou.properties().number;
    const GUE: u8 = UdpFraming::Gue.properties().number;

    fn request(port: u16) -> PortRequest {
        PortRequest { port, kind: DIRECT, protocol: 4, ..PortRequest::default() }
    }

    #[test]
    fn requests_fail_with_the_kernels_errno() {
        let v4 = Some(Ipv4Addr::LOCALHOST);
        for (request, errno) in [
            (PortRequest { protocol: 0, ..request(5) }, 22),
            (PortRequest { kind: 0, ..request(5) }, 22),
            (PortRequest { kind: 3, ..request(5) }, 22),
            (PortRequest { family: Some(1), ..request(5) }, 97),
            (PortRequest { peer4: v4, ..request(5) }, 22),
            (PortRequest { device: Some(3), ..request(5) }, 22),
            (request(0), 22),
        ] {
            assert_eq!(DecapPort::of(&request).map_err(Error::errno), Err(errno), "{request:?}");
        }
        let gue = PortRequest { kind: GUE, protocol: 0, ..request(5) };
        let encapsulation = Encapsulation::Framed(UdpFraming::Gue, RemoteChecksumMode::Partial);
        assert_eq!(DecapPort::of(&gue).unwrap().encapsulation, encapsulation);
        // An address of the other family is ignored.
        let other = PortRequest { peer6: Some(Ipv6Addr::LOCALHOST), ..request(5) };
        assert_eq!(DecapPort::of(&other).unwrap().identity.peer, IpAddr::from([0, 0, 0, 0]));
    }

    #[test]
    fn port_round_trips_its_request() {
        let asked = PortRequest {
            family: Some(AF_INET6),
            kind: GUE,
            protocol: 0,
            remcsum_nopartial: true,
            zero_checksum6: ZeroChecksum6::Refuse,
            local6: Some(Ipv6Addr::LOCALHOST),
            peer6: Some("2001:db8::1".parse().unwrap()),
            peer_port: Some(9),
            device: Some(2),
            ..request(5)
        };
        assert_eq!(DecapPort::of(&asked).unwrap().request(), asked);
    }

    #[test]
    fn port_identity_has_six_fields() {
        let mut ports = DecapPorts::new();
        let first = DecapPort::of(&request(5)).unwrap();
        ports.add(first).unwrap();
        let other = DecapPort::of(&PortRequest { protocol: 41, ..request(5) }).unwrap();
        assert_eq!(ports.add(other), Err(Error::PortAlready));
        let local = Some(Ipv4Addr::LOCALHOST);
        let narrow = DecapPort::of(&PortRequest { local4: local, ..request(5) }).unwrap();
        assert_eq!(ports.add(narrow), Err(Error::PortInUse));
        assert_eq!(ports.delete(&narrow.identity), Err(Error::PortMissing));
        assert_eq!(ports.find(&narrow.identity), Err(Error::PortUnknown));
        assert_eq!(Error::PortAlready.errno(), 114);
        assert_eq!(ports.delete(&other.identity), Ok(first));
        ports.add(narrow).unwrap();
        let v6 = PortRequest { family: Some(AF_INET6), ..request(5) };
        ports.add(DecapPort::of(&v6).unwrap()).unwrap();
        assert_eq!(ports.iter().next().unwrap().identity.version, Version::V6);
    }

    #[test]
    fn most_specific_port_takes_datagram() {
        let mut ports = DecapPorts::new();
        let local = |last| Some(Ipv4Addr::from([10, 0, 0, last]));
        for asked in [
            PortRequest { protocol: 1, local4: local(1), ..request(5) },
            PortRequest {
                protocol: 2,
                local4: local(2),
                peer4: local(9),
                peer_port: Some(7),
                ..request(5)
            },
            PortRequest { protocol: 3, ..request(6) },
        ] {
            ports.add(DecapPort::of(&asked).unwrap()).unwrap();
        }
        // Lookup also works for ports that could not be bound together, if sockets share.
        ports.ports.push(DecapPort::of(&PortRequest { protocol: 4, ..request(5) }).unwrap());
        let taken = |from: &str, to: &str| {
            let datagram =
                Datagram { from: from.parse().unwrap(), to: to.parse().unwrap(), device: 1 };
            ports.of(&datagram).map(|port| port.encapsulation)
        };
        let direct = |protocol| Some(Encapsulation::Direct(Protocol(protocol)));
        assert_eq!(taken("10.0.0.9:1", "10.0.0.1:5"), direct(1));
        assert_eq!(taken("10.0.0.9:7", "10.0.0.2:5"), direct(2));
        assert_eq!(taken("10.0.0.9:8", "10.0.0.2:5"), direct(4));
        assert_eq!(taken("10.0.0.8:7", "10.0.0.2:5"), direct(4));
        assert_eq!(taken("10.0.0.8:7", "10.0.0.2:6"), direct(3));
        assert_eq!(taken("10.0.0.8:7", "10.0.0.2:7"), None);
        assert_eq!(taken("[fd00::1]:7", "[fd00::2]:5"), None);
    }
}
