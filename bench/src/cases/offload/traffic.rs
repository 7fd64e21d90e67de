//! The hosts' packets.

use uxfrm_packet::checksum::Sum;
use uxfrm_packet::ipv4::{self, Ipv4Header};
use uxfrm_packet::{Checksum, PacketBuf, Pool, Protocol, Segments, SizeClass};
use zerocopy::IntoBytes;

use super::association::HostSide;
use super::plan::{PacketSize, SEGMENT, SEGMENTS};

/// IPv4 and TCP headers.
const TCP_HEADERS: usize = 40;
const MSS: usize = SEGMENT as usize - TCP_HEADERS;

/// The flow of one worker of a host.
#[derive(Debug)]
pub(super) struct PacketFlow {
    ip: Ipv4Header,
    source: HostSide,
    ports: [u8; 4],
    /// The TCP sequence number of the next byte.
    sequence: u32,
}

impl PacketFlow {
    pub(super) fn new(source: HostSide, worker: usize) -> Self {
        let ip = Ipv4Header::new(source.address(), source.other().address(), Protocol::UDP, 0);
        let [port, _] = u16::try_from(worker).unwrap_or(0).to_le_bytes();
        Self { ip, source, ports: [0x80, port, 0x81, port], sequence: 0 }
    }

    /// Appends as many packets as fill a ring; returns how many they are on the wire.
    pub(super) fn fill(
        &mut self,
        size: PacketSize,
        pool: &mut Pool,
        into: &mut Vec<PacketBuf>,
    ) -> usize {
        match size {
            PacketSize::Bytes(bytes) => {
                into.extend((0..super::TURN_PACKETS).map(|_| self.datagram(bytes as usize, pool)));
                super::TURN_PACKETS
            }
            PacketSize::Super => {
                let count = super::TURN_PACKETS / SEGMENTS / 2;
                into.extend((0..count).map(|_| self.stream(SEGMENTS * MSS, pool)));
                count * SEGMENTS
            }
        }
    }

    /// Appends `bytes` bytes of a stream in super-packets; returns how many packets they are on the
    /// wire.
    pub(super) fn message(
        &mut self,
        bytes: usize,
        pool: &mut Pool,
        into: &mut Vec<PacketBuf>,
    ) -> usize {
        let (most, mut left, mut packets) = (SEGMENTS * MSS, bytes, 0);
        while left > 0 {
            let part = left.min(most);
            into.push(self.stream(part, pool));
            (left, packets) = (left - part, packets + part.div_ceil(MSS));
        }
        packets
    }

    fn datagram(&mut self, bytes: usize, pool: &mut Pool) -> PacketBuf {
        let mut packet = pool.take(SizeClass::Packet);
        if let Some(room) = packet.append(bytes) {
            self.head(Protocol::UDP, room);
            room[20..24].copy_from_slice(&self.ports);
            room[24..26].copy_from_slice(&below(bytes - ipv4::HEADER_LEN).to_be_bytes());
            // No checksum.
            room[26..28].fill(0);
        }
        packet
    }

    /// A TCP packet or super-packet as a TUN hands it over, with a partial checksum.
    fn stream(&mut self, payload: usize, pool: &mut Pool) -> PacketBuf {
        let len = TCP_HEADERS + payload;
        let mut packet = pool.take(SizeClass::holding(len));
        let Some(room) = packet.append(len) else { return packet };
        self.head(Protocol::TCP, room);
        room[20..24].copy_from_slice(&self.ports);
        room[24..28].copy_from_slice(&self.sequence.to_be_bytes());
        room[28..40].copy_from_slice(&[0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        let [source, destination] = [self.source, self.source.other()].map(|end| end.address());
        let upper = u32::from(below(len - ipv4::HEADER_LEN));
        let pseudo = Sum::of_pseudo(source.into(), destination.into(), Protocol::TCP, upper);
        room[36..38].copy_from_slice(&pseudo.fold().to_be_bytes());
        self.sequence = self.sequence.wrapping_add(below(payload).into());
        packet.checksum = Checksum::Partial { start: 20, offset: 16 };
        if payload > MSS {
            packet.segments = Segments::Tcp { mss: below(MSS) };
        }
        packet
    }

    fn head(&mut self, protocol: Protocol, room: &mut [u8]) {
        self.ip.protocol = protocol;
        self.ip.total_len = below(room.len()).into();
        self.ip.fill_checksum();
        room[..ipv4::HEADER_LEN].copy_from_slice(self.ip.as_bytes());
    }
}

/// Lengths here stay below 64 KiB.
fn below(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}
