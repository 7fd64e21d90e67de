//! UDP decapsulation (`net/ipv4/fou_core.c: fou_udp_recv, gue_udp_recv`). The kernel shortens the
//! IP header's length and leaves its checksum wrong; `restore` fixes it.
//!
//! 1 IP header, or the socket's addresses → 2 UDP: receive port, checksum → 3 GUE: protocol, open
//! checksum → 2 again while there is UDP in UDP.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6, Ipv6Header};
use uxfrm_packet::udp::{self, UdpDatagram};
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Protocol, UdpPath, Version};
use zerocopy::IntoBytes;

use crate::DropReason;
use crate::gue::RemoteChecksum;
use crate::ports::{
    Datagram, DecapPort, DecapPorts, Encapsulation, RemoteChecksumMode, ZeroChecksum6,
};

/// Most nested UDP encapsulations.
pub const MAX_UDP_LAYERS: usize = 4;

/// Origin of a received packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Index of the receiving device; 0 if unknown, which no port bound to a device accepts.
    pub device: u32,
    /// Addresses of the receiving socket, for UDP payload. The kernel has verified the UDP
    /// checksum.
    pub udp: Option<UdpPath>,
    /// State of the transport checksum.
    pub checksum: Checksum,
}

impl Arrival {
    /// A whole packet received through `device`.
    #[must_use]
    pub fn of(packet: &PacketBuf, device: u32) -> Self {
        Self { device, udp: packet.udp, checksum: packet.checksum }
    }
}

/// A packet without its UDP headers.
#[derive(Clone, Debug)]
pub struct UdpDecapsulated {
    /// Outer source address.
    pub source: IpAddr,
    /// Outer destination address.
    pub destination: IpAddr,
    /// The outer header's DSCP and ECN.
    pub tos: u8,
    /// Protocol of `span`: UDP only if no port takes it.
    pub protocol: Protocol,
    /// Its range in the packet.
    pub span: Range<usize>,
    /// State of its checksums.
    pub(crate) known: KnownSum,
    /// Length of the IP header in front, and offset of its protocol field.
    header: Option<(usize, usize)>,
}

/// State of the checksums of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownSum {
    /// Nothing.
    Nothing,
    /// Unknown to the sender as well: raw sockets do not report GRO or open checksums.
    Unreported,
    /// Their sum, which an outer checksum covered: it saves summing them for an inner one.
    Sum(Sum),
    /// An open checksum; offsets as in [`Checksum::Partial`], from the packet's first byte.
    Open {
        /// Start of the sum.
        start: usize,
        /// Offset of the checksum field.
        field: usize,
    },
}

impl KnownSum {
    /// The state after `bytes`, of even length, were removed from the front.
    pub(crate) fn without(self, bytes: &[u8]) -> Self {
        match self {
            Self::Sum(sum) => Self::Sum(minus(sum, Sum::of(bytes))),
            other @ (Self::Nothing | Self::Unreported | Self::Open { .. }) => other,
        }
    }
}

/// The difference of two sums (RFC 1624 §2: one's complement).
pub(crate) fn minus(sum: Sum, part: Sum) -> Sum {
    sum.plus_u16(!part.fold())
}

/// Strips UDP, and GUE in it, from a whole IP packet or a UDP socket's payload.
///
/// The bytes change only where a remote checksum is completed. Without UDP the span is the upper
/// layer.
///
/// # Errors
/// [`DropReason::InMalformed`], [`DropReason::InFragment`], [`DropReason::InNoPort`],
/// [`DropReason::InUdpChecksum`], [`DropReason::InZeroChecksum`], [`DropReason::InTooDeep`] and the
/// variants named `InGue…`.
pub fn decapsulate_udp(
    bytes: &mut [u8],
    arrival: Arrival,
    ports: &DecapPorts,
) -> Result<UdpDecapsulated, DropReason> {
    // 1
    let mut decapped = match arrival.udp {
        Some(path) => of_socket(path, bytes, arrival.device, ports)?,
        None => of_packet(bytes)?,
    };
    // 2, 3
    let mut layers = usize::from(arrival.udp.is_some());
    while decapped.protocol == Protocol::UDP {
        let Some((port, payload)) = decapped.port(bytes, arrival.device, ports)? else {
            // After one layer it is an ordinary datagram; otherwise it must be for one of our
            // ports.
            return if layers > 0 { Ok(decapped) } else { Err(DropReason::InNoPort) };
        };
        if layers == MAX_UDP_LAYERS {
            return Err(DropReason::InTooDeep);
        }
        decapped.check_udp(&bytes[decapped.span.start..payload.end], arrival.checksum, port)?;
        decapped.known = decapped.known.without(&bytes[decapped.span.start..payload.start]);
        decapped.span = payload;
        decapped.open(bytes, port.encapsulation)?;
        layers += 1;
    }
    Ok(decapped)
}

impl UdpDecapsulated {
    /// Restores a whole packet, with its IP header before the payload, for another receiver: ESP, a
    /// host.
    ///
    /// Lengths, next header and the IPv4 checksum are correct; packets from a UDP socket get a new
    /// IP header, with a TTL of 64. Returns the upper layer: GUE may name an IPv6 extension header,
    /// which then belongs to the packet's headers.
    ///
    /// # Errors
    /// [`DropReason::InMalformed`] when the packet is another one, or has no room for a header;
    /// [`DropReason::InInnerMalformed`] for truncated extension headers.
    pub fn restore(&self, packet: &mut PacketBuf) -> Result<Protocol, DropReason> {
        let malformed = DropReason::InMalformed;
        packet.trim(self.span.end);
        let whole = match self.header {
            Some((header_len, next_header_at)) => {
                let start = self.span.start.checked_sub(header_len).ok_or(malformed)?;
                let bytes = packet.bytes_mut();
                if bytes.len() < self.span.end || next_header_at >= header_len {
                    return Err(malformed);
                }
                bytes.copy_within(..header_len, start);
                bytes[start + next_header_at] = self.protocol.0;
                packet.pull(start);
                finish_header(packet.bytes_mut())
            }
            None => {
                packet.pull(self.span.start);
                self.push_header(packet)
            }
        };
        packet.udp = None;
        packet.checksum = Checksum::AsIs;
        whole.ok_or(malformed)?;
        let ip = IpPacket::parse(packet.bytes()).map_err(|_| DropReason::InInnerMalformed)?;
        Ok(ip.protocol)
    }

    /// The port that takes the present datagram, and the range of its payload.
    fn port<'p>(
        &self,
        bytes: &[u8],
        device: u32,
        ports: &'p DecapPorts,
    ) -> Result<Option<(&'p DecapPort, Range<usize>)>, DropReason> {
        let UdpDatagram { header, payload, .. } =
            UdpDatagram::parse(&bytes[self.span.clone()]).map_err(|_| DropReason::InMalformed)?;
        let datagram = Datagram {
            from: SocketAddr::new(self.source, header.source.get()),
            to: SocketAddr::new(self.destination, header.destination.get()),
            device,
        };
        let start = self.span.start + udp::HEADER_LEN;
        Ok(ports.of(&datagram).map(|port| (port, start..start + payload.len())))
    }

    /// Verifies the UDP checksum of `datagram`, a whole datagram; a correct one gives the payload's
    /// sum.
    fn check_udp(
        &mut self,
        datagram: &[u8],
        checksum: Checksum,
        port: &DecapPort,
    ) -> Result<(), DropReason> {
        let is_first = self.header.is_some_and(|(header_len, _)| self.span.start == header_len);
        let trusted = is_first && checksum != Checksum::AsIs;
        self.known = match (&datagram[6..8], self.source) {
            _ if trusted => KnownSum::Nothing,
            ([0, 0], IpAddr::V4(_)) => KnownSum::Nothing,
            ([0, 0], IpAddr::V6(_)) => match port.zero_checksum6 {
                ZeroChecksum6::Allow => KnownSum::Nothing,
                ZeroChecksum6::Refuse => return Err(DropReason::InZeroChecksum),
            },
            (_, _) => {
                let len = u32::try_from(datagram.len()).map_err(|_| DropReason::InMalformed)?;
                let sum = Sum::of(datagram);
                let (from, to) = (self.source, self.destination);
                let pseudo = Sum::of_pseudo(from, to, Protocol::UDP, len);
                if pseudo.plus(sum).fold() != 0xffff {
                    return Err(DropReason::InUdpChecksum);
                }
                KnownSum::Sum(sum)
            }
        };
        Ok(())
    }

    /// Advances to a datagram's payload.
    fn open(&mut self, bytes: &mut [u8], encapsulation: Encapsulation) -> Result<(), DropReason> {
        let (framing, mode) = match encapsulation {
            Encapsulation::Direct(protocol) => {
                self.protocol = protocol;
                return Ok(());
            }
            Encapsulation::Framed(framing, mode) => (framing, mode),
        };
        let header = framing.parse(&bytes[self.span.clone()])?;
        let start = self.span.start + header.len;
        self.known = self.known.without(&bytes[self.span.start..start]);
        self.span.start = start;
        self.protocol = header.protocol.unwrap_or(self.protocol);
        match header.checksum {
            Some(checksum) => self.close(bytes, checksum, mode),
            None => Ok(()),
        }
    }

    /// Applies remote checksum offload (`skb_remcsum_process`).
    fn close(
        &mut self,
        bytes: &mut [u8],
        checksum: RemoteChecksum,
        mode: RemoteChecksumMode,
    ) -> Result<(), DropReason> {
        let [start, field] =
            [checksum.start, checksum.field].map(|at| self.span.start + usize::from(at.get()));
        if field < start || field + 2 > self.span.end {
            return Err(DropReason::InGueRemoteChecksum);
        }
        self.known = KnownSum::Open { start, field };
        if mode == RemoteChecksumMode::Filled {
            self.fill(bytes);
        }
        Ok(())
    }

    /// Completes an open checksum.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        if let KnownSum::Open { start, field } = self.known {
            let checksum = Sum::of(&bytes[start..self.span.end]).nonzero_checksum();
            bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
            self.known = KnownSum::Nothing;
        }
    }

    fn push_header(&self, packet: &mut PacketBuf) -> Option<()> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let len = u16::try_from(packet.len() + ipv4::HEADER_LEN).ok()?;
                let mut header = Ipv4Header::new(source, destination, self.protocol, len);
                header.tos = self.tos;
                header.fill_checksum();
                packet.push(ipv4::HEADER_LEN)?.copy_from_slice(header.as_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let len = u16::try_from(packet.len()).ok()?;
                let mut header = Ipv6Header::new(source, destination, self.protocol, len);
                header.set_traffic_class(self.tos);
                packet.push(ipv6::HEADER_LEN)?.copy_from_slice(header.as_bytes());
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        }
        Some(())
    }
}

/// Writes the length, and IPv4's checksum, of the header in front of `packet`.
pub(crate) fn finish_header(packet: &mut [u8]) -> Option<()> {
    let len = packet.len();
    if packet.first()? >> 4 == 4 {
        packet.get_mut(2..4)?.copy_from_slice(&u16::try_from(len).ok()?.to_be_bytes());
        ipv4::fill_checksum(packet).ok()
    } else {
        let len = u16::try_from(len.checked_sub(ipv6::HEADER_LEN)?).ok()?;
        packet.get_mut(4..6)?.copy_from_slice(&len.to_be_bytes());
        Some(())
    }
}

/// State for a UDP socket's payload.
fn of_socket(
    path: UdpPath,
    bytes: &mut [u8],
    device: u32,
    ports: &DecapPorts,
) -> Result<UdpDecapsulated, DropReason> {
    let datagram = Datagram { from: path.remote, to: path.local, device };
    let port = ports.of(&datagram).ok_or(DropReason::InNoPort)?;
    let mut decapped = UdpDecapsulated {
        source: path.remote.ip(),
        destination: path.local.ip(),
        tos: path.tos,
        protocol: Protocol::UDP,
        span: 0..bytes.len(),
        known: KnownSum::Nothing,
        header: None,
    };
    decapped.open(bytes, port.encapsulation)?;
    Ok(decapped)
}

fn of_packet(bytes: &[u8]) -> Result<UdpDecapsulated, DropReason> {
    let ip = IpPacket::parse(bytes).map_err(|_| DropReason::InMalformed)?;
    if ip.is_fragment() {
        return Err(DropReason::InFragment);
    }
    let next_header_at = next_header_at(&ip, bytes).ok_or(DropReason::InMalformed)?;
    Ok(UdpDecapsulated {
        source: ip.source,
        destination: ip.destination,
        tos: ip.tos,
        protocol: ip.protocol,
        span: ip.header_len..ip.total_len,
        known: KnownSum::Unreported,
        header: Some((ip.header_len, next_header_at)),
    })
}

/// Offset of the field that names the upper layer.
pub(crate) fn next_header_at(ip: &IpPacket, bytes: &[u8]) -> Option<usize> {
    match ip.version {
        Version::V4 => Some(9),
        Version::V6 => Some(Ipv6::parse(bytes).ok()?.chain().ok()?.upper_place.next_header_at),
    }
}
