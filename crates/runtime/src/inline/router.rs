//! Router rules of inline mode: which packets are the gateway's, and the TTL.

use std::net::{IpAddr, SocketAddr};

use uxfrm_engine::HostAddresses;
use uxfrm_packet::{
    Checksum, Fragment, IpPacket, PacketBuf, Protocol, Segments, UdpPath, Version, checksum,
    udp::{self, UdpDatagram},
};

/// Classes of packets that come by a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketClass {
    /// To be forwarded; kept from the host's stack.
    Forward,
    /// ESP to this gateway; kept from the host's stack.
    Esp,
    /// The host's, whose stack has it already.
    Host,
    /// From an impossible source.
    Martian,
}

/// Classifies a packet from the protected port, where ESP to the gateway is the host's, as all to
/// it.
#[inline]
pub(super) fn classify(ip: &IpPacket, own: &HostAddresses) -> PacketClass {
    if is_link_local(ip.destination) || is_link_local(ip.source) || own.holds(ip.destination) {
        PacketClass::Host
    } else if is_martian(ip, own) {
        PacketClass::Martian
    } else {
        PacketClass::Forward
    }
}

/// Classifies a packet from the wire, where ESP arrives; `ports` are those of ESP in UDP.
#[inline]
pub(super) fn classify_on_wire(
    ip: &IpPacket,
    bytes: &[u8],
    own: &HostAddresses,
    ports: &[u16],
) -> PacketClass {
    match classify(ip, own) {
        PacketClass::Host if is_link_local(ip.destination) => PacketClass::Host,
        PacketClass::Host if is_unicast(ip.destination) && is_esp(ip, bytes, ports) => {
            PacketClass::Esp
        }
        class @ (PacketClass::Host
        | PacketClass::Forward
        | PacketClass::Esp
        | PacketClass::Martian) => class,
    }
}

/// Matches ESP, and unfragmented ESP in UDP without IPv6 extension headers. The host reassembles
/// fragments of ESP in UDP, as later ones have no ports; they come by its socket.
fn is_esp(ip: &IpPacket, bytes: &[u8], ports: &[u16]) -> bool {
    match ip.protocol {
        Protocol::ESP => true,
        Protocol::UDP => {
            ip.fragment == Fragment::None
                && (ip.version == Version::V4 || !ip.has_options)
                && is_esp_in_udp(ip.upper(bytes), ports)
        }
        Protocol(_) => false,
    }
}

/// Matches four bytes that are not IKE's marker (RFC 3948 §2.2), as the rules do that keep the
/// host's stack out.
fn is_esp_in_udp(upper: &[u8], ports: &[u16]) -> bool {
    UdpDatagram::parse(upper).is_ok_and(|datagram| {
        ports.contains(&datagram.header.destination.get())
            && datagram.payload.get(..4).is_some_and(|marker| marker != [0; 4])
    })
}

/// Sources that no router forwards (RFC 1812 §5.3.7, RFC 4291 §2.7). Our own address comes back
/// only by a loop or by spoofing.
fn is_martian(ip: &IpPacket, own: &HostAddresses) -> bool {
    let nowhere = ip.destination.is_loopback() || ip.destination.is_unspecified();
    let nobody = ip.source.is_loopback() || ip.source.is_unspecified();
    // The host's addresses include multicast and broadcast.
    nowhere || nobody || own.holds(ip.source)
}

fn is_unicast(address: IpAddr) -> bool {
    !address.is_multicast()
}

/// IPv6 link-local addresses, which no router forwards (RFC 4291 §2.5.6).
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Decrements the TTL of a packet that has more than one hop left (RFC 1812 §5.3.1, RFC 8200 §3).
#[inline]
pub(super) fn decrement_ttl(packet: &mut PacketBuf) {
    let bytes = packet.bytes_mut();
    match bytes.first().map(|first| first >> 4) {
        Some(4) if bytes.len() >= 12 => {
            let old = u16::from_be_bytes([bytes[8], bytes[9]]);
            let sum = u16::from_be_bytes([bytes[10], bytes[11]]);
            bytes[8] -= 1;
            let new = u16::from_be_bytes([bytes[8], bytes[9]]);
            bytes[10..12].copy_from_slice(&checksum::update(sum, old, new).to_be_bytes());
        }
        Some(6) if bytes.len() >= 8 => bytes[7] -= 1,
        Some(_) | None => {}
    }
}

/// Turns ESP in UDP that GRO joined into the burst of UDP payloads that a socket would deliver.
/// Gives anything else back.
pub(super) fn into_gso_burst(mut packet: PacketBuf, ip: &IpPacket) -> Result<PacketBuf, PacketBuf> {
    let Segments::Udp { size } = packet.segments else { return Err(packet) };
    let Ok(datagram) = UdpDatagram::parse(ip.upper(packet.bytes())) else { return Err(packet) };
    let (source, destination) = (datagram.header.source.get(), datagram.header.destination.get());
    packet.trim(ip.total_len);
    packet.pull(ip.header_len + udp::HEADER_LEN);
    packet.udp = Some(UdpPath {
        local: SocketAddr::new(ip.destination, destination),
        remote: SocketAddr::new(ip.source, source),
        tos: ip.tos,
        dont_fragment: false,
    });
    packet.checksum = Checksum::AsIs;
    packet.segments = Segments::Burst { stride: size };
    Ok(packet)
}

#[cfg(test)]
mod tests;
