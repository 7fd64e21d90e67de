//! The `virtio_net_hdr` (VIRTIO 1.2 §5.1.6, the ten bytes without `num_buffers`) that precedes
//! packets on a TUN with `IFF_VNET_HDR` and on a packet socket with `PACKET_VNET_HDR`. Its numbers
//! are in the machine's byte order there.

use uxfrm_packet::{Checksum, PacketBuf, Segments};

use crate::port::tcp_payload;

/// Bytes of the header.
pub(crate) const HEADER: usize = 10;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// TCP's CWR flag, in the fourteenth byte of its header (RFC 3168 §6.1).
const CWR: u8 = 0x80;

/// The header's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtioHeader {
    flags: u8,
    gso_type: u8,
    header_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl VirtioHeader {
    /// Reads the bytes.
    pub(crate) fn from_bytes(b: [u8; HEADER]) -> Self {
        let short = |at: usize| u16::from_ne_bytes([b[at], b[at + 1]]);
        Self {
            flags: b[0],
            gso_type: b[1],
            header_len: short(2),
            gso_size: short(4),
            csum_start: short(6),
            csum_offset: short(8),
        }
    }

    /// The header as bytes.
    pub(crate) fn to_bytes(self) -> [u8; HEADER] {
        let mut b = [0; HEADER];
        (b[0], b[1]) = (self.flags, self.gso_type);
        for (at, value) in
            [(2, self.header_len), (4, self.gso_size), (6, self.csum_start), (8, self.csum_offset)]
        {
            b[at..at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        b
    }

    /// Counts offsets from `lead` bytes further back; drops a checksum that would start before
    /// them.
    pub(crate) fn behind(self, lead: usize) -> Self {
        let lead = u16::try_from(lead).unwrap_or(u16::MAX);
        let flags = if self.csum_start < lead { self.flags & !NEEDS_CSUM } else { self.flags };
        let csum_start = self.csum_start.saturating_sub(lead);
        Self { flags, csum_start, header_len: self.header_len.saturating_sub(lead), ..self }
    }

    /// Counts offsets from `lead` bytes further to the front, where they are used.
    pub(crate) fn before(self, lead: usize) -> Self {
        let lead = u16::try_from(lead).unwrap_or(u16::MAX);
        let shifted = |says: bool, at: u16| if says { at.saturating_add(lead) } else { at };
        Self {
            csum_start: shifted(self.flags & NEEDS_CSUM != 0, self.csum_start),
            header_len: shifted(self.header_len > 0, self.header_len),
            ..self
        }
    }

    /// Sets a received packet's metadata.
    ///
    /// Ignores a checksum outside the packet, and a segment size of 0.
    pub(crate) fn note(self, packet: &mut PacketBuf) {
        let end = usize::from(self.csum_start) + usize::from(self.csum_offset) + 2;
        if self.flags & NEEDS_CSUM != 0 && end <= packet.len() {
            packet.checksum =
                Checksum::Partial { start: self.csum_start, offset: self.csum_offset };
        } else if self.flags & DATA_VALID != 0 {
            packet.checksum = Checksum::Verified;
        }
        packet.segments = match self.gso_type & !GSO_ECN {
            GSO_TCPV4 | GSO_TCPV6 if self.gso_size > 0 => Segments::Tcp { mss: self.gso_size },
            GSO_UDP_L4 if self.gso_size > 0 => Segments::Udp { size: self.gso_size },
            _none_or_unknown => Segments::One,
        };
    }

    /// The header for a packet's metadata.
    ///
    /// A super-packet's header length ends behind its TCP or UDP header, at which its partial
    /// checksum starts.
    pub(crate) fn of(packet: &PacketBuf) -> Self {
        let mut header = Self::default();
        let bytes = packet.bytes();
        if let Checksum::Partial { start, offset } = packet.checksum {
            (header.flags, header.csum_start, header.csum_offset) = (NEEDS_CSUM, start, offset);
        }
        let start = usize::from(header.csum_start);
        match packet.segments {
            Segments::Tcp { mss } => {
                let is_v6 = bytes.first().is_some_and(|byte| byte >> 4 == 6);
                let has_cwr = bytes.get(start + 13).is_some_and(|flags| flags & CWR != 0);
                header.gso_type = if is_v6 { GSO_TCPV6 } else { GSO_TCPV4 }
                    | if has_cwr { GSO_ECN } else { GSO_NONE };
                header.gso_size = mss;
                header.header_len = u16::try_from(tcp_payload(bytes, start)).unwrap_or(u16::MAX);
            }
            Segments::Udp { size } => {
                header.gso_type = GSO_UDP_L4;
                header.gso_size = size;
                header.header_len = header.csum_start.saturating_add(8);
            }
            Segments::One | Segments::Burst { .. } => {}
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn super_packet(version: u8) -> PacketBuf {
        let mut packet = PacketBuf::from_slice(&[0; 3000]);
        packet.bytes_mut()[0] = version << 4 | 5;
        packet.checksum = Checksum::Partial { start: 20, offset: 16 };
        packet.segments = Segments::Tcp { mss: 1400 };
        packet.bytes_mut()[32] = 8 << 4;
        packet
    }

    #[test]
    fn packet_meta_round_trips_virtio_header() {
        for version in [4, 6] {
            let packet = super_packet(version);
            let header = VirtioHeader::of(&packet);
            assert_eq!(header.header_len, 52);
            let mut other = PacketBuf::from_slice(packet.bytes());
            VirtioHeader::from_bytes(header.to_bytes()).note(&mut other);
            assert_eq!((other.segments, other.checksum), (packet.segments, packet.checksum));
        }
    }

    #[test]
    fn congestion_window_reduced_is_told() {
        let mut packet = super_packet(4);
        assert_eq!(VirtioHeader::of(&packet).gso_type, GSO_TCPV4);
        packet.bytes_mut()[33] = CWR;
        assert_eq!(VirtioHeader::of(&packet).gso_type, GSO_TCPV4 | GSO_ECN);
    }

    #[test]
    fn checksum_outside_packet_is_ignored() {
        let header = VirtioHeader {
            flags: NEEDS_CSUM,
            csum_start: 90,
            csum_offset: 9,
            ..VirtioHeader::default()
        };
        let mut packet = PacketBuf::from_slice(&[0; 100]);
        header.note(&mut packet);
        assert_eq!(packet.checksum, Checksum::AsIs);
        packet.append(1);
        header.note(&mut packet);
        assert_eq!(packet.checksum, Checksum::Partial { start: 90, offset: 9 });
    }
}
