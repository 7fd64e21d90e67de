//! Capture files of several interfaces with comments (pcapng), as Wireshark reads them.
//!
//! Packets are IP packets without a link header (link type RAW), their times are in nanoseconds.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgBlock, PcapNgWriter};
use pcap_file::{DataLink, Endianness};

use crate::capture::CaptureDirection;
use crate::pcap::error;

/// `if_tsresol` of nanoseconds: 10^-9 seconds.
const NANOSECONDS: u8 = 9;
/// `epb_flags`: direction, in the two lowest bits.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// An interface of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapNgInterface<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is.
    pub description: &'a str,
    /// Bytes of a packet at the most.
    pub snaplen: u32,
}

/// A packet of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommentedPacket<'a> {
    /// Place of its interface, from 0 in the order in which they were added.
    pub interface: u32,
    /// When, in nanoseconds since 1970.
    pub at: u64,
    /// Length of the whole packet.
    pub length: u32,
    /// Its first bytes.
    pub bytes: &'a [u8],
    /// Which way it went.
    pub direction: CaptureDirection,
    /// What is known of it.
    pub comment: &'a str,
}

/// Writes a capture file.
///
/// ```
/// use uxfrm_io::capture::CaptureDirection;
/// use uxfrm_io::pcapng::{PcapNgInterface, CommentedPacket, PcapNgFile};
///
/// let mut file = Vec::new();
/// let mut capture = PcapNgFile::new(&mut file, "uxfrm 0.1.0")?;
/// let plain = PcapNgInterface { name: "uxfrm0", description: "plain side", snaplen: 1500 };
/// let interface = capture.add_interface(plain)?;
/// let (length, direction) = (20, CaptureDirection::Out);
/// let packet = CommentedPacket {
///     interface, at: 7, length, bytes: &[0x45; 20], direction, comment: "protected",
/// };
/// capture.write(packet)?;
/// capture.flush()?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct PcapNgFile<W: Write> {
    writer: PcapNgWriter<W>,
    interfaces: u32,
}

impl<W: Write> fmt::Debug for PcapNgFile<W> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PcapNgFile({} interfaces)", self.interfaces)
    }
}

impl<W: Write> PcapNgFile<W> {
    /// Begins a file; `application` is what makes it.
    ///
    /// # Errors
    /// Those of the output.
    pub fn new(output: W, application: &str) -> io::Result<Self> {
        let section = SectionHeaderBlock {
            endianness: Endianness::Little,
            options: vec![
                SectionHeaderOption::OS(Cow::Borrowed("Linux")),
                SectionHeaderOption::UserApplication(Cow::Owned(application.to_owned())),
            ],
            ..SectionHeaderBlock::default()
        };
        let writer = PcapNgWriter::with_section_header(output, section).map_err(error)?;
        Ok(Self { writer, interfaces: 0 })
    }

    /// Adds an interface; its place.
    ///
    /// # Errors
    /// Those of the output.
    pub fn add_interface(&mut self, interface: PcapNgInterface<'_>) -> io::Result<u32> {
        let PcapNgInterface { name, description, snaplen } = interface;
        let options = vec![
            InterfaceDescriptionOption::IfName(name.into()),
            InterfaceDescriptionOption::IfDescription(description.into()),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        self.block(
            &InterfaceDescriptionBlock { linktype: DataLink::RAW, snaplen, options }.into_block(),
        )?;
        self.interfaces += 1;
        Ok(self.interfaces - 1)
    }

    /// Adds a packet of an interface that was added.
    ///
    /// # Errors
    /// Those of the output, or `InvalidData` for an interface that is not there.
    pub fn write(&mut self, packet: CommentedPacket<'_>) -> io::Result<()> {
        let CommentedPacket { interface, at, length, bytes, direction, comment } = packet;
        let flags = match direction {
            CaptureDirection::In => INBOUND,
            CaptureDirection::Out => OUTBOUND,
        };
        let options =
            vec![EnhancedPacketOption::Comment(comment.into()), EnhancedPacketOption::Flags(flags)];
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: Duration::from_nanos(at),
            original_len: length,
            data: bytes.into(),
            options,
        };
        self.block(&block.into_block())
    }

    /// Says at the end how many packets of an interface were lost.
    ///
    /// # Errors
    /// As [`PcapNgFile::write`].
    pub fn write_lost(&mut self, interface: u32, at: u64, lost: u64) -> io::Result<()> {
        let options = vec![InterfaceStatisticsOption::IsbIfDrop(lost)];
        // The format has the upper half first; pcap-file writes both as one number.
        let timestamp = at.rotate_left(32);
        let block = InterfaceStatisticsBlock { interface_id: interface, timestamp, options };
        self.block(&block.into_block())
    }

    /// Hands on what is buffered.
    ///
    /// # Errors
    /// Those of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }

    fn block(&mut self, block: &Block<'_>) -> io::Result<()> {
        self.writer.write_block(block).map(drop).map_err(error)
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::PcapNgReader;

    use super::*;

    fn packet(interface: u32, bytes: &[u8]) -> CommentedPacket<'_> {
        let (at, direction) = (1_764_424_800_123_456_789, CaptureDirection::In);
        let comment = "in dropped in_no_state – ESP 0x00bad5b1";
        CommentedPacket { interface, at, length: 1500, bytes, direction, comment }
    }

    #[test]
    fn file_is_read_back() {
        let mut file = Vec::new();
        let mut capture = PcapNgFile::new(&mut file, "uxfrm 1.2").unwrap();
        for (name, place) in [("uxfrm0", 0), ("wire", 1)] {
            let interface = PcapNgInterface { name, description: "a side", snaplen: 96 };
            assert_eq!(capture.add_interface(interface).unwrap(), place);
        }
        capture.write(packet(1, &[0x45, 1, 2])).unwrap();
        capture.write(packet(0, &[])).unwrap();
        capture.write_lost(1, 7, 12).unwrap();
        assert!(capture.write(packet(2, &[])).is_err(), "there is no such interface");
        drop(capture);

        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let application = SectionHeaderOption::UserApplication("uxfrm 1.2".into());
        assert!(reader.section().options.contains(&application));
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block() {
            blocks.push(block.unwrap().into_owned());
        }
        let [first, second, there, empty, lost] = &blocks[..] else { panic!("{blocks:?}") };
        for (block, name) in [(first, "uxfrm0"), (second, "wire")] {
            let Block::InterfaceDescription(block) = block else { panic!("{block:?}") };
            assert_eq!((block.linktype, block.snaplen), (DataLink::RAW, 96));
            assert!(block.options.contains(&InterfaceDescriptionOption::IfName(name.into())));
            assert!(block.options.contains(&InterfaceDescriptionOption::IfTsResol(9)));
        }
        let Block::EnhancedPacket(there) = there else { panic!("{there:?}") };
        assert_eq!(there.timestamp.as_nanos(), u128::from(packet(1, &[]).at));
        assert_eq!((&*there.data, there.original_len), (&[0x45, 1, 2][..], 1500));
        assert_eq!(there.interface_id, 1);
        let comment = EnhancedPacketOption::Comment(packet(1, &[]).comment.into());
        assert_eq!(there.options, [comment, EnhancedPacketOption::Flags(INBOUND)]);
        let Block::EnhancedPacket(empty) = empty else { panic!("{empty:?}") };
        assert_eq!((empty.interface_id, empty.data.len()), (0, 0));
        let Block::InterfaceStatistics(lost) = lost else { panic!("{lost:?}") };
        assert_eq!(lost.options, [InterfaceStatisticsOption::IsbIfDrop(12)]);
    }
}
