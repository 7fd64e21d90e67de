//! Parses the headers around ESP: IP and perhaps UDP, or the metadata of a UDP socket.

use std::net::{IpAddr, SocketAddr};

use uxfrm_packet::esp::{self, Esp};
use uxfrm_packet::ipv4::{self, Ipv4, Ipv4Header};
use uxfrm_packet::ipv6::{self, Ipv6};
use uxfrm_packet::udp::{self, UdpDatagram};
use uxfrm_packet::{IpPacket, PacketBuf, Protocol, UdpPath, Version};
use zerocopy::FromBytes as _;

use crate::esp::decap::OuterHeader;
use crate::{Direction, DropReason, FlowKey, SaId, SaProtocol, Settings, Spi, UdpEncapKind};

/// Class of a packet by its outer headers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OuterClass {
    /// No ESP: to be checked and delivered (`in`) or forwarded (`fwd`).
    Plain(IpPacket, Direction),
    /// A fragment for this host.
    Fragment(IpPacket),
    /// ESP.
    Esp(EspBounds),
}

/// Bounds and header fields of an ESP packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EspBounds {
    /// Offset of ESP in the packet, and its length.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) spi: u32,
    pub(crate) sequence: u32,
    /// The IPsec protocol: AH would be another.
    pub(crate) protocol: SaProtocol,
    /// Kind of UDP encapsulation; [`source`] has the address it came from.
    pub(crate) encap: Option<UdpEncapKind>,
    pub(crate) destination: IpAddr,
    pub(crate) tos: u8,
    /// The packet's own IP header, which transport mode keeps; `None` if a socket removed it.
    pub(crate) outer_hdr: Option<OuterHeader>,
}

impl EspBounds {
    /// The SA that the packet names.
    #[inline(always)]
    pub(crate) fn id(&self) -> SaId {
        SaId { destination: self.destination, spi: Spi(self.spi), protocol: self.protocol }
    }
}

/// Bits of the IPv4 flags and offset field that make a packet a fragment.
const FRAGMENT: u16 = 0x3fff;

/// Class of a packet that is IPv4 without options or IPv6 without extension headers, as nearly all
/// are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommonClass {
    /// ESP, alone or in UDP.
    Esp(EspBounds),
    /// Like [`OuterClass::Plain`].
    Plain(Direction),
    /// Neither: [`packet`] parses it, and reports errors.
    Unclear,
}

/// Classifies packets with common headers.
#[inline(always)]
pub(crate) fn classify_common(bytes: &[u8], settings: &Settings) -> CommonClass {
    match classify_ipv4(bytes, settings) {
        CommonClass::Unclear => classify_ipv6(bytes, settings),
        clear @ (CommonClass::Esp(_) | CommonClass::Plain(_)) => clear,
    }
}

/// SPI and sequence number at the common offsets; anything else if the packet is uncommon.
#[inline(always)]
pub(crate) fn peek_esp_header(packet: &PacketBuf) -> Option<(u32, u32)> {
    let bytes = packet.bytes();
    let (header_len, protocol) = match *bytes.first()? {
        _ if packet.udp.is_some() => (0, Protocol::ESP.0),
        ipv4::WITHOUT_OPTIONS => (ipv4::HEADER_LEN, *bytes.get(9)?),
        _ => (ipv6::HEADER_LEN, *bytes.get(6)?),
    };
    let between = if protocol == Protocol::UDP.0 { udp::HEADER_LEN } else { 0 };
    let [a, b, c, d, sequence @ ..] =
        *bytes.get(header_len + between..)?.first_chunk::<{ esp::HEADER_LEN }>()?;
    Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(sequence)))
}

/// Classifies IPv4 packets with common headers.
#[inline(always)]
pub(crate) fn classify_ipv4(bytes: &[u8], settings: &Settings) -> CommonClass {
    let Ok((header, rest)) = Ipv4Header::ref_from_prefix(bytes) else {
        return CommonClass::Unclear;
    };
    let is_usual = header.version_ihl == ipv4::WITHOUT_OPTIONS
        && header.flags_fragment.get() & FRAGMENT == 0
        && header.checksum_is_right();
    // A branch, as it is well predicted.
    if !is_usual {
        return CommonClass::Unclear;
    }
    let len = usize::from(header.total_len.get()).checked_sub(ipv4::HEADER_LEN);
    let Some(upper) = len.and_then(|len| rest.get(..len)) else { return CommonClass::Unclear };
    let outside = FixedHeader {
        destination: header.destination().into(),
        tos: header.tos,
        outer_hdr: OuterHeader { version: Version::V4, len: 20, next_header_at: 9 },
    };
    outside.classify(header.protocol, upper, settings)
}

/// Like [`classify_ipv4`], for IPv6.
#[inline(always)]
pub(crate) fn classify_ipv6(bytes: &[u8], settings: &Settings) -> CommonClass {
    let Some(ip) = IpPacket::parse_fixed_v6(bytes) else { return CommonClass::Unclear };
    let outside = FixedHeader {
        destination: ip.destination,
        tos: ip.tos,
        outer_hdr: OuterHeader { version: Version::V6, len: 40, next_header_at: 6 },
    };
    outside.classify(ip.protocol, ip.upper(bytes), settings)
}

/// Parses a whole IP packet.
#[inline]
pub(crate) fn packet(bytes: &[u8], settings: &Settings) -> Result<OuterClass, DropReason> {
    let ip = IpPacket::parse(bytes).map_err(|_| DropReason::InMalformed)?;
    if ip.version == Version::V4 && !checksum_is_right(bytes) {
        return Err(DropReason::InChecksum);
    }
    let direction = direction(ip.destination, settings);
    let is_own = direction == Direction::In;
    if ip.is_fragment() {
        return Ok(if is_own {
            OuterClass::Fragment(ip)
        } else {
            OuterClass::Plain(ip, direction)
        });
    }
    match ip.protocol {
        Protocol::ESP => esp_packet(bytes, &ip),
        Protocol::UDP if is_own => udp_packet(bytes, ip, settings),
        Protocol(_) => Ok(OuterClass::Plain(ip, direction)),
    }
}

/// Policy direction of a plain packet to this destination.
#[inline(always)]
pub(crate) fn direction(destination: IpAddr, settings: &Settings) -> Direction {
    if settings.addresses.holds(destination) { Direction::In } else { Direction::Forward }
}

#[inline(always)]
pub(crate) fn checksum_is_right(bytes: &[u8]) -> bool {
    Ipv4::parse(bytes).is_ok_and(|packet| packet.checksum_is_right())
}

/// Whether an inner packet has to be [parsed](packet) for more ESP.
#[inline(always)]
pub(crate) fn may_hold_esp(
    ip: &IpPacket,
    flow: &FlowKey,
    direction: Direction,
    settings: &Settings,
) -> bool {
    match ip.protocol {
        Protocol::ESP => !ip.is_fragment(),
        Protocol::UDP => {
            direction == Direction::In && settings.encap_ports.contains(&flow.destination_port)
        }
        Protocol(_) => false,
    }
}

#[inline(always)]
fn esp_packet(bytes: &[u8], ip: &IpPacket) -> Result<OuterClass, DropReason> {
    let outer_hdr = outer_hdr(bytes, ip)?;
    let esp = Esp::parse(ip.upper(bytes)).map_err(|_| DropReason::InRunt)?;
    Ok(OuterClass::Esp(EspBounds {
        at: ip.header_len,
        len: ip.total_len - ip.header_len,
        spi: esp.header.spi.get(),
        sequence: esp.header.sequence.get(),
        protocol: SaProtocol::Esp,
        encap: None,
        destination: ip.destination,
        tos: ip.tos,
        outer_hdr: Some(outer_hdr),
    }))
}

/// A UDP packet for this host: ESP if the port is an encapsulation port and the payload is neither
/// IKE nor a keepalive.
fn udp_packet(bytes: &[u8], ip: IpPacket, settings: &Settings) -> Result<OuterClass, DropReason> {
    let Ok(datagram) = UdpDatagram::parse(ip.upper(bytes)) else {
        return Ok(OuterClass::Plain(ip, Direction::In));
    };
    if !settings.encap_ports.contains(&datagram.header.destination.get()) {
        return Ok(OuterClass::Plain(ip, Direction::In));
    }
    match payload(datagram.payload) {
        Err(DropReason::InIkeUnclaimed) => Ok(OuterClass::Plain(ip, Direction::In)),
        Err(reason) => Err(reason),
        Ok(inside) => Ok(OuterClass::Esp(EspBounds {
            at: ip.header_len + udp::HEADER_LEN + inside.marker,
            len: datagram.payload.len() - inside.marker,
            spi: inside.spi,
            sequence: inside.sequence,
            protocol: inside.protocol,
            encap: Some(inside.kind),
            destination: ip.destination,
            tos: ip.tos,
            outer_hdr: Some(outer_hdr(bytes, &ip)?),
        })),
    }
}

/// Parses a payload from a UDP socket.
#[inline(always)]
pub(crate) fn socket(bytes: &[u8], path: &UdpPath) -> Result<EspBounds, DropReason> {
    let inside = payload(bytes)?;
    Ok(EspBounds {
        at: inside.marker,
        len: bytes.len() - inside.marker,
        spi: inside.spi,
        sequence: inside.sequence,
        protocol: inside.protocol,
        encap: Some(inside.kind),
        destination: path.local.ip(),
        tos: path.tos,
        outer_hdr: None,
    })
}

/// Source address and port of a packet with ESP in UDP; `None` for other packets.
#[inline]
pub(crate) fn source(bytes: &[u8], outer_hdr: &OuterHeader) -> Option<SocketAddr> {
    let address = match outer_hdr.version {
        Version::V4 => IpAddr::from(*bytes.get(12..16)?.first_chunk::<4>()?),
        Version::V6 => IpAddr::from(*bytes.get(8..24)?.first_chunk::<16>()?),
    };
    let port = bytes.get(outer_hdr.len.into()..)?.first_chunk().copied().map(u16::from_be_bytes)?;
    Some(SocketAddr::new(address, port))
}

/// Fields of a fixed header that are needed later.
struct FixedHeader {
    destination: IpAddr,
    tos: u8,
    outer_hdr: OuterHeader,
}

impl FixedHeader {
    /// Classifies a packet with this header and this payload.
    #[inline(always)]
    fn classify(self, protocol: Protocol, upper: &[u8], settings: &Settings) -> CommonClass {
        let direction = || direction(self.destination, settings);
        let (lead, encap, inside) = match protocol {
            Protocol::ESP => (0, None, EspStart::esp(upper)),
            Protocol::UDP => {
                let Ok(UdpDatagram { header: ports, payload: bytes, trailing }) =
                    UdpDatagram::parse(upper)
                else {
                    return CommonClass::Unclear;
                };
                let direction = direction();
                let is_own = direction == Direction::In;
                if !is_own || !settings.encap_ports.contains(&ports.destination.get()) {
                    return CommonClass::Plain(direction);
                }
                if !trailing.is_empty() {
                    return CommonClass::Unclear;
                }
                let inside = payload(bytes);
                (udp::HEADER_LEN, inside.as_ref().ok().map(|inside| inside.kind), inside)
            }
            Protocol(_) => return CommonClass::Plain(direction()),
        };
        let Ok(inside) = inside else { return CommonClass::Unclear };
        let lead = lead + inside.marker;
        CommonClass::Esp(EspBounds {
            at: usize::from(self.outer_hdr.len) + lead,
            len: upper.len() - lead,
            spi: inside.spi,
            sequence: inside.sequence,
            protocol: inside.protocol,
            encap,
            destination: self.destination,
            tos: self.tos,
            outer_hdr: Some(self.outer_hdr),
        })
    }
}

struct EspStart {
    protocol: SaProtocol,
    kind: UdpEncapKind,
    marker: usize,
    spi: u32,
    sequence: u32,
}

/// Tells ESP from IKE and keepalives.
#[inline(always)]
fn payload(bytes: &[u8]) -> Result<EspStart, DropReason> {
    if let [0xff] = bytes {
        return Err(DropReason::InKeepalive);
    }
    let kind = UdpEncapKind::of_payload(bytes).ok_or(DropReason::InIkeUnclaimed)?;
    let marker = kind.properties().marker.len();
    // A marker with no ESP payload behind is no ESP.
    if marker > 0 && bytes.len() <= marker + esp::HEADER_LEN {
        return Err(DropReason::InIkeUnclaimed);
    }
    Ok(EspStart { kind, marker, ..EspStart::esp(&bytes[marker..])? })
}

impl EspStart {
    #[inline(always)]
    fn esp(bytes: &[u8]) -> Result<Self, DropReason> {
        let header = Esp::parse(bytes).map_err(|_| DropReason::InRunt)?.header;
        let (spi, sequence) = (header.spi.get(), header.sequence.get());
        let (protocol, kind) = (SaProtocol::Esp, UdpEncapKind::Esp);
        Ok(Self { protocol, kind, marker: 0, spi, sequence })
    }
}

#[inline(always)]
fn outer_hdr(bytes: &[u8], ip: &IpPacket) -> Result<OuterHeader, DropReason> {
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
    Ok(OuterHeader { version: ip.version, len, next_header_at })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;
    use uxfrm_packet::ipv6::Ipv6Header;

    use super::*;

    const OWN: [u8; 4] = [192, 0, 2, 2];
    const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    fn packet(protocol: Protocol, to: [u8; 4], upper: &[u8]) -> Vec<u8> {
        let len = u16::try_from(ipv4::HEADER_LEN + upper.len()).unwrap();
        let mut header = Ipv4Header::new(Ipv4Addr::LOCALHOST, to.into(), protocol, len);
        header.fill_checksum();
        [zerocopy::IntoBytes::as_bytes(&header), upper].concat()
    }

    fn packet_v6(next_header: Protocol, to: Ipv6Addr, upper: &[u8]) -> Vec<u8> {
        let len = u16::try_from(upper.len()).unwrap();
        let header = Ipv6Header::new(Ipv6Addr::LOCALHOST, to, next_header, len);
        [zerocopy::IntoBytes::as_bytes(&header), upper].concat()
    }

    /// UDP around `payload`, with `more` bytes behind it.
    fn datagram(port: u16, payload: &[u8], more: usize) -> Vec<u8> {
        let len = u16::try_from(udp::HEADER_LEN + payload.len()).unwrap();
        let head = [[0x12, 0x34], port.to_be_bytes(), len.to_be_bytes(), [0, 0]].concat();
        [head, payload.to_vec(), vec![0; more]].concat()
    }

    fn settings() -> Settings {
        let addresses = [IpAddr::from(OWN), IpAddr::from(OWN_V6)].into_iter().collect();
        Settings { addresses, ..Settings::default() }
    }

    /// Results of fast and full parse; `None` if the fast one leaves it to the full one.
    fn looks(bytes: &[u8]) -> Option<(CommonClass, CommonClass)> {
        let settings = settings();
        let short = match classify_common(bytes, &settings) {
            CommonClass::Unclear => return None,
            short @ (CommonClass::Esp(_) | CommonClass::Plain(_)) => short,
        };
        match super::packet(bytes, &settings) {
            Ok(OuterClass::Esp(long)) => Some((short, CommonClass::Esp(long))),
            Ok(OuterClass::Plain(_, own)) => Some((short, CommonClass::Plain(own))),
            other => panic!("{short:?}, and then {other:?} of {bytes:?}"),
        }
    }

    proptest! {
        #[test]
        fn fast_parse_agrees_with_full_parse(
            framing in prop::sample::select(&[Protocol::UDP, Protocol::ESP, Protocol::TCP, Protocol::DSTOPTS, Protocol::FRAGMENT]),
            v6: bool,
            own: bool,
            port in prop_oneof![Just(4500), Just(4501)],
            mut payload in prop::collection::vec(any::<u8>(), 0..40),
            zeros in 0..12_usize,
            more in 0..3_usize,
            behind in -3..3_isize,
            broken in prop::option::of((0..60_usize, any::<u8>())),
            summed: bool,
        ) {
            payload.splice(..0, vec![0; zeros]);
            let to = if own { OWN } else { [198, 51, 100, 1] };
            let to_v6 = if own { OWN_V6 } else { Ipv6Addr::LOCALHOST };
            let upper = if framing == Protocol::UDP { datagram(port, &payload, more) } else { payload };
            let mut bytes = if v6 { packet_v6(framing, to_v6, &upper) } else { packet(framing, to, &upper) };
            // More bytes than the packet has, or fewer.
            bytes.resize(bytes.len().saturating_add_signed(behind), 7);
            if let Some((at, byte)) = broken {
                bytes.get_mut(at).into_iter().for_each(|old| *old = byte);
            }
            if summed && !v6 {
                let _no_header = ipv4::fill_checksum(&mut bytes);
            }
            if let Some((short, long)) = looks(&bytes) {
                prop_assert_eq!(format!("{short:?}"), format!("{long:?}"));
            }
        }
    }

    #[test]
    fn plain_packets_need_no_full_parse() {
        let foreign = [198, 51, 100, 1];
        let query = datagram(53, b"query", 0);
        let encap = datagram(4500, b"not for us", 0);
        for (bytes, direction) in [
            (packet(Protocol::TCP, OWN, b"segment"), Direction::In),
            (packet(Protocol::TCP, foreign, b"segment"), Direction::Forward),
            (packet(Protocol::UDP, OWN, &query), Direction::In),
            (packet(Protocol::UDP, foreign, &encap), Direction::Forward),
        ] {
            let looks = looks(&bytes);
            assert!(
                matches!(looks, Some((CommonClass::Plain(short), CommonClass::Plain(long))) if (short, long) == (direction, direction)),
                "{looks:?}"
            );
        }
    }

    #[test]
    fn esp_and_esp_in_udp_need_no_full_parse() {
        let esp = [&[0, 0, 0x12, 0x34, 0, 0, 0, 7][..], &[1; 32]].concat();
        let alone = packet(Protocol::ESP, [198, 51, 100, 1], &esp);
        let in_udp = packet(Protocol::UDP, OWN, &datagram(4500, &esp, 0));
        let alone_v6 = packet_v6(Protocol::ESP, Ipv6Addr::LOCALHOST, &esp);
        let in_udp_v6 = packet_v6(Protocol::UDP, OWN_V6, &datagram(4500, &esp, 0));
        let udp = Some(UdpEncapKind::Esp);
        for (bytes, at, encap) in
            [(alone, 20, None), (in_udp, 28, udp), (alone_v6, 40, None), (in_udp_v6, 48, udp)]
        {
            let (CommonClass::Esp(short), _long) = looks(&bytes).unwrap() else {
                panic!("it is ESP")
            };
            assert_eq!((short.at, short.len, short.encap), (at, 40, encap));
            assert_eq!((short.spi, short.sequence), (0x1234, 7));
        }
    }
}
