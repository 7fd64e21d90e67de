//! The pcapng file of a capture, or standard output.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use anyhow::Context as _;
use nix::{fcntl::OFlag, unistd::Uid};
use uxfrm_io::{
    capture::CaptureDirection,
    pcapng::{self, CommentedPacket, PcapNgFile},
};
use uxfrm_status::{
    capture::{CaptureInterface, CaptureSide, CapturedPacketStatus},
    explanation::FlowWay,
    text::packets::comment,
};

/// A capture file that is being written.
#[derive(Debug)]
pub(super) struct CaptureFile {
    file: PcapNgFile<Box<dyn Write>>,
    /// Sides by the place of their interface.
    sides: Vec<CaptureSide>,
    packets: u64,
    latest: u64,
}

impl CaptureFile {
    /// Begins a file, for its owner alone; `-` is standard output.
    pub(super) fn create(
        path: &Path,
        interfaces: &[CaptureInterface],
        snaplen: u32,
    ) -> anyhow::Result<Self> {
        let output: Box<dyn Write> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            let file = open(path);
            Box::new(file.with_context(|| format!("can't write {}", path.display()))?)
        };
        let output: Box<dyn Write> = Box::new(BufWriter::new(output));
        let application = format!("uxfrm capture {}", env!("CARGO_PKG_VERSION"));
        let mut file = PcapNgFile::new(output, &application)?;
        for CaptureInterface { name, description, .. } in interfaces {
            file.add_interface(pcapng::PcapNgInterface { name, description, snaplen })?;
        }
        file.flush()?;
        let sides = interfaces.iter().map(|interface| interface.side).collect();
        Ok(Self { file, sides, packets: 0, latest: 0 })
    }

    /// Adds packets, and hands them on at once: whoever reads is to see them, and a capture that is
    /// killed leaves a whole file.
    pub(super) fn write(&mut self, packets: &[CapturedPacketStatus]) -> io::Result<()> {
        for packet in packets {
            let place = self.sides.iter().position(|side| *side == packet.side);
            let Some(interface) = place.and_then(|place| u32::try_from(place).ok()) else {
                continue;
            };
            self.file.write(CommentedPacket {
                interface,
                at: packet.at_ns,
                length: u32::try_from(packet.length).unwrap_or(u32::MAX),
                bytes: &packet.bytes.0,
                direction: match packet.way {
                    FlowWay::Out => CaptureDirection::Out,
                    FlowWay::In => CaptureDirection::In,
                },
                comment: &comment(packet),
            })?;
            self.packets += 1;
            self.latest = packet.at_ns;
        }
        if packets.is_empty() { Ok(()) } else { self.file.flush() }
    }

    /// Packets written so far.
    pub(super) const fn packets(&self) -> u64 {
        self.packets
    }

    /// Says in the file how many packets are not in it.
    pub(super) fn finish(&mut self, lost: u64) -> io::Result<()> {
        if !self.sides.is_empty() {
            self.file.write_lost(0, self.latest, lost)?;
        }
        self.file.flush()
    }
}

/// A file that was there makes room for a new one: somebody else may have it open. Pipes and
/// devices stay as they are, and have to be ours or root's.
fn open(path: &Path) -> io::Result<File> {
    // A link that somebody has put there leads nowhere.
    let flags = OFlag::O_NOFOLLOW.bits();
    let is_ours = |user: u32| user == Uid::effective().as_raw() || user == 0;
    let refused = || io::Error::other("it is another user's");
    match fs::symlink_metadata(path) {
        Ok(found) if !is_ours(found.uid()) => return Err(refused()),
        Ok(found) if found.is_file() => fs::remove_file(path)?,
        Ok(_) => {
            let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
            return if is_ours(file.metadata()?.uid()) { Ok(file) } else { Err(refused()) };
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        io::Read as _,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    #[test]
    fn file_is_its_owners_alone_and_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (there, link) = (folder.path().join("there"), folder.path().join("link"));
        fs::write(&there, "before").unwrap();
        fs::set_permissions(&there, Permissions::from_mode(0o644)).unwrap();
        symlink(&there, &link).unwrap();
        assert!(CaptureFile::create(&link, &[], 96).is_err());
        assert_eq!(fs::read(&there).unwrap(), b"before");
        let mut before = File::open(&there).unwrap();
        CaptureFile::create(&there, &[], 96).unwrap();
        let mut seen = Vec::new();
        before.read_to_end(&mut seen).unwrap();
        assert_eq!(seen, b"before", "who has the old file open sees no packet");
        assert_eq!(fs::metadata(&there).unwrap().mode() & 0o777, 0o600);
        assert!(fs::read(&there).unwrap().starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    }
}
