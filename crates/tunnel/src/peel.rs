//! Out of UDP: from a packet of the network to what a tunnel, or anybody else, takes.
//!
//! `net/ipv4/fou_core.c: fou_udp_recv, gue_udp_recv`. The kernel subtracts what it pulls from the IP header's length and leaves that
//! header's checksum wrong; [`Peeled::restore`] mends it.
//!
//! 1 IP header, or the socket's word for it → 2 UDP: receive port, checksum → 3 GUE: protocol, checksum left open → 2 again while there is UDP
//! in UDP.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6, Ipv6Header};
use uxfrm_packet::udp::{self, Udp};
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Protocol, UdpPath, Version};
use zerocopy::IntoBytes;

use crate::DropReason;
use crate::gue::{Gue, RemoteChecksum};
use crate::ports::{Datagram, Encapsulation, Port, Ports, RemoteChecksumMode, ZeroChecksum6};

/// UDP encapsulations one in the other at the most.
pub const MAX_PEELS: usize = 4;

/// Where a packet came from, beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The index of the device; 0 where that is not known, which no port bound to a device takes.
    pub device: u32,
    /// Between which ends a socket received the bytes, which are UDP payload then. The kernel has checked the UDP checksum.
    pub udp: Option<UdpPath>,
    /// What is known of the transport checksum.
    pub checksum: Checksum,
}

impl Arrival {
    /// Of a packet in a buffer of its own that came through `device`.
    #[must_use]
    pub fn of(packet: &PacketBuf, device: u32) -> Self {
        Self { device, udp: packet.udp, checksum: packet.checksum }
    }
}

/// What is in a packet, once UDP is off.
#[derive(Clone, Debug)]
pub struct Peeled {
    /// From whom, by the outer header.
    pub source: IpAddr,
    /// To whom.
    pub destination: IpAddr,
    /// The outer header's DSCP and ECN.
    pub tos: u8,
    /// What `span` is: never UDP, unless no port takes it.
    pub protocol: Protocol,
    /// Where in the packet it lies.
    pub span: Range<usize>,
    /// What is known of checksums in it.
    pub(crate) known: Known,
    /// Bytes of IP header at the packet's front, and the byte in them that names what follows.
    header: Option<(usize, usize)>,
}

/// What is known of the bytes of a span.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Known {
    /// Nothing.
    Nothing,
    /// Nothing either, and who gave the packet can't tell: raw sockets do not say what a device joined, or left to the next one.
    Untold,
    /// Their sum, as an outer checksum covered them: it spares summing them for an inner one.
    Sum(Sum),
    /// A checksum in them is still to be filled in; offsets as in [`Checksum::Partial`], from the packet's first byte.
    Open {
        /// Where the sum starts.
        start: usize,
        /// Where it goes.
        field: usize,
    },
}

impl Known {
    /// What is left known when `bytes`, of even length, are taken from the front.
    pub(crate) fn without(self, bytes: &[u8]) -> Self {
        match self {
            Self::Sum(sum) => Self::Sum(minus(sum, Sum::of(bytes))),
            other @ (Self::Nothing | Self::Untold | Self::Open { .. }) => other,
        }
    }
}

/// The difference of two sums (RFC 1624 §2: one's complement).
pub(crate) fn minus(sum: Sum, part: Sum) -> Sum {
    sum.plus_u16(!part.fold())
}

/// Takes UDP, and GUE in it, off a packet of the network: a whole IP packet, or what a UDP socket received.
///
/// The bytes change only where a remote checksum is filled in. A packet that is not UDP is peeled too: its span is the upper layer.
///
/// # Errors
/// [`DropReason::InMalformed`], [`DropReason::InFragment`], [`DropReason::InNoPort`], [`DropReason::InUdpChecksum`],
/// [`DropReason::InZeroChecksum`], [`DropReason::InTooDeep`] and the variants named `InGue…`.
pub fn peel(bytes: &mut [u8], arrival: Arrival, ports: &Ports) -> Result<Peeled, DropReason> {
    // 1
    let mut peeled = match arrival.udp {
        Some(path) => of_socket(path, bytes, arrival.device, ports)?,
        None => of_packet(bytes)?,
    };
    // 2, 3
    let mut peels = usize::from(arrival.udp.is_some());
    while peeled.protocol == Protocol::UDP {
        let Some((port, payload)) = peeled.port(bytes, arrival.device, ports)? else {
            // Peeled before, it is a datagram for whoever; else it would have to be one of ours.
            return if peels > 0 { Ok(peeled) } else { Err(DropReason::InNoPort) };
        };
        if peels == MAX_PEELS {
            return Err(DropReason::InTooDeep);
        }
        peeled.check_udp(&bytes[peeled.span.start..payload.end], arrival.checksum, port)?;
        peeled.known = peeled.known.without(&bytes[peeled.span.start..payload.start]);
        peeled.span = payload;
        peeled.open(bytes, port.encapsulation)?;
        peels += 1;
    }
    Ok(peeled)
}

impl Peeled {
    /// Makes the packet a whole one again, its IP header followed by what was encapsulated, for whoever takes that: ESP, a host.
    ///
    /// Lengths, next header and the IPv4 checksum are right; what came by a UDP socket gets a new IP header, with a TTL of 64. Returns the
    /// upper layer: GUE may name an IPv6 extension header, which belongs to the packet's headers then.
    ///
    /// # Errors
    /// [`DropReason::InMalformed`] when the packet is not the one that was peeled, or has no room for a header;
    /// [`DropReason::InInnerMalformed`] for extension headers cut short.
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

    /// The port that takes the datagram at hand, and where its payload lies.
    fn port<'p>(
        &self,
        bytes: &[u8],
        device: u32,
        ports: &'p Ports,
    ) -> Result<Option<(&'p Port, Range<usize>)>, DropReason> {
        let Udp { header, payload, .. } =
            Udp::parse(&bytes[self.span.clone()]).map_err(|_| DropReason::InMalformed)?;
        let datagram = Datagram {
            from: SocketAddr::new(self.source, header.source.get()),
            to: SocketAddr::new(self.destination, header.destination.get()),
            device,
        };
        let start = self.span.start + udp::HEADER_LEN;
        Ok(ports.of(&datagram).map(|port| (port, start..start + payload.len())))
    }

    /// Checks the UDP checksum of `datagram`, which is all of a datagram; a right one tells the payload's sum.
    fn check_udp(
        &mut self,
        datagram: &[u8],
        checksum: Checksum,
        port: &Port,
    ) -> Result<(), DropReason> {
        let is_first = self.header.is_some_and(|(header_len, _)| self.span.start == header_len);
        let trusted = is_first && checksum != Checksum::AsIs;
        self.known = match (&datagram[6..8], self.source) {
            _ if trusted => Known::Nothing,
            ([0, 0], IpAddr::V4(_)) => Known::Nothing,
            ([0, 0], IpAddr::V6(_)) => match port.zero_checksum6 {
                ZeroChecksum6::Allow => Known::Nothing,
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
                Known::Sum(sum)
            }
        };
        Ok(())
    }

    /// Goes on to what a datagram's payload is.
    fn open(&mut self, bytes: &mut [u8], encapsulation: Encapsulation) -> Result<(), DropReason> {
        let mode = match encapsulation {
            Encapsulation::Direct(protocol) => {
                self.protocol = protocol;
                return Ok(());
            }
            Encapsulation::Gue(mode) => mode,
        };
        let gue = Gue::parse(&bytes[self.span.clone()])?;
        let start = self.span.start + gue.header_len;
        self.known = self.known.without(&bytes[self.span.start..start]);
        self.span.start = start;
        self.protocol = gue.protocol;
        match gue.checksum {
            Some(checksum) => self.close(bytes, checksum, mode),
            None => Ok(()),
        }
    }

    /// Does what a remote checksum asks for (`skb_remcsum_process`).
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
        self.known = Known::Open { start, field };
        if mode == RemoteChecksumMode::Filled {
            self.fill(bytes);
        }
        Ok(())
    }

    /// Fills in a checksum that was left open.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        if let Known::Open { start, field } = self.known {
            let checksum = Sum::of(&bytes[start..self.span.end]).nonzero_checksum();
            bytes[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
            self.known = Known::Nothing;
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

/// Writes the length, and IPv4's checksum, of the header that `packet` begins with.
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

/// What a UDP socket received.
fn of_socket(
    path: UdpPath,
    bytes: &mut [u8],
    device: u32,
    ports: &Ports,
) -> Result<Peeled, DropReason> {
    let datagram = Datagram { from: path.remote, to: path.local, device };
    let port = ports.of(&datagram).ok_or(DropReason::InNoPort)?;
    let mut peeled = Peeled {
        source: path.remote.ip(),
        destination: path.local.ip(),
        tos: path.tos,
        protocol: Protocol::UDP,
        span: 0..bytes.len(),
        known: Known::Nothing,
        header: None,
    };
    peeled.open(bytes, port.encapsulation)?;
    Ok(peeled)
}

fn of_packet(bytes: &[u8]) -> Result<Peeled, DropReason> {
    let ip = IpPacket::parse(bytes).map_err(|_| DropReason::InMalformed)?;
    if ip.is_fragment() {
        return Err(DropReason::InFragment);
    }
    let next_header_at = next_header_at(&ip, bytes).ok_or(DropReason::InMalformed)?;
    Ok(Peeled {
        source: ip.source,
        destination: ip.destination,
        tos: ip.tos,
        protocol: ip.protocol,
        span: ip.header_len..ip.total_len,
        known: Known::Untold,
        header: Some((ip.header_len, next_header_at)),
    })
}

/// The byte that names the upper layer.
pub(crate) fn next_header_at(ip: &IpPacket, bytes: &[u8]) -> Option<usize> {
    match ip.version {
        Version::V4 => Some(9),
        Version::V6 => Some(Ipv6::parse(bytes).ok()?.chain().ok()?.upper_place.next_header_at),
    }
}
