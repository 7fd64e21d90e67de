//! Capture files: a port that reads and writes them, and a tap on any port.
//!
//! Files hold IP packets without link header (link type 101, `RAW`). The reader takes pcap and
//! pcapng, also with Ethernet headers, which it strips; the writer creates pcap with nanoseconds.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader as FileReader, PcapWriter as FileWriter};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};
use uxfrm_packet::{Batch, PacketBuf, Pool, Segments, SizeClass};

use crate::clock;
use crate::port::{Accepts, Port, Transmitted};

/// The largest packet that a buffer takes from a file.
const LARGEST: usize = 65_536;

/// The first bytes of a pcapng file: its section header's type.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Reads packets of a capture file in order.
#[derive(Debug)]
pub struct PcapReader {
    format: Format,
}

enum Format {
    Pcap(FileReader<Start>),
    PcapNg(PcapNgReader<Start>),
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pcap(_) => "pcap",
            Self::PcapNg(_) => "pcapng",
        })
    }
}

/// A file whose first bytes were read to detect its format.
type Start = io::Chain<io::Cursor<[u8; 4]>, Box<dyn Read + Send>>;

impl PcapReader {
    /// Opens a file.
    ///
    /// # Errors
    /// The kernel's, or `InvalidData` when it is neither pcap nor pcapng.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(Box::new(BufReader::new(File::open(path)?)))
    }

    /// Reads a capture from anything.
    ///
    /// # Errors
    /// Those of `file`, or `InvalidData` when it is neither pcap nor pcapng.
    pub fn of(mut file: Box<dyn Read + Send>) -> io::Result<Self> {
        let mut magic = [0; 4];
        file.read_exact(&mut magic)?;
        let start = io::Cursor::new(magic).chain(file);
        let format = if magic == PCAPNG {
            Format::PcapNg(PcapNgReader::new(start).map_err(error)?)
        } else {
            Format::Pcap(FileReader::new(start).map_err(error)?)
        };
        Ok(Self { format })
    }

    /// The next IP packet in a buffer of `pool`; `None` at the end of the file. Skips other
    /// records.
    ///
    /// # Errors
    /// The kernel's, or `InvalidData` where the file is broken.
    pub fn next(&mut self, pool: &mut Pool) -> io::Result<Option<PacketBuf>> {
        loop {
            let found = match &mut self.format {
                Format::Pcap(reader) => {
                    let link = reader.header().datalink;
                    let Some(packet) = reader.next_packet() else { return Ok(None) };
                    strip(link, &packet.map_err(error)?.data).map(|bytes| fill(bytes, pool))
                }
                Format::PcapNg(reader) => {
                    let links: Vec<_> =
                        reader.interfaces().iter().map(|interface| interface.linktype).collect();
                    let Some(block) = reader.next_block() else { return Ok(None) };
                    ip_of(&block.map_err(error)?, &links).map(|bytes| fill(bytes, pool))
                }
            };
            if let Some(packet) = found {
                return Ok(Some(packet));
            }
        }
    }
}

/// Appends packets to a capture file.
pub struct PcapWriter {
    writer: FileWriter<Box<dyn Write + Send>>,
}

impl std::fmt::Debug for PcapWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").finish_non_exhaustive()
    }
}

impl PcapWriter {
    /// Creates or truncates a file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::to(Box::new(BufWriter::new(File::create(path)?)))
    }

    /// Writes a capture to anything.
    ///
    /// # Errors
    /// Those of `output`.
    pub fn to(output: Box<dyn Write + Send>) -> io::Result<Self> {
        let header = PcapHeader {
            datalink: DataLink::RAW,
            ts_resolution: TsResolution::NanoSecond,
            snaplen: 262_144,
            ..PcapHeader::default()
        };
        Ok(Self { writer: FileWriter::with_header(output, header).map_err(error)? })
    }

    /// Appends one buffer's packets with the present time; a burst's one by one, a super-packet as
    /// it is.
    ///
    /// # Errors
    /// Those of the output.
    pub fn append(&mut self, packet: &PacketBuf) -> io::Result<()> {
        let now = Duration::from_nanos(clock::wall_nanoseconds());
        let step = match packet.segments {
            Segments::Burst { stride } => usize::from(stride.max(1)),
            Segments::One | Segments::Tcp { .. } | Segments::Udp { .. } => packet.len().max(1),
        };
        for bytes in packet.bytes().chunks(step) {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.writer.write_packet(&PcapPacket::new(now, length, bytes)).map_err(error)?;
        }
        Ok(())
    }
}

/// A port over capture files: it receives one file's packets and writes transmitted ones to
/// another.
#[derive(Debug)]
pub struct Pcap {
    source: Option<PcapReader>,
    sink: Option<PcapWriter>,
}

impl Pcap {
    /// Either may be missing: nothing is received then, or transmitted packets are only counted.
    #[must_use]
    pub fn new(source: Option<PcapReader>, sink: Option<PcapWriter>) -> Self {
        Self { source, sink }
    }
}

impl Port for Pcap {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let Some(source) = &mut self.source else { return Ok(0) };
        let before = into.len();
        while into.room() > 0 {
            let Some(packet) = source.next(pool)? else { break };
            into.push(packet);
        }
        Ok(into.len() - before)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        let mut done = Transmitted::default();
        for packet in batch.drain() {
            match self.sink.as_mut().map_or(Ok(()), |sink| sink.append(&packet)) {
                Ok(()) => done.sent(&packet),
                Err(error) => done.refuse(crate::wire_packets(&packet), &error),
            }
            pool.give(packet);
        }
        done
    }

    fn accepts(&self) -> Accepts {
        Accepts::ALL
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A port that copies another one's traffic, in both directions, to a capture file.
///
/// A write error ends the capture; the traffic goes on.
#[derive(Debug)]
pub struct Tap<P> {
    port: P,
    sink: Option<PcapWriter>,
}

impl<P: Port> Tap<P> {
    /// Taps `port`.
    #[must_use]
    pub fn new(port: P, sink: PcapWriter) -> Self {
        Self { port, sink: Some(sink) }
    }

    /// Whether all packets so far were written.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.sink.is_some()
    }

    fn copy(&mut self, packets: &[PacketBuf]) {
        let Some(sink) = &mut self.sink else { return };
        if packets.iter().any(|packet| sink.append(packet).is_err()) {
            self.sink = None;
        }
    }
}

impl<P: Port> Port for Tap<P> {
    fn receive(&mut self, pool: &mut Pool, into: &mut Batch) -> io::Result<usize> {
        let before = into.len();
        let count = self.port.receive(pool, into)?;
        self.copy(&into.as_slice()[before..]);
        Ok(count)
    }

    fn transmit(&mut self, batch: &mut Batch, pool: &mut Pool) -> Transmitted {
        self.copy(batch.as_slice());
        self.port.transmit(batch, pool)
    }

    fn accepts(&self) -> Accepts {
        self.port.accepts()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }
}

/// The IP packet behind a link header of a known type.
fn strip(link: DataLink, bytes: &[u8]) -> Option<&[u8]> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the library's enum names 200 link types")]
    let ip = match link {
        DataLink::RAW | DataLink::IPV4 | DataLink::IPV6 => bytes,
        DataLink::ETHERNET => match bytes.get(12..14)? {
            [0x08, 0x00] | [0x86, 0xdd] => bytes.get(14..)?,
            _not_ip => return None,
        },
        _unknown => return None,
    };
    (!ip.is_empty() && ip.len() <= LARGEST).then_some(ip)
}

/// The IP packet in a block of a pcapng file.
fn ip_of<'a>(block: &'a Block<'_>, links: &[DataLink]) -> Option<&'a [u8]> {
    if let Block::EnhancedPacket(packet) = block {
        strip(*links.get(packet.interface_id as usize)?, &packet.data)
    } else if let Block::SimplePacket(packet) = block {
        strip(*links.first()?, &packet.data)
    } else {
        None
    }
}

fn fill(bytes: &[u8], pool: &mut Pool) -> PacketBuf {
    let mut packet = pool.take(SizeClass::holding(bytes.len()));
    packet.spare()[..bytes.len()].copy_from_slice(bytes);
    packet.received(bytes.len());
    packet
}

/// The kernel's error, where it is one.
pub(crate) fn error(error: PcapError) -> io::Error {
    if let PcapError::IoError(error) = error {
        error
    } else {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("uxfrm-io-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _absent = std::fs::remove_file(&self.0);
        }
    }

    fn lengths(path: &Path) -> Vec<usize> {
        let (mut pool, mut batch) = (Pool::new(), Batch::new());
        Pcap::new(Some(PcapReader::open(path).unwrap()), None)
            .receive(&mut pool, &mut batch)
            .unwrap();
        batch.as_slice().iter().map(PacketBuf::len).collect()
    }

    #[test]
    fn pcap_round_trips_and_splits_bursts() {
        let scratch = Scratch::new("written");
        let mut burst = PacketBuf::from_slice(&[0x45; 250]);
        burst.segments = Segments::Burst { stride: 100 };
        let mut batch: Batch = [PacketBuf::from_slice(&[0x60; 3000]), burst].into_iter().collect();
        let mut port = Pcap::new(None, Some(PcapWriter::create(&scratch.0).unwrap()));
        assert_eq!(port.transmit(&mut batch, &mut Pool::new()).packets, 4);
        drop(port);
        assert_eq!(lengths(&scratch.0), [3000, 100, 100, 50]);
    }

    #[test]
    fn a_tap_sees_both_directions_and_changes_nothing() {
        let scratch = Scratch::new("tap");
        let (near, mut far) = Memory::pair(4);
        let mut tap = Tap::new(near, PcapWriter::create(&scratch.0).unwrap());
        let (mut pool, mut got) = (Pool::new(), Batch::new());
        let mut out: Batch = [PacketBuf::from_slice(&[0x45; 20])].into_iter().collect();
        assert_eq!(tap.transmit(&mut out, &mut pool).packets, 1);
        assert_eq!(far.receive(&mut pool, &mut got).unwrap(), 1);
        assert_eq!(got.as_slice()[0].bytes(), [0x45; 20]);
        let mut back: Batch = [PacketBuf::from_slice(&[0x45; 30])].into_iter().collect();
        assert_eq!(far.transmit(&mut back, &mut pool).packets, 1);
        assert_eq!(tap.receive(&mut pool, &mut got).unwrap(), 1);
        assert!(tap.is_complete());
        drop(tap);
        assert_eq!(lengths(&scratch.0), [20, 30]);
    }

    #[test]
    fn pcap_strips_link_headers_and_skips_other_protocols() {
        let mut frame = vec![0; 34];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        assert_eq!(strip(DataLink::ETHERNET, &frame).map(<[u8]>::len), Some(20));
        frame[13] = 6;
        assert_eq!(strip(DataLink::ETHERNET, &frame), None);
        assert_eq!(strip(DataLink::ETHERNET, &frame[..5]), None);
        assert_eq!(strip(DataLink::RAW, &[]), None);
    }
}
