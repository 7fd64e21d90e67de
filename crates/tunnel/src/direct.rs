//! UDP encapsulation of any IP packet: the FOU header "is essentially an inserted header between
//! the IP header and transport". So ESP or TCP can be spread over ports;
//! [`UdpDecapsulated::restore`](crate::UdpDecapsulated::restore) reverses it.

use uxfrm_packet::checksum::{self, Sum};
use uxfrm_packet::udp::{self, UdpHeader};
use uxfrm_packet::{Checksum, IpPacket, PacketBuf, Protocol};
use zerocopy::IntoBytes;

use crate::config::{RemoteOffload, TunnelUdpEncap, UdpChecksum};
use crate::encapsulate::{Egress, ends};
use crate::outer::{narrow, push};
use crate::udp_decap::{finish_header, next_header_at};
use crate::{DropReason, FlowHash};

/// Inserts UDP, and GUE if requested, between the IP header of `packet` and its payload.
///
/// `flow` is that of the packet before encryption, so that each inner flow of an SA has a port of
/// its own. Upper-layer checksums stay valid: their pseudo-header has the outer addresses and a
/// length without UDP. Remote checksum offload is not used.
///
/// # Errors
/// [`DropReason::OutMalformed`], also for fragments and buffers of several packets;
/// [`DropReason::OutChecksum`]; [`DropReason::OutNoRoom`].
pub fn wrap(
    packet: &mut PacketBuf,
    encap: &TunnelUdpEncap,
    flow: FlowHash,
    egress: &Egress,
) -> Result<(), DropReason> {
    checksum::complete(packet).map_err(|_| DropReason::OutChecksum)?;
    let ip = IpPacket::parse(packet.bytes()).map_err(|_| DropReason::OutMalformed)?;
    if ip.is_fragment() || packet.segments != uxfrm_packet::Segments::One {
        return Err(DropReason::OutMalformed);
    }
    let next_at = next_header_at(&ip, packet.bytes()).ok_or(DropReason::OutMalformed)?;
    packet.trim(ip.total_len);
    let inserted = udp::HEADER_LEN + encap.framing.header_len(RemoteOffload::Off);
    let udp_len = narrow(ip.total_len - ip.header_len + inserted)?;
    narrow(ip.total_len + inserted)?;
    push(packet, inserted)?;
    let bytes = packet.bytes_mut();
    bytes.copy_within(inserted..inserted + ip.header_len, 0);
    bytes[next_at] = Protocol::UDP.0;
    let (_, datagram) = bytes.split_at_mut(ip.header_len);
    let written = encap.framing.write(&mut datagram[udp::HEADER_LEN..], ip.protocol, None);
    written.ok_or(DropReason::OutNoRoom)?;
    let ends = ends(encap, ip.version, flow, egress);
    let mut header = UdpHeader {
        source: ends.source.into(),
        destination: ends.destination.into(),
        length: udp_len.into(),
        checksum: 0.into(),
    };
    if ends.checksum == UdpChecksum::Computed {
        let pseudo = Sum::of_pseudo(ip.source, ip.destination, Protocol::UDP, udp_len.into());
        let sum = pseudo.plus_bytes(header.as_bytes()).plus_bytes(&datagram[udp::HEADER_LEN..]);
        header.checksum = sum.nonzero_checksum().into();
    }
    datagram[..udp::HEADER_LEN].copy_from_slice(header.as_bytes());
    finish_header(packet.bytes_mut()).ok_or(DropReason::OutNoRoom)?;
    packet.checksum = Checksum::AsIs;
    Ok(())
}
