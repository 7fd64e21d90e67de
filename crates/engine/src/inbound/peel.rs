//! What stands around ESP: IP and perhaps UDP, or the note of a UDP socket.

use std::net::{IpAddr, SocketAddr};

use uxfrm_packet::esp::{self, Esp};
use uxfrm_packet::ipv4::{self, Ipv4, Ipv4Header};
use uxfrm_packet::ipv6::Ipv6;
use uxfrm_packet::udp::{self, Udp};
use uxfrm_packet::{FlowPorts, IpPacket, Protocol, UdpPath, Version};
use zerocopy::FromBytes as _;

use crate::esp::decapsulate::Shell;
use crate::{DropReason, Settings, UdpEncapKind};

/// What a packet is to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peeled {
    /// Not ESP: to be checked and passed on; whether it is for this host.
    Plain(IpPacket, bool),
    /// A piece of a packet for this host.
    Fragment(IpPacket),
    /// ESP.
    Esp(Envelope),
}

/// An ESP packet, and what of its surroundings is needed later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    /// Where ESP begins in the packet, and its bytes.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) spi: u32,
    pub(crate) sequence: u32,
    /// What kind of UDP is around it, and from where that came.
    pub(crate) udp: Option<(UdpEncapKind, SocketAddr)>,
    pub(crate) destination: IpAddr,
    pub(crate) tos: u8,
    /// The packet's own header, which transport mode keeps; `None` when a socket took it off.
    pub(crate) shell: Option<Shell>,
}

/// Bits of IPv4's flags and offset that make a packet a fragment.
const FRAGMENT: u16 = 0x3fff;
/// IPv4, with a header of 20 bytes.
const WITHOUT_OPTIONS: u8 = 0x45;

/// A whole IPv4 packet without options that is ESP, alone or in UDP: nearly all are. `None`: [`packet`] looks at it, and says what is wrong
/// if something is.
#[inline(always)]
pub(crate) fn usual(bytes: &[u8], settings: &Settings) -> Option<Envelope> {
    let (header, rest) = Ipv4Header::ref_from_prefix(bytes).ok()?;
    let is_usual = header.version_ihl == WITHOUT_OPTIONS
        && header.flags_fragment.get() & FRAGMENT == 0
        && header.checksum_is_right();
    let len = usize::from(header.total_len.get()).checked_sub(ipv4::HEADER_LEN)?;
    let upper = rest.get(..len).filter(|_| is_usual)?;
    let (lead, udp, inside) = match header.protocol {
        Protocol::ESP => (0, None, Inside::esp(upper).ok()?),
        Protocol::UDP => {
            let Udp { header: ports, payload: bytes, trailing } = Udp::parse(upper).ok()?;
            let is_ours = trailing.is_empty()
                && settings.encap_ports.contains(&ports.destination.get())
                && settings.addresses.holds(header.destination().into());
            let inside = payload(bytes).ok().filter(|_| is_ours)?;
            let from = SocketAddr::new(header.source().into(), ports.source.get());
            (udp::HEADER_LEN, Some((inside.kind, from)), inside)
        }
        Protocol(_) => return None,
    };
    let lead = lead + inside.marker;
    Some(Envelope {
        at: ipv4::HEADER_LEN + lead,
        len: len - lead,
        spi: inside.spi,
        sequence: inside.sequence,
        udp,
        destination: header.destination().into(),
        tos: header.tos,
        shell: Some(Shell { version: Version::V4, len: 20, next_header_at: 9 }),
    })
}

/// Looks at a whole IP packet.
#[inline]
pub(crate) fn packet(bytes: &[u8], settings: &Settings) -> Result<Peeled, DropReason> {
    let ip = IpPacket::parse(bytes).map_err(|_| DropReason::InMalformed)?;
    if ip.version == Version::V4 && !checksum_is_right(bytes) {
        return Err(DropReason::InMalformed);
    }
    let own = settings.addresses.holds(ip.destination);
    if ip.is_fragment() {
        return Ok(if own { Peeled::Fragment(ip) } else { Peeled::Plain(ip, own) });
    }
    match ip.protocol {
        Protocol::ESP => esp_packet(bytes, &ip),
        Protocol::UDP if own => udp_packet(bytes, ip, settings),
        Protocol(_) => Ok(Peeled::Plain(ip, own)),
    }
}

/// Whether an IPv4 header's checksum is right; hardly any has options.
#[inline(always)]
pub(super) fn checksum_is_right(bytes: &[u8]) -> bool {
    match Ipv4Header::ref_from_prefix(bytes) {
        Ok((header, _)) if header.version_ihl == WITHOUT_OPTIONS => header.checksum_is_right(),
        Ok(_) | Err(_) => Ipv4::parse(bytes).is_ok_and(|packet| packet.checksum_is_right()),
    }
}

/// Whether a packet that was in a tunnel has to be [looked at](packet) for more ESP.
#[inline(always)]
pub(super) fn may_hold_esp(ip: &IpPacket, bytes: &[u8], own: bool, settings: &Settings) -> bool {
    match ip.protocol {
        Protocol::ESP => !ip.is_fragment(),
        Protocol::UDP if own => {
            let ports = FlowPorts::of(ip, bytes);
            settings.encap_ports.contains(&ports.destination)
        }
        Protocol(_) => false,
    }
}

#[inline(always)]
fn esp_packet(bytes: &[u8], ip: &IpPacket) -> Result<Peeled, DropReason> {
    let shell = shell(bytes, ip)?;
    let esp = Esp::parse(ip.upper(bytes)).map_err(|_| DropReason::InRunt)?;
    Ok(Peeled::Esp(Envelope {
        at: ip.header_len,
        len: ip.total_len - ip.header_len,
        spi: esp.header.spi.get(),
        sequence: esp.header.sequence.get(),
        udp: None,
        destination: ip.destination,
        tos: ip.tos,
        shell: Some(shell),
    }))
}

/// A UDP packet for this host: ESP when it is at a port for that and does not say otherwise.
fn udp_packet(bytes: &[u8], ip: IpPacket, settings: &Settings) -> Result<Peeled, DropReason> {
    let Ok(datagram) = Udp::parse(ip.upper(bytes)) else { return Ok(Peeled::Plain(ip, true)) };
    if !settings.encap_ports.contains(&datagram.header.destination.get()) {
        return Ok(Peeled::Plain(ip, true));
    }
    match payload(datagram.payload) {
        Err(DropReason::InIkeUnclaimed) => Ok(Peeled::Plain(ip, true)),
        Err(reason) => Err(reason),
        Ok(inside) => Ok(Peeled::Esp(Envelope {
            at: ip.header_len + udp::HEADER_LEN + inside.marker,
            len: datagram.payload.len() - inside.marker,
            spi: inside.spi,
            sequence: inside.sequence,
            udp: Some((inside.kind, SocketAddr::new(ip.source, datagram.header.source.get()))),
            destination: ip.destination,
            tos: ip.tos,
            shell: Some(shell(bytes, &ip)?),
        })),
    }
}

/// Looks at what came from a UDP socket.
#[inline(always)]
pub(crate) fn socket(bytes: &[u8], path: &UdpPath) -> Result<Envelope, DropReason> {
    let inside = payload(bytes)?;
    Ok(Envelope {
        at: inside.marker,
        len: bytes.len() - inside.marker,
        spi: inside.spi,
        sequence: inside.sequence,
        udp: Some((inside.kind, path.remote)),
        destination: path.local.ip(),
        tos: path.tos,
        shell: None,
    })
}

struct Inside {
    kind: UdpEncapKind,
    marker: usize,
    spi: u32,
    sequence: u32,
}

/// Tells ESP from IKE and keep-alives (RFC 3948 §2; `net/ipv4/xfrm4_input.c: __xfrm4_udp_encap_rcv`). Eight zero bytes before ESP are the
/// older drafts' form; an IKE message behind four zero bytes never begins with four more, as its initiator SPI is not 0.
#[inline(always)]
fn payload(bytes: &[u8]) -> Result<Inside, DropReason> {
    let (kind, marker) = match bytes {
        [0xff] => return Err(DropReason::InKeepalive),
        [0, 0, 0, 0, 0, 0, 0, 0, rest @ ..] if rest.len() > esp::HEADER_LEN => {
            (UdpEncapKind::NonIke, 8)
        }
        [0, 0, 0, 0, ..] => return Err(DropReason::InIkeUnclaimed),
        _ => (UdpEncapKind::Esp, 0),
    };
    Ok(Inside { kind, marker, ..Inside::esp(&bytes[marker..])? })
}

impl Inside {
    #[inline(always)]
    fn esp(bytes: &[u8]) -> Result<Self, DropReason> {
        let header = Esp::parse(bytes).map_err(|_| DropReason::InRunt)?.header;
        let (spi, sequence) = (header.spi.get(), header.sequence.get());
        Ok(Self { kind: UdpEncapKind::Esp, marker: 0, spi, sequence })
    }
}

#[inline(always)]
fn shell(bytes: &[u8], ip: &IpPacket) -> Result<Shell, DropReason> {
    let next_header_at = match ip.version {
        Version::V4 => 9,
        Version::V6 if ip.has_options => {
            let chain = Ipv6::parse(bytes).and_then(|packet| packet.chain());
            chain.map_err(|_| DropReason::InMalformed)?.upper_place.next_header_at
        }
        Version::V6 => 6,
    };
    let narrow = |offset: usize| u16::try_from(offset).map_err(|_| DropReason::InMalformed);
    let (len, next_header_at) = (narrow(ip.header_len)?, narrow(next_header_at)?);
    Ok(Shell { version: ip.version, len, next_header_at })
}
